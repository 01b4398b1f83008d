"""`unifews report`: runs and reproduced experiments on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unifews.cli import console
from unifews.cli.options import AsJson, Figures, Latex, flag, out_flag


def report(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE...", help="Ledgers (files or folders) and folders of unifews reproduce.")
    ],
    out: Annotated[Path, out_flag("PAGE.html")] = Path("report.html"),
    figures: Figures = None,
    latex: Latex = None,
    title: Annotated[str, flag("--title", metavar="TEXT", help="Heading of the page.")] = "unifews: runs",
    as_json: AsJson = False,
) -> None:
    """Write an HTML page of runs and reproduced tables and figures.

    The page has plots, sortable tables and downloads, and needs no network. Every pruned run is compared with the unpruned run
    of the same settings, with the spread over seeds, and with the value printed in the paper where there is one.
    """
    console.check_page(out)
    from unifews.report.exhibits import gather
    from unifews.report.latex import check_files, write_files
    from unifews.report.page import write_report

    check_files(figures, latex)
    material = gather(sources)
    for path in material.ignored:
        console.note(f"{path} is neither a ledger nor an exhibit; it is ignored.")
    for ledger in material.ledgers:
        console.report_skipped(ledger)
    write_report(material, out, title)
    files = write_files(material, figures, latex)
    if as_json:
        exhibits = [exhibit.id for exhibit in material.exhibits]
        skipped = [{"ledger": str(path), "line": line, "why": why} for path, (line, why) in material.skipped]
        more = {"figures": [str(path) for path in files if path != latex], "latex": None if latex is None else str(latex)}
        console.print_json({"page": str(out), "runs": len(material.records), "exhibits": exhibits, "skipped": skipped, **more})
    else:
        drawn = "" if figures is None else f"; {figures}: {len(files) - (latex is not None)} files"
        console.echo(f"wrote {out}: {material}{drawn}{'' if latex is None else f'; {latex}'}")
