"""`unifews demo`: what pruning does, in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unifews.cli import live, output
from unifews.cli.run import own_process
from unifews.errors import InputError


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="PAGE.html", help="Where the page with the picture goes.")
    ] = Path("unifews-demo.html"),
    seeds: Annotated[int, typer.Option(metavar="N", help="Seeds of each model.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
) -> None:  # fmt: skip
    """Train APPNP on Cora unpruned, in the paper's form and sparsified; compare accuracy, operations and time.

    Cora is fetched if it is not on this machine; where no source can be reached, a generated stand-in takes its place.
    """
    if seeds < 1:
        raise InputError(f"--seeds is at least 1; got {seeds}.")
    own_process()
    output.check_page(out)
    from unifews.experiments import demo as module
    from unifews.report.page import write_page
    from unifews.report.tables import legend, terminal_table

    result = module.run(output.stage, live.training, seeds=seeds)
    write_page(result.records, out, "unifews: accuracy against operations", (result.data, str(result.speed)))
    if as_json:
        output.print_json({**result.to_dict(), "page": str(out)})
        return
    table = terminal_table(result.records)
    console = output.console(table)
    console.print(f"APPNP, 20 hops, {seeds} seeds. {result.data}", soft_wrap=True, markup=False)
    console.print(table)
    console.print(
        *legend(result.records), str(result.speed), f"wrote {out}: the picture", module.NEXT, sep="\n", soft_wrap=True
    )
