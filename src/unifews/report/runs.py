"""Runs in a page: accuracy against operations, and every number beside the unpruned run's and the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from html import escape
from typing import Any

from unifews.experiments.quantities import as_csv
from unifews.report.cells import Cell, Shown
from unifews.report.compare import Gain, Record, Row, baseline_of, labels_of, prunes
from unifews.report.figure import caption, figure
from unifews.report.plot import drawn
from unifews.report.sheet import sheet_html
from unifews.report.table import NONE, gains, legend, numbers, quantities, spread, values

_APART = 4  # settings that are named where labels do not tell runs apart, or as many as it takes
_HOPS, _LAYERS, _WIDTH, _EPOCHS = 20, 2, 512, 200  # of tab:dec
_FAMILIES = {"unifews-push": "unifews"}  # by what name the paper has them


def runs_html(records: Sequence[Record], name: str) -> str:
    """A picture and a table of runs; `name` is the picture's id."""
    return f"""<figure aria-label="{escape(caption(records))}">
{drawn(figure(records), name)}
<figcaption>Further left is cheaper, further up is better. Operations are all multiply-adds from features to classes, once for
all nodes, finding principal axes included. Open mark: unpruned; bars: standard deviation over seeds.</figcaption>
</figure>
{sheet_html(*_table(records), name, data=_data(records))}
<p>{escape(" ".join(_legend(records)))}</p>"""


def _table(records: Sequence[Record]) -> tuple[list[str], list[list[Cell]]]:
    """Names of the columns, and a row per run. What it gains over the unpruned run stands below each number."""
    columns: list[list[Cell]] = [list(column) for column in zip(*(_cells(r, records) for r in records), strict=True)]
    told = [(title, column) for title, column in zip(quantities(records), columns, strict=True) if not _is_empty(column)]
    papers = [_printed(record) for record in records]
    if any(cells[0] for cells in papers):
        titles = ("in the paper", "against the paper")
        told[1:1] = [(title, [cells[place] for cells in papers]) for place, title in enumerate(titles)]
    rows = zip(_names(records), *(column for _, column in told), strict=True)
    return ["run", *(title for title, _ in told)], [list(row) for row in rows]


def _names(records: Sequence[Record]) -> list[Shown]:
    """What each run is; below it how many seeds, which run of the ledger, and what sets it apart from others of its label."""
    labels = labels_of(records)
    cells = []
    for record, label in zip(records, labels, strict=True):
        alike = [other for other, name in zip(records, labels, strict=True) if name == label]
        seeds = len(record["seeds"])
        below = [f"{seeds} {'seed' if seeds == 1 else 'seeds'}", str(record["id"])[:12], *_apart(record, alike)]
        cells.append(Shown(label, None, ", ".join(below)))
    return cells


def _apart(record: Record, alike: Sequence[Record]) -> list[str]:
    """Settings in which a run differs from those of its label: what it takes to tell it from each, then a few more."""
    mine, others = _flat(record["spec"]), [_flat(other["spec"]) for other in alike if other is not record]
    # What the label says, or what is of no account where nothing is pruned.
    said = ("seed", "edge_", "weight_sparsity", "weight_threshold") if prunes(record) else ("seed", "edge_", "weight_")
    varying = [name for name in mine if not name.startswith(said) and any(other.get(name) != mine[name] for other in others)]
    needed: list[str] = []
    while varying and others:
        most = max(varying, key=lambda name: sum(other.get(name) != mine[name] for other in others))
        left = [other for other in others if other.get(most) == mine[most]]
        if len(left) == len(others):
            break
        needed, others = [*needed, most], left
    told = {*needed, *[name for name in varying if name not in needed][: max(0, _APART - len(needed))]}
    return [f"{name} {mine[name]}" for name in varying if name in told]


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, those of the recipe first: they differ most often."""
    return {**spec.get("recipe", {}), **{name: value for name, value in spec.items() if name != "recipe"}}


def _data(records: Sequence[Record]) -> str:
    """The runs as CSV, with all digits."""
    rows = []
    for record, label in zip(records, labels_of(records), strict=True):
        baseline, row = baseline_of(record, records), Row.of(record, label)
        gain = None if baseline is None else Gain.of(record, baseline)
        over = ["", ""] if gain is None else [gain.points, gain.spread]
        spec = [record["spec"][name] for name in ("dataset", "model", "method")]
        rows.append([*spec, *asdict(row).values(), row.operations, *over, published_score(record)])
    head = [*(field.name for field in fields(Row)), "operations", "against_unpruned", "against_unpruned_std", "in_the_paper"]
    return as_csv(["dataset", "model", "method", *head], rows)


def _cells(record: Record, records: Sequence[Record]) -> list[Shown]:
    row, baseline = Row.of(record), baseline_of(record, records)
    below = [""] * len(values(row)) if baseline is None else gains(Gain.of(record, baseline))
    told = zip(numbers(row), values(row), below, strict=True)
    return [Shown(text, value, "" if small == "-" else small) for text, value, small in told]


def _is_empty(column: Sequence[Cell]) -> bool:
    """An MLP has no edges, an unpruned model nothing that was removed."""
    return all(isinstance(cell, Shown) and cell.text in NONE for cell in column)


def _printed(record: Record) -> tuple[Cell, Cell]:
    """The paper's score of the same model, method and share, and how far ours is from it."""
    score = published_score(record)
    if score is None:
        return None, None
    row = Row.of(record)
    return Shown(f"{score:.1f}", score), Shown(f"{row.score - score:+.1f}{spread(row.std, row.seeds)}", row.score - score)


def published_score(record: Record) -> float | None:
    """What tab:dec prints for such a run: decoupled models, unpruned or with half of the edge products removed."""
    from unifews.experiments.definitions import find

    spec = record["spec"]
    if spec.get("weight_sparsity") or spec.get("weight_threshold") or record["metric"] != "accuracy":
        return None
    if (prunes(record) and spec.get("edge_sparsity") != 0.5) or not _is_of_the_table(spec):
        return None
    method = str(spec["method"]).partition(":")[0]
    name = _FAMILIES.get(method, method) if prunes(record) else "unpruned"
    printed = find("tab:dec").printed({"model": spec["model"], "dataset": record["dataset"]["name"], "as": name})
    score = printed.get("accuracy")
    return float(score) if isinstance(score, int | float) else None


def _is_of_the_table(spec: Mapping[str, Any]) -> bool:
    """Whether a model has the size of those in tab:dec, and the time to learn; what it is trained by is its own."""
    recipe = spec.get("recipe", {})
    size = spec.get("hops"), recipe.get("layers"), recipe.get("width")
    return size == (_HOPS, _LAYERS, _WIDTH) and recipe.get("epochs", 0) >= _EPOCHS


def _legend(records: Sequence[Record]) -> list[str]:
    sentences = legend(records)
    if any(baseline_of(record, records) for record in records):
        sentences.append("Below a number: against unpruned, the run of the same settings and seeds with nothing removed.")
    if any(published_score(record) is not None for record in records):
        sentences.append("In the paper: its tab:dec, by its own recipe; ±: ours.")
    return sentences
