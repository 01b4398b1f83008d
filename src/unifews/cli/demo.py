"""`unifews demo`: pruning in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from unifews.cli import console
from unifews.cli.errors import configure_process
from unifews.cli.options import AsJson, Seeds, out_flag
from unifews.errors import InputError


def demo(
    out: Annotated[Path, out_flag("PAGE.html")] = Path("unifews-demo.html"),
    seeds: Seeds = 3,
    as_json: AsJson = False,
) -> None:
    """Train APPNP on Cora, unpruned and pruned, and compare accuracy, operations and time.

    It is pruned as in the paper and by default. Cora is downloaded if it is not on this machine; without a source for it, a
    generated substitute is used.
    """
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1; got {seeds}.")
    configure_process()
    console.check_page(out)
    from unifews.experiments import demo as module
    from unifews.report.page import write_page
    from unifews.report.tables import legend, terminal_table

    result = module.run(console.status, console.training_progress, seeds=seeds)
    write_page(result.records, out, "unifews: accuracy against operations", (result.data, str(result.speed)))
    if as_json:
        console.print_json({**result.to_dict(), "page": str(out)})
        return
    console.echo(f"APPNP, 20 hops, {seeds} seeds. {result.data}")
    console.print_table(terminal_table(result.records))
    console.echo(*legend(result.records), "", result.speed.heading)
    titles = ("", "hops", "seconds", "speed-up", "relative error")
    table = console.new_table(titles, right=titles[1:4])
    for row in result.speed.rows:
        table.add_row(*row)
    console.print_table(table)
    console.echo(f"wrote {out}: the plot", module.NEXT)
