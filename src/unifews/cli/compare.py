"""`unifews compare`: pruning methods at equal sparsities, against the unpruned model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unifews.cli import console
from unifews.cli.errors import configure_process, resumable_runs
from unifews.cli.options import (
    PRUNING,
    AsJson,
    DatasetName,
    Figures,
    Jobs,
    Latex,
    Ledger,
    PaperForm,
    Seeds,
    configured,
    flag,
    out_flag,
)
from unifews.cli.train import train_options
from unifews.errors import InputError

if TYPE_CHECKING:
    from unifews.core.config import Option
    from unifews.report.comparison import Standing

_OPTIONS = ("model", "edge_sparsity", "weight_sparsity", "seed", "split", "hops", "width", "layers", "epochs")

_SPARSITIES = ".3,.5,.8,.9"


def _options() -> Iterator[Option]:
    configure_process()
    for option in train_options():
        if option.name == "edge_sparsity":
            yield replace(option, type=str, default=_SPARSITIES, metavar="S,S,…")
        elif option.name in _OPTIONS:
            yield replace(option, default="gcn") if option.name == "model" else option


@configured(_options, common=_OPTIONS)
def compare(
    dataset: DatasetName,
    methods: Annotated[
        str,
        flag("--methods", panel=PRUNING, metavar="NAMES", help="Such as unifews,random,dspar; or all for the model."),
    ] = "all",
    paper_form: PaperForm = False,
    controls: Annotated[
        bool, flag("--controls", panel=PRUNING, help="Also Unifews with random and with the smallest entries, at equal cost.")
    ] = False,
    seeds: Seeds = 3,
    ledger: Ledger = Path("runs"),
    jobs: Jobs = 1,
    out: Annotated[Path | None, out_flag("PAGE.html")] = None,
    figures: Figures = None,
    latex: Latex = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Compare pruning methods at equal sparsities: accuracy, operations and training cost.

    Finished runs and seeds are stored and shared with other commands; after an interruption the same
    command resumes.
    """
    if out is not None:
        console.check_page(out)
    from unifews.experiments.compare import compare as run
    from unifews.report import comparison
    from unifews.report.latex import check_files, write_files
    from unifews.training import ledger as storage

    check_files(figures, latex)
    sparsities = _sparsities(given.pop("edge_sparsity", _SPARSITIES))
    console.report_skipped(storage.Ledger(ledger))
    with resumable_runs(ledger), console.cells_progress("loading") as progress:
        found = run(
            dataset,
            given.pop("model", "gcn"),
            methods,
            edge_sparsity=sparsities,
            paper_form=paper_form,
            controls=controls,
            seeds=seeds,
            ledger=ledger,
            jobs=1 if jobs is None else jobs,
            progress=progress,
            **given,
        )
    standing = comparison.Standing(found)
    if out is not None:
        comparison.write_page(standing, out)
    files = write_files(standing, figures, latex)
    if as_json:
        written = {"page": None if out is None else str(out), "files": [str(path) for path in files]}
        console.print_json(standing.to_dict() | {"ledger": str(ledger), **written})
    else:
        _print_comparison(standing, ledger, out)
        console.echo(*(f"wrote {path}" for path in files))
    for reason in comparison.failures(found):
        console.note(reason)


def _print_comparison(standing: Standing, ledger: Path, out: Path | None) -> None:
    from unifews.core.checks import count
    from unifews.report.comparison import legend, notes, terminal_table

    record = standing.found.unpruned
    data: console.Json = record["dataset"]
    console.echo(
        f"{record['spec']['model'].upper()} on {data['name']}, {count(standing.unpruned.seeds, 'seed')}: {data['nodes']:,} "
        f"nodes, {data['edges']:,} edges, {data['features']:,} features, {data['classes']} classes"
    )
    console.print_table(terminal_table(standing))
    console.echo(*legend(standing), *(f"note: {note}" for note in notes(standing)))
    console.echo(f"runs are stored in {ledger}{'' if out is None else f'; wrote {out}: the plots'}")


def _sparsities(text: str) -> list[float]:
    """The values of --edge-sparsity, separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--edge-sparsity takes numbers in [0, 1) such as .5,.9; got {text!r}.") from None
