"""`unifews compare`: methods side by side at the same shares, beside the unpruned model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unifews.cli import live, output
from unifews.cli.desk import report_skipped
from unifews.cli.run import Interrupted, own_process
from unifews.errors import InputError

if TYPE_CHECKING:
    from unifews.report.comparison import Standing


def compare(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="A known name (unifews data list), a dataset folder or .npz.")
    ],
    model: Annotated[
        str, typer.Option(metavar="NAME", help="gcn, gat, sage, gcnii or gin, whose layers propagate; appnp or sgc, once.")
    ] = "gcn",
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Such as unifews,random,dspar; all that can do this model unless given; see unifews methods."
        ),
    ] = "all",
    edge_sparsity: Annotated[
        str, typer.Option(metavar="S,S,…", help="Shares of the edge products to remove.")
    ] = ".3,.5,.8,.9",
    weight_sparsity: Annotated[
        float | None, typer.Option(metavar="S", help="Share of the weights to remove besides, by methods that can.")
    ] = None,
    paper_form: Annotated[
        bool, typer.Option("--paper-form", help="Show unifews in the paper's form too: whole edges, nested.")
    ] = False,
    seeds: Annotated[int, typer.Option(metavar="N", help="How many seeds, the same for all.")] = 3,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The first; it decides split, weights and batches.")] = None,
    split: Annotated[
        str | None, typer.Option(metavar="stratified|stored", help="50/25/25 by seed, or the dataset's own; as it is meant.")
    ] = None,
    hops: Annotated[int | None, typer.Option(metavar="L", help="Propagation steps of appnp and sgc, 20 unless given.")] = None,
    width: Annotated[int | None, typer.Option(metavar="N", help="Hidden units of a layer.")] = None,
    layers: Annotated[int | None, typer.Option(metavar="N", help="Layers of the classifier, or of the model.")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Epochs at most, those of searches included.")] = None,
    ledger: Annotated[
        Path, typer.Option(metavar="DIR", help="Where records are kept; what is there is not trained again.")
    ] = Path("runs"),
    jobs: Annotated[int, typer.Option(metavar="N", help="How many trainings run at a time; they share out the cores.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="PAGE.html", help="Write a page with pictures and the table.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print records and differences as JSON.")] = False,
) -> None:  # fmt: skip
    """Compare methods: accuracy, operations and cost of training, each at the same shares of removed edges.

    Every run is kept as soon as it is done, and finished seeds of one that was stopped are too: the same command goes on
    where it was. Other commands with the same ledger share its runs.
    """
    own_process()
    if out is not None:
        output.check_page(out)
    shares = _shares(edge_sparsity)
    given = {"seed": seed, "split": split, "hops": hops, "width": width, "layers": layers, "epochs": epochs}
    settings = {name: value for name, value in given.items() if value is not None}
    from unifews.experiments.compare import compare as run
    from unifews.report import comparison
    from unifews.training.ledger import Ledger

    report_skipped(Ledger(ledger))
    try:
        with live.cells("loading") as progress:
            found = run(
                dataset, model, methods, edge_sparsity=shares, weight_sparsity=weight_sparsity, paper_form=paper_form,
                seeds=seeds, ledger=ledger, jobs=jobs, progress=progress, **settings,
            )  # fmt: skip
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted; what was finished is in {ledger}, and the same command goes on from there.") from error
    standing = comparison.Standing(found)
    if out is not None:
        comparison.write_page(standing, out)
    if as_json:
        output.print_json(standing.to_dict() | {"ledger": str(ledger), "page": None if out is None else str(out)})
    else:
        _show(standing, ledger, out)
    for reason in comparison.failures(found):
        output.note(reason)


def _show(standing: Standing, ledger: Path, out: Path | None) -> None:
    from unifews.report.comparison import legend, notes, terminal_table

    table = terminal_table(standing)
    console = output.console(table)
    record, seeds = standing.found.unpruned, standing.unpruned.seeds
    data: dict[str, Any] = record["dataset"]
    console.print(
        f"{record['spec']['model'].upper()} on {data['name']}, {seeds} {'seeds' if seeds > 1 else 'seed'}: {data['nodes']:,} "
        f"nodes, {data['edges']:,} edges, {data['features']:,} features, {data['classes']} classes",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    console.print(table)
    console.print(*legend(standing), sep="\n", soft_wrap=True, markup=False)
    for note in notes(standing):
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    wrote = "" if out is None else f"; wrote {out}: the pictures"
    console.print(f"kept in {ledger}{wrote}", soft_wrap=True, markup=False)


def _shares(text: str) -> list[float]:
    shares = []
    for part in text.split(","):
        try:
            shares.append(float(part))
        except ValueError:
            shares.append(math.nan)
        if not 0 <= shares[-1] < 1:
            raise InputError(
                f"--edge-sparsity is one or several shares from 0 to below 1, such as .5,.9; {part.strip() or text!r} is none."
            )
    return shares
