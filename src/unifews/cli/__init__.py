"""The command line: the library's sentences with spaces. One file per command, one thin function each.

Results go to stdout (`--json` for machines), progress and notes to stderr. A user's mistake is one sentence and exit code 2;
Ctrl-C is exit code 130, SIGTERM 143. Set UNIFEWS_DEBUG=1 to see tracebacks instead. Nothing heavy is imported before a command
runs.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from unifews import __version__
from unifews.cli import bench, compare, data, demo, infer, methods, propagate, report, reproduce, train
from unifews.cli.run import group, help_if_alone

app = group()
app.command()(propagate.propagate)
app.command()(train.train)
app.command()(infer.infer)
app.command()(methods.methods)
app.command()(compare.compare)
app.command()(reproduce.reproduce)
app.command()(report.report)
app.command()(demo.demo)
app.add_typer(data.app, name="data", help="List, inspect, fetch, convert and generate datasets.")
app.add_typer(bench.app, name="bench", help="Measure the kernels on this machine.")


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from unifews.kernels import native, threads_to_use

    threads = threads_to_use(None) if native.openmp() else 1
    sys.stdout.write(
        f"unifews {__version__}\n"
        f"kernels: {native.level()} (this processor runs {', '.join(native.levels())})\n"
        f"threads: {threads}\n"
        f"OpenMP: {'yes' if native.openmp() else 'no'}\n"
    )
    raise typer.Exit


@app.callback(invoke_without_command=True)
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
