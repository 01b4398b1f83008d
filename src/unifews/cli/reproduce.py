"""`unifews reproduce`: a table or figure of the paper, with its printed values beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unifews.cli import live, output
from unifews.cli.desk import report_skipped
from unifews.cli.run import Interrupted, own_process
from unifews.errors import InputError, unknown_name

if TYPE_CHECKING:
    from unifews.experiments.definitions import Scale
    from unifews.experiments.results import ExperimentResult


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Tables and figures such as tab:dec res_iter, or all; list shows what there is."),
    ],
    scale: Annotated[
        str,
        typer.Option(
            metavar="smoke|small|paper",
            help="Whether everything runs, in minutes; numbers worth reading, in hours; or the paper's own grids and seeds.",
        ),
    ] = "smoke",
    datasets: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only runs on these: cora-lcc,citeseer (the paper's cora is cora-lcc).")
    ] = None,
    ledger: Annotated[
        Path, typer.Option(metavar="DIR", help="Where records are kept; what is there is not run again.")
    ] = Path("runs"),
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="How many runs at a time, one per core unless given; they share the cores.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Where tables and figures go, results/SCALE unless given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written, or the list, as JSON.")] = False,
) -> None:  # fmt: skip
    """Run an experiment of the paper and write its table (.md, .csv) and figures (.json, which unifews report draws).

    Runs are kept as they finish, and finished seeds of one that was stopped are too: the same command goes on where it was.
    Experiments share runs. Where a dataset cannot be had, a stand-in is named as such, or its rows say that they were not run.
    """
    own_process()
    from unifews.experiments.definitions import SCALES, find

    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    if "list" in names:
        if names != ["list"]:
            raise InputError("`unifews reproduce list` shows what there is; leave out the other names.")
        _list(as_json)
        return
    wanted = [] if "all" in names else [find(name).id for name in names]
    if "all" in names and len(names) > 1:
        raise InputError("`all` are all of them; leave out the other names.")
    only = [] if datasets is None else [name.strip() for name in datasets.split(",")]
    _run(wanted, scale, only, ledger, jobs, Path("results") / scale if out is None else out, as_json)  # type: ignore[arg-type]


def _run(
    names: list[str], scale: Scale, datasets: list[str], ledger: Path, jobs: int | None, out: Path, as_json: bool
) -> None:  # fmt: skip
    from unifews.experiments.reproduce import reproduce
    from unifews.kernels import threads_to_use
    from unifews.training.ledger import Ledger

    files: dict[str, list[Path]] = {}

    def wrote(outcome: ExperimentResult, paths: list[Path]) -> None:
        files[outcome.experiment.id] = paths
        if not as_json:
            output.note(f"{outcome.experiment.id} is done: {paths[0]}")

    jobs = threads_to_use(None) if jobs is None else jobs
    report_skipped(Ledger(ledger))
    try:
        with live.cells("loading") as progress:
            outcomes = reproduce(
                names, scale, ledger=Ledger(ledger), out=out, datasets=datasets, jobs=jobs, progress=progress, wrote=wrote
            )  # fmt: skip
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted; what was finished is in {ledger}, and the same command goes on from there.") from error
    if as_json:
        told = [_told(outcome, files[outcome.experiment.id]) for outcome in outcomes]
        output.print_json({"scale": scale, "ledger": str(ledger), "experiments": told})
    else:
        _show(outcomes, out, ledger)


def _told(outcome: ExperimentResult, files: list[Path]) -> dict[str, Any]:
    return {
        "id": outcome.experiment.id,
        "columns": outcome.columns(),
        "rows": outcome.rows(),
        "notes": outcome.notes,
        "files": [str(path) for path in files],
    }


def _show(outcomes: list[ExperimentResult], out: Path, ledger: Path) -> None:
    console = output.console()
    for outcome in outcomes:
        missing = sum(run.record is None for run in outcome.runs)
        rest = f", {missing} of them not run" if missing else ""
        console.print(
            f"{outcome.experiment.id}: {outcome.experiment.title}, {len(outcome.runs)} rows{rest}", soft_wrap=True, markup=False
        )
    if len(outcomes) == 1:
        console.print(outcomes[0].markdown(), soft_wrap=True, markup=False)
    console.print(
        f"wrote {out}; runs are kept in {ledger}. Next: unifews report {out} {ledger} --out report.html", soft_wrap=True,
        markup=False,
    )  # fmt: skip


def _list(as_json: bool) -> None:
    from unifews.experiments import definitions

    found = [definitions.find(name) for name in definitions.ids()]
    rows: list[dict[str, Any]] = [
        {
            "id": each.id,
            "label": each.label,
            "title": each.title,
            "runs": {scale: len(each.runs(scale)) for scale in definitions.SCALES},
        }
        for each in found
    ]
    if as_json:
        output.print_json({"experiments": rows})
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for title in ("id", "in the paper", "what", *(f"runs, {scale}" for scale in definitions.SCALES)):
        table.add_column(title, no_wrap=title != "what", justify="right" if title.startswith("runs") else "left")
    for row in rows:
        table.add_row(row["id"], row["label"] or "-", row["title"], *(str(row["runs"][scale]) for scale in definitions.SCALES))
    output.console(table).print(table)
