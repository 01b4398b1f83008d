"""`unifews bench`: measurements on this machine."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from unifews.cli import console
from unifews.cli.errors import help_if_alone
from unifews.cli.options import INPUT, AsJson, command, command_group, flag
from unifews.errors import InputError, unknown_name

_SIZES = ("tiny", "small", "arxiv", "products")

app = command_group()


@app.callback(invoke_without_command=True, epilog="Example: unifews bench propagation")
def bench(context: typer.Context) -> None:
    """Measure the kernels on this machine."""
    help_if_alone(context)


@command(app, "propagation", example="unifews bench propagation --size arxiv")
def bench_propagation(
    size: Annotated[str, flag("--size", panel=INPUT, metavar="|".join(_SIZES), help="Size of the generated graph.")] = "small",
    trials: Annotated[int, flag("--trials", panel=INPUT, metavar="N", help="Repetitions; the median is reported.")] = 5,
    verify: Annotated[bool, flag("--verify", help="Also compare the results with an independent implementation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time a propagation, unpruned and pruned, against SciPy and torch."""
    if size not in _SIZES:
        raise unknown_name("size", size, _SIZES)
    if trials < 1:
        raise InputError(f"--trials must be at least 1; got {trials}.")
    module = import_module("unifews.experiments.bench")
    with console.status() as show:
        result = module.run(size, trials, verify, show)
    if as_json:
        console.print_json(result)
    else:
        module.render(result, console.rich_console())
