"""Edge lists that fit memory, as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import check_proportion
from unifews.core.graph import Graph
from unifews.datasets.convert import resolved
from unifews.errors import GraphError, InputError
from unifews.io.convert import check_ids_given, is_compressed
from unifews.io.edge_lists import EdgeList
from unifews.io.edge_sources import ArrayEdges, chunks_of, mixed_weights
from unifews.io.graphs import read_graph
from unifews.io.ids import factorize, merge

File = str | PathLike[str]

_CHUNK = 1 << 20  # edges parsed at a time


@overload
def read_edges(
    edges: File | Sequence[File],
    *,
    ids: Literal[False] = False,
    weights: bool | None = None,
    directed: bool = False,
    num_nodes: int | None = None,
) -> Graph: ...
@overload
def read_edges(
    edges: File | Sequence[File],
    *,
    ids: Literal[True],
    weights: bool | None = None,
    directed: bool = False,
    num_nodes: int | None = None,
) -> tuple[Graph, NDArray[Any]]: ...
def read_edges(
    edges: File | Sequence[File],
    *,
    ids: bool = False,
    weights: bool | None = None,
    directed: bool = False,
    num_nodes: int | None = None,
) -> Graph | tuple[Graph, NDArray[Any]]:
    """The graph of an edge list, in memory; with `ids=True`, the graph and the identifiers of its nodes.

    - `edges`: .csv, .tsv, .txt (or .gz), .parquet, .npy, .npz, as `convert_edges` reads them; several files make one list.
    - `ids`: the list holds identifiers, any integers or text, not node numbers. They are numbered in their order, integers
      ascending and text by its UTF-8 bytes, and returned beside the graph: int64 [n], or an array [n] of Python strings, whose
      entry i belongs to node i.
    - `weights`: None takes the weights of a list that has some, True demands them, False leaves them out.
    - `directed`: keep the direction of edges; default: the graph is undirected, with the reverse of every edge added.
    - `num_nodes`: where nodes beyond the largest number have no edges; not with `ids`.

    Copies of an edge merge, weights add up, self-loops are dropped, as in `Graph.from_edge_index`. For lists larger than
    memory, use `convert_edges`, which gives the same graph.

    >>> graph, ids = read_edges("follows.csv", ids=True)                       # doctest: +SKIP
    >>> ids[graph.indices[graph.indptr[7] : graph.indptr[8]]]                  # doctest: +SKIP
    array(['ada', 'grace'], dtype=object)
    """
    files, nodes = resolved(edges)
    check_ids_given(ids, files, num_nodes)
    num_nodes = nodes if num_nodes is None and not ids else num_nodes
    if is_compressed(files[0]):
        graph = read_graph(files[0], num_nodes=num_nodes)
        _check_weights(weights, graph.is_weighted, files)
        graph = Graph(graph.indptr, graph.indices) if weights is False else graph
        return graph if directed else graph.undirected()
    with TemporaryDirectory() as work:  # for arrays that must be unpacked
        chunks = [chunk for file in files for chunk in chunks_of(file, _CHUNK, Path(work), ids)]
        found = [ArrayEdges(file, _CHUNK, Path(work)).num_nodes for file in files if file.suffix == ".npz" and not ids]
    distinct, chunks = _numbered(chunks) if ids else (None, chunks)
    source, target = (np.concatenate([chunk[end] for chunk in chunks]) for end in (0, 1))
    weight = _joined([chunk.weight for chunk in chunks], weights, files)
    if distinct is not None:
        num_nodes = len(distinct)
    elif num_nodes is None:
        num_nodes = next((n for n in found if n is not None), None)
        if num_nodes is None and len(source):
            check_proportion(max(int(source.max()), int(target.max())) + 1, len(source), ", ".join(map(str, files)))
    if distinct is not None and not num_nodes:
        raise GraphError(f"{files[0]} holds no edges, so there are no identifiers and no nodes.")
    graph = Graph.from_edge_index(np.stack([source, target]), num_nodes, weight)
    graph = graph if directed else graph.undirected()
    return graph if distinct is None else (graph, distinct)


def _numbered(chunks: list[EdgeList]) -> tuple[NDArray[Any], list[EdgeList]]:
    """The identifiers in some edges, distinct and in order, and the edges between their numbers."""
    runs, between = zip(*map(factorize, chunks), strict=True)
    distinct, numbers = merge(runs)
    pairs = zip(numbers, between, strict=True)
    return distinct, [EdgeList(n[edges.source], n[edges.target], edges.weight) for n, edges in pairs]


def _joined(parts: Sequence[NDArray[Any] | None], weights: bool | None, files: Sequence[Path]) -> NDArray[Any] | None:
    """The weights of all edges, if there are some and they are wanted."""
    given = [part for part in parts if part is not None]
    _check_weights(weights, bool(given), files)
    if weights is False or not given:
        return None
    if len(given) < len(parts):
        raise mixed_weights()
    return np.concatenate(given)


def _check_weights(weights: bool | None, there: bool, files: Sequence[Path]) -> None:
    if weights and not there:
        raise InputError(f"weights=True was given, but {', '.join(map(str, files))} has none; call their column weight.")
