"""`unifews report`: runs and reproduced experiments on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unifews.cli import output
from unifews.cli.desk import report_skipped


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="SOURCE...", help="A ledger.jsonl or its folder, or a folder of unifews reproduce; or several."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PAGE.html", help="Where the page goes.")] = Path("report.html"),
    title: Annotated[str, typer.Option(metavar="TEXT", help="Its heading.")] = "unifews: what was run",
    as_json: Annotated[bool, typer.Option("--json", help="Print what the page holds as JSON.")] = False,
) -> None:
    """Put runs and reproduced tables and figures on one page that needs no network: plots, sortable tables, downloads.

    Every pruned run stands against the unpruned one of the same settings, with the spread over seeds, and against the value
    that the paper prints, where it prints one.
    """
    output.check_page(out)
    from unifews.report.exhibits import gather
    from unifews.report.page import write_report

    material = gather(sources)
    for path in material.ignored:
        output.note(f"{path} is neither a ledger nor an exhibit; it is ignored.")
    for ledger in material.ledgers:
        report_skipped(ledger)
    write_report(material, out, title)
    if as_json:
        exhibits = [exhibit.id for exhibit in material.exhibits]
        skipped = [{"ledger": str(path), "line": line, "why": why} for path, (line, why) in material.skipped]
        output.print_json({"page": str(out), "runs": len(material.records), "exhibits": exhibits, "skipped": skipped})
    else:
        output.console().print(f"wrote {out}: {material}", soft_wrap=True, markup=False)
