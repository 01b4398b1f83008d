"""The command line: one module per command, each with one thin function.

Results are printed to stdout (``--json`` for machines), progress and notes to stderr. A user's mistake is reported in one
sentence with exit code 2; Ctrl-C gives exit code 130, SIGTERM 143. UNIFEWS_DEBUG=1 shows tracebacks instead. Nothing heavy is
imported before a command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from unifews import __version__
from unifews.cli import bench, compare, data, demo, generate, infer, methods, propagate, report, reproduce, thin, train
from unifews.cli.errors import help_if_alone
from unifews.cli.options import command, command_group

app = command_group()
_EXAMPLES: dict[Callable[..., None], str] = {
    propagate.propagate: "unifews propagate edges.csv --features x.npy --max-error 0.05 --out p.npy",
    thin.thin: "unifews thin edges.csv --method k-neighbor:k=10 --out thinned",
    train.train: "unifews train cora --edge-sparsity 0.9 --weight-sparsity 0.9",
    infer.infer: "unifews infer served cora --nodes 1,5,7 --out predictions.csv",
    methods.methods: "unifews methods",
    compare.compare: "unifews compare cora --methods unifews,random --edge-sparsity .5,.9",
    reproduce.reproduce: "unifews reproduce tab:dec --scale smoke --datasets cora-lcc",
    report.report: "unifews report results/smoke runs --out report.html",
    demo.demo: "unifews demo",
}
for function, example in _EXAMPLES.items():
    command(app, example=example)(function)
data.app.add_typer(generate.app, name="generate", help="Generate a synthetic dataset.")
app.add_typer(data.app, name="data", help="List, inspect, fetch, convert and generate datasets.")
app.add_typer(bench.app, name="bench", help="Measure the kernels on this machine.")


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from unifews.kernels import native, threads_to_use

    threads = threads_to_use(None) if native.openmp() else 1
    sys.stdout.write(
        f"unifews {__version__}\n"
        f"kernels: {native.level()} (this processor supports {', '.join(native.levels())})\n"
        f"threads: {threads}\n"
        f"OpenMP: {'yes' if native.openmp() else 'no'}\n"
    )
    raise typer.Exit


@app.callback(invoke_without_command=True, epilog="Example: unifews train cora --edge-sparsity 0.9")
def unifews(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show version, kernels and threads, and exit."),
    ] = False,
) -> None:
    """Cheaper graph neural networks: skip the entries of their matrix products that do not matter."""
    help_if_alone(context)


def main() -> None:
    """The entry point of the `unifews` script."""
    app(prog_name="unifews")
