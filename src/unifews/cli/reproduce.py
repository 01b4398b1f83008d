"""`unifews reproduce`: tables and figures of the paper, with its printed values beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unifews.cli import console
from unifews.cli.errors import configure_process, resumable_runs
from unifews.cli.options import INPUT, AsJson, Jobs, Ledger, flag, out_flag
from unifews.errors import InputError, unknown_name

if TYPE_CHECKING:
    from unifews.experiments.definitions import Scale
    from unifews.experiments.results import ExperimentResult


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Tables and figures such as tab:dec; or all; or list."),
    ],
    scale: Annotated[
        str,
        flag(
            "--scale",
            panel=INPUT,
            metavar="smoke|small|paper",
            help="A quick test (minutes), a reduced grid (hours), or the grids and seeds of the paper.",
        ),
    ] = "smoke",
    datasets: Annotated[
        str | None, flag("--datasets", panel=INPUT, metavar="NAMES", help="Only these, as in cora-lcc,citeseer; default: all.")
    ] = None,
    ledger: Ledger = Path("runs"),
    jobs: Jobs = None,
    out: Annotated[Path | None, out_flag("DIR")] = None,
    as_json: AsJson = False,
) -> None:
    """Run experiments of the paper and write their tables and figures.

    Tables (.md, .csv) and figures (.json, for unifews report) are written to results/SCALE or --out. Finished runs and seeds
    are stored and shared between experiments; after an interruption the same command resumes. If a dataset is not available, a
    substitute is named as such, or its rows are marked as not run. By default a run per core.
    """
    configure_process()
    from unifews.experiments.definitions import SCALES, find

    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    for word in ("list", "all"):
        if word in names and len(names) > 1:
            raise InputError(f"`unifews reproduce {word}` takes no other names.")
    if names == ["list"]:
        _list(as_json)
        return
    wanted = [] if names == ["all"] else [find(name).id for name in names]
    only = [] if datasets is None else [name.strip() for name in datasets.split(",")]
    _run(wanted, scale, only, ledger, jobs, Path("results") / scale if out is None else out, as_json)  # type: ignore[arg-type]


def _run(names: list[str], scale: Scale, datasets: list[str], ledger: Path, jobs: int | None, out: Path, as_json: bool) -> None:
    from unifews.experiments.reproduce import reproduce
    from unifews.kernels import threads_to_use
    from unifews.training.ledger import Ledger

    files: dict[str, list[Path]] = {}

    def wrote(outcome: ExperimentResult, paths: list[Path]) -> None:
        files[outcome.experiment.id] = paths
        if not as_json:
            console.note(f"{outcome.experiment.id} is done: {paths[0]}")

    jobs = threads_to_use(None) if jobs is None else jobs
    console.report_skipped(Ledger(ledger))
    with resumable_runs(ledger), console.cells_progress("loading") as progress:
        outcomes = reproduce(
            names, scale, ledger=Ledger(ledger), out=out, datasets=datasets, jobs=jobs, progress=progress, wrote=wrote
        )
    if as_json:
        results = [
            {
                "id": outcome.experiment.id,
                "columns": outcome.columns(),
                "rows": outcome.rows(),
                "notes": outcome.notes,
                "files": [str(path) for path in files[outcome.experiment.id]],
            }
            for outcome in outcomes
        ]
        console.print_json({"scale": scale, "ledger": str(ledger), "experiments": results})
    else:
        _print_results(outcomes, out, ledger)


def _print_results(outcomes: list[ExperimentResult], out: Path, ledger: Path) -> None:
    for outcome in outcomes:
        missing = sum(run.record is None for run in outcome.runs)
        rest = f", {missing} of them not run" if missing else ""
        console.echo(f"{outcome.experiment.id}: {outcome.experiment.title}, {len(outcome.runs)} rows{rest}")
    if len(outcomes) == 1:
        console.echo(outcomes[0].markdown())
    console.echo(f"wrote {out}; runs are stored in {ledger}. Next: unifews report {out} {ledger} --out report.html")


def _list(as_json: bool) -> None:
    from unifews.experiments import definitions

    rows: list[console.Json] = [
        {
            "id": each.id,
            "label": each.label,
            "title": each.title,
            "runs": {scale: len(each.runs(scale)) for scale in definitions.SCALES},
        }
        for each in map(definitions.find, definitions.ids())
    ]
    if as_json:
        console.print_json({"experiments": rows})
        return
    counts = [f"runs, {scale}" for scale in definitions.SCALES]
    table = console.new_table(("id", "in the paper", "title", *counts), right=counts, wrap=("title",))
    for row in rows:
        table.add_row(row["id"], row["label"] or "-", row["title"], *(str(row["runs"][scale]) for scale in definitions.SCALES))
    console.print_table(table)
