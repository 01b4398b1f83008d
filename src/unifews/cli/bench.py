"""`unifews bench`: measurements on this machine."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from unifews.cli import output
from unifews.cli.run import group, help_if_alone
from unifews.errors import InputError, unknown_name

_SIZES = ("tiny", "small", "arxiv", "products")

app = group()


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure the kernels on this machine."""
    help_if_alone(context)


@app.command("propagation")
def bench_propagation(
    size: Annotated[str, typer.Option(metavar="|".join(_SIZES), help="The generated graph to measure on.")] = "small",
    trials: Annotated[int, typer.Option(metavar="N", help="Runs of each case; the median is shown.")] = 5,
    verify: Annotated[bool, typer.Option("--verify", help="Also compare the results with slow, independent ones.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
) -> None:
    """Time of a propagation, unpruned and pruned, beside scipy and torch."""
    if size not in _SIZES:
        raise unknown_name("size", size, _SIZES)
    if trials < 1:
        raise InputError(f"--trials is at least 1; got {trials}.")
    module = import_module("unifews.experiments.bench")
    with output.stage() as say:
        result = module.run(size, trials, verify, say)
    if as_json:
        output.print_json(result)
    else:
        module.render(result, output.console())
