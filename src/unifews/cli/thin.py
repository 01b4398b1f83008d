"""`unifews thin`: remove edges of a graph once, and write the graph that is left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unifews.cli import console
from unifews.cli.options import PRUNING, AsJson, Features, Overwrite, Seed, Undirected, flag, out_flag
from unifews.cli.propagate import dataset_at, with_directions
from unifews.errors import InputError

if TYPE_CHECKING:
    from unifews.core.graph import Graph

_METHOD = flag(
    "--method",
    panel=PRUNING,
    metavar="NAME",
    help="Pruning method with its settings, see unifews methods.",
)
_SPARSITY = flag("--sparsity", panel=PRUNING, metavar="FRACTION", help="Fraction of the edges to remove.")
_KEEP = flag("--keep", panel=PRUNING, metavar="N", help="Or the number of edges to keep.")


def thin(
    graph: Annotated[
        Path, typer.Argument(metavar="GRAPH", help="Edge list (.csv, .txt, .parquet, .npy), .npz, folder or dataset name.")
    ],
    out: Annotated[Path, out_flag("FOLDER|FILE.npz")],
    method: Annotated[str, _METHOD] = "unifews",
    sparsity: Annotated[float | None, _SPARSITY] = None,
    keep: Annotated[int | None, _KEEP] = None,
    features: Features = None,
    undirected: Undirected = None,
    seed: Seed = 42,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Remove edges of a graph once, and write the graph that is left for any program.

    FOLDER: Graph.open and all commands read it. FILE.npz: scipy.sparse.load_npz reads it.
    """
    from unifews.methods.thin import selector_of, thin
    from unifews.storage.atomic import check_place

    if out.suffix not in ("", ".npz"):
        raise InputError(f"--out is {str(out)!r}; expected a folder, or a file that ends in .npz.")
    selector_of(method)
    check_place(out, overwrite)
    whole, x = _load(graph, features)
    whole = with_directions(whole, graph, undirected)
    with console.progress("thinning") as progress:
        left = thin(whole, method, sparsity=sparsity, keep=keep, x=x, seed=seed, progress=progress)
    _write(left, out, overwrite)
    removed = 1 - left.num_edges / whole.num_edges if whole.num_edges else 0.0
    if as_json:
        counts = {"num_nodes": whole.num_nodes, "num_edges": whole.num_edges, "kept": left.num_edges}
        console.print_json({"graph": str(graph), "method": method, **counts, "sparsity": removed, "out": str(out)})
    else:
        console.echo(f"{removed:.1%} of {whole.num_edges:,} edges removed by {method}", f"wrote {out}: {left!r}")


def _load(path: Path, features: Path | None) -> tuple[Graph, Any]:
    """The graph, and features of fitting size if there are some to use."""
    from unifews.datasets.user_files import check_fit, check_there, read_features, read_fitting_graph
    from unifews.io.graphs import read_graph

    dataset = dataset_at(path)
    if dataset is None:
        check_there(path)
    if features is None:
        return dataset.graph if dataset else read_graph(path), None
    x = read_features(features)
    owner = str(features)
    return check_fit(dataset.graph, path, x.shape, owner) if dataset else read_fitting_graph(path, x.shape, owner), x


def _write(graph: Graph, out: Path, overwrite: bool) -> None:
    if not out.suffix:
        graph.save(out, overwrite=overwrite)
        return
    from scipy.sparse import save_npz

    from unifews.storage.atomic import atomic_file

    with atomic_file(out, overwrite=overwrite) as file:
        save_npz(file, graph.to_scipy())
