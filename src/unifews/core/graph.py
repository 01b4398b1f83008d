"""`Graph`: nodes and directed edges, immutable, compressed by target.

Row u lists the sources v of the edges v → u, because every product of this package pulls: row u of T·P gathers what
flows into u. Self-loops are never stored; the diffusion matrix adds its own (Ā = A + I).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unifews.core import csr, graph_folder
from unifews.core.checks import (
    as_edges,
    as_integers,
    as_weights,
    check_rows,
    check_sparse,
    count,
    count_nodes,
    scipy_of_torch,
)
from unifews.core.csr import Csr
from unifews.errors import GraphError, InputError, ShapeError

_SHOW_DIRECTION = 3_000_000  # printing a graph may cost a tenth of a second, not a minute


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """n nodes and m directed edges without self-loops or copies. Build one with a `from_…` function or `open`.

    Arrays that come from outside are read once and checked, because kernels trust them (`csr.examine`, 0.5 ns per edge). They
    must not be changed afterwards. An undirected edge is stored twice. 4 bytes per edge, 8 when weighted, plus 8 per node.

    >>> Graph.from_edge_index(np.array([[0, 1, 1, 2], [1, 0, 2, 1]]))
    Graph(3 nodes, 4 edges, undirected)
    """

    indptr: NDArray[np.int64]  # [n + 1]
    indices: NDArray[Any]  # [m], sources, ascending within a row; int32 up to 2^31 - 1 nodes
    weight: NDArray[np.float32] | None = None  # [m], or None when every weight is 1
    dropped_self_loops: int = 0
    merged_duplicates: int = 0
    _symmetric: bool | None = field(default=None)  # the value of `is_symmetric`, where it is known without a check
    _checked: bool = field(default=False)  # the arrays were just made here, or have been examined

    def __post_init__(self) -> None:
        # A view is made read-only rather than the caller's own array.
        for name in ("indptr", "indices", "weight"):
            array = getattr(self, name)
            if array is not None:
                if not isinstance(array, np.ndarray):
                    kind = type(array).__name__
                    raise InputError(f"`{name}` is a {kind}; Graph keeps numpy arrays. Graph.from_csr converts.")
                view = array.view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)
        if not self._checked:
            self._check()

    def _check(self) -> None:
        n = len(self.indptr) - 1
        index = csr.index_dtype(n)
        wanted = {"indptr": np.int64, "indices": index, "weight": np.float32}
        for name, dtype in wanted.items():
            array = getattr(self, name)
            if array is not None and (array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous):
                raise InputError(
                    f"`{name}` is {array.dtype.name} {list(array.shape)}; a graph of {count(n, 'node')} keeps it as a "
                    f"contiguous {np.dtype(dtype).name} vector. Graph.from_csr takes and converts arrays of any type."
                )
        if self.weight is not None and len(self.weight) != len(self.indices):
            raise ShapeError(f"`weight` has {len(self.weight):,} numbers; it must have one per entry, {len(self.indices):,}.")
        seen = check_rows(self.indptr, self.indices, self.weight)
        if not seen.is_canonical:
            raise GraphError(
                "these rows are not sorted and free of copies, self-loops and zero, negative or infinite weights. "
                "Graph.from_csr repairs what can be repaired."
            )
        object.__setattr__(self, "_symmetric", seen.symmetric)
        object.__setattr__(self, "_checked", True)

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Directed edges off the diagonal."""
        return len(self.indices)

    @property
    def is_weighted(self) -> bool:
        return self.weight is not None

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        """Stored edges into each node, int64 [n]. Counts edges, not weights, and no self-loop."""
        degree = np.diff(self.indptr)
        degree.flags.writeable = False
        return degree

    @cached_property
    def is_symmetric(self) -> bool:
        """True when every edge has its reverse, of the same weight. Costs one pass over the edges, once (`csr.examine`)."""
        if self._symmetric is None:
            return csr.examine(self.indptr, self.indices, self.weight).symmetric
        return self._symmetric

    def __repr__(self) -> str:
        parts = [count(self.num_nodes, "node"), count(self.num_edges, "edge")]
        if self.num_edges <= _SHOW_DIRECTION or self._symmetric is not None or "is_symmetric" in self.__dict__:
            parts.append("undirected" if self.is_symmetric else "directed")
        if self.is_weighted:
            parts.append("weighted")
        return f"Graph({', '.join(parts)})"

    # ------------------------------------------------------------------------------------------------- from elsewhere

    @classmethod
    def from_edge_index(
        cls, edge_index: ArrayLike, num_nodes: int | None = None, edge_weight: ArrayLike | None = None
    ) -> Graph:
        """A graph from the edges edge_index[0, e] → edge_index[1, e], PyG's convention.

        Shapes: `edge_index` integers [2, m], `edge_weight` [m], numpy or torch. Copies of an edge merge into one, or
        into the sum of their weights; edges of weight 0 are left out. Without `num_nodes`, the largest number determines it.

        One sort of 64-bit keys: 5 to 7 s for 140 M edges on two cores, 12 bytes each; six times that if weighted.
        """
        if num_nodes is None and hasattr(edge_index, "sparse_size"):  # torch_geometric.EdgeIndex
            num_nodes = max((side for side in edge_index.sparse_size() if side is not None), default=None)
        edges = as_edges(edge_index)
        n = count_nodes(edges, num_nodes)
        if edge_weight is None:
            return cls._from_csr(csr.compress(edges[0], edges[1], None, n))
        weight = as_weights(edge_weight, edges.shape[1], "edge_weight", "edge")
        edge = weight != 0
        if not edge.all():
            edges, weight = edges[:, edge], weight[edge]
        return cls._from_csr(csr.compress(edges[0], edges[1], weight, n))

    @classmethod
    def from_csr(cls, indptr: ArrayLike, indices: ArrayLike, weight: ArrayLike | None = None, *, check: bool = True) -> Graph:
        """A graph from compressed rows: indices[indptr[u]:indptr[u+1]] are the sources of the edges into u.

        Shapes: `indptr` [n + 1], `indices` [m], `weight` [m]. Sorted rows without copies of an edge, self-loops or zero
        weights are taken as they are and share memory with the caller; anything else is repaired. With `check=False` rows
        that would need repair are an error; numbers outside the graph are one in any case.
        """
        pointers = as_integers(indptr, "indptr").astype(np.int64, copy=False)
        sources = as_integers(indices, "indices")
        if sources.dtype not in (np.int32, np.int64):
            sources = sources.astype(np.int64)
        pointers, sources = np.ascontiguousarray(pointers), np.ascontiguousarray(sources)
        values = None if weight is None else np.ascontiguousarray(as_weights(weight, len(sources), "weight", "entry"))
        seen = check_rows(pointers, sources, values)
        n = len(pointers) - 1
        sources = sources.astype(csr.index_dtype(n), copy=False)
        if seen.is_canonical:
            return cls._from_csr(Csr(pointers, sources, values, 0, 0), seen.symmetric)
        if not check:
            raise GraphError(
                "these rows are not sorted and free of copies, self-loops and zero weights. Without check=False, from_csr "
                "repairs that."
            )
        targets = csr.targets(pointers)
        if values is not None and not values.all():
            edge = values != 0
            sources, targets, values = sources[edge], targets[edge], values[edge]
        return cls._from_csr(csr.compress(sources, targets, values, n))

    @classmethod
    def from_scipy(cls, adj: Any) -> Graph:
        """A graph from a scipy sparse matrix: adj[u, v] is the weight of the edge v → u, so adj @ x gathers into rows.

        Copies add up, as they do in scipy; explicit zeros are left out; a matrix of ones gives an unweighted graph.
        """
        if not hasattr(adj, "tocsr"):
            raise InputError(
                f"from_scipy takes a scipy sparse matrix, not {type(adj).__name__}. "
                f"Write scipy.sparse.csr_array(adj), or use from_edge_index."
            )
        if adj.ndim != 2 or adj.shape[0] != adj.shape[1]:
            raise ShapeError(f"an adjacency matrix is square, and this one has shape {list(adj.shape)}.")
        rows = check_sparse(adj, "adj")
        weight = None if rows.dtype == bool and rows.data.all() else rows.data
        return cls.from_csr(rows.indptr, rows.indices, weight)

    @classmethod
    def from_pyg(cls, data: Any) -> Graph:
        """A graph from a torch_geometric `Data`: its `edge_index` and, if present, `edge_weight`; else its `adj_t`.

        `edge_attr` is not taken for a weight, since it may hold anything; assign it to `edge_weight` if it is one.
        """
        if getattr(data, "edge_index", None) is not None:
            return cls.from_edge_index(data.edge_index, data.num_nodes, getattr(data, "edge_weight", None))
        adj_t = getattr(data, "adj_t", None)
        if adj_t is None:
            raise GraphError(
                f"this {type(data).__name__} has neither edge_index nor adj_t. For a HeteroData, pass data.to_homogeneous()."
            )
        if hasattr(adj_t, "csr"):  # torch_sparse.SparseTensor
            indptr, indices, value = adj_t.csr()
        else:
            rows = check_sparse(scipy_of_torch(adj_t, "adj_t"), "adj_t")
            indptr, indices, value = rows.indptr, rows.indices, rows.data
        # A torch tensor cannot do without values, so PyG writes ones where it means "no weights".
        if value is not None and bool((value == 1).all()):
            value = None
        return cls.from_csr(indptr, indices, value)

    @classmethod
    def from_networkx(cls, graph: Any, weight: str | None = None) -> Graph:
        """A graph from a networkx graph: node i is the i-th of `list(graph)`, and an undirected edge becomes two.

        `weight` names the edge attribute that holds weights.
        """
        if not hasattr(graph, "is_directed") or not hasattr(graph, "adj"):
            raise InputError(f"from_networkx takes a networkx graph, not {type(graph).__name__}.")
        number = {node: place for place, node in enumerate(graph)}
        ends = np.array([(number[u], number[v]) for u, v in graph.edges()], dtype=np.int64).reshape(-1, 2).T
        values = None
        if weight is not None:
            given = [value for _, _, value in graph.edges(data=weight)]
            if None in given:
                raise GraphError(f"{given.count(None):,} edges have no attribute {weight!r}; set it, or leave out `weight`.")
            values = np.array(given, dtype=np.float32)
        if not graph.is_directed():
            there = ends[0] != ends[1]
            ends = np.concatenate([ends, ends[::-1, there]], axis=1)
            values = None if values is None else np.concatenate([values, values[there]])
        return cls.from_edge_index(ends, len(number), values)

    @classmethod
    def from_dgl(cls, graph: Any, weight: str | None = None) -> Graph:
        """A graph from a homogeneous DGL graph; `weight` names the edge data that holds weights."""
        if not hasattr(graph, "edges") or not hasattr(graph, "is_homogeneous"):
            raise InputError(f"from_dgl takes a DGL graph, not {type(graph).__name__}.")
        if not graph.is_homogeneous:
            raise GraphError(
                "this DGL graph has several types of nodes or edges; pass dgl.to_homogeneous(graph) or one relation."
            )
        if weight is not None and weight not in graph.edata:
            raise GraphError(f"this DGL graph has no edge data {weight!r}; it has {', '.join(graph.edata) or 'none'}.")
        source, target = graph.edges()
        values = None if weight is None else graph.edata[weight]
        return cls.from_edge_index(np.stack([np.asarray(source.cpu()), np.asarray(target.cpu())]), graph.num_nodes(), values)

    @classmethod
    def open(cls, folder: str | PathLike[str], *, verify: bool | None = None) -> Graph:
        """The graph in a folder written by `save`, memory-mapped: opening costs no memory.

        Every array is read once and its invariants are checked (docs/FORMAT.md), at 0.5 ns per edge or the speed of the disk.
        `verify=True` compares the checksums of the files too, `False` does not; by default small graphs' are, up to 64 MB.
        """
        stored = graph_folder.read(Path(folder), verify=verify)
        meta = stored.meta
        return cls(
            stored.indptr,
            stored.indices,
            stored.weight,
            meta["dropped_self_loops"],
            meta["merged_duplicates"],
            meta["symmetric"],
            _checked=True,
        )

    @classmethod
    def _from_csr(cls, rows: Csr, symmetric: bool | None = None) -> Graph:
        weight = rows.weight
        if weight is not None:
            if not np.isfinite(weight).all():
                raise GraphError("the weights of the copies of an edge add up to more than float32 can hold.")
            if (weight == 1).all():
                weight = None
        return cls(rows.indptr, rows.indices, weight, rows.loops, rows.merged, symmetric, _checked=True)

    # --------------------------------------------------------------------------------------------------- to elsewhere

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the graph as a folder (docs/FORMAT.md) that is either complete or absent.

        An existing graph is replaced only with `overwrite=True`, and nothing else is ever replaced.
        """
        graph_folder.write(Path(folder), self.stored(), overwrite=overwrite)

    def stored(self) -> graph_folder.Stored:
        """What a folder holds of this graph: its arrays and the facts beside them."""
        meta = {
            "num_nodes": self.num_nodes,
            "num_edges": self.num_edges,
            "weighted": self.is_weighted,
            "symmetric": self.__dict__.get("is_symmetric", self._symmetric),
            "dropped_self_loops": self.dropped_self_loops,
            "merged_duplicates": self.merged_duplicates,
        }
        return graph_folder.Stored(self.indptr, self.indices, self.weight, meta)

    def to_scipy(self) -> Any:
        """The adjacency matrix A, without self-loops, as a float32 scipy CSR array: A[u, v] weighs the edge v → u."""
        from scipy.sparse import csr_array

        weight = np.ones(self.num_edges, dtype=np.float32) if self.weight is None else self.weight
        return csr_array((weight, self.indices, self.indptr), shape=(self.num_nodes, self.num_nodes))

    def to_edge_index(self) -> NDArray[np.int64]:
        """The edges as int64 [2, m], sources in the first row, ordered by target and then by source."""
        return np.stack([self.indices.astype(np.int64), csr.targets(self.indptr)])

    def to_pyg(self, x: Any = None, y: Any = None) -> Any:
        """A torch_geometric `Data`, with `edge_weight` if the graph is weighted; features x and labels y become tensors."""
        import torch
        from torch_geometric.data import Data

        data = Data(edge_index=torch.from_numpy(self.to_edge_index()), num_nodes=self.num_nodes)
        if self.weight is not None:
            data.edge_weight = torch.from_numpy(self.weight.copy())
        for name, values in (("x", x), ("y", y)):
            if values is not None:
                data[name] = torch.as_tensor(values)
        return data

    def to_networkx(self) -> Any:
        """A networkx `Graph`, or a `DiGraph` of a directed graph; weights as edge attribute ``"weight"``."""
        import networkx

        source, target = self.to_edge_index().tolist()
        graph = networkx.Graph() if self.is_symmetric else networkx.DiGraph()
        graph.add_nodes_from(range(self.num_nodes))
        if self.weight is None:
            graph.add_edges_from(zip(source, target, strict=True))
        else:
            graph.add_weighted_edges_from(zip(source, target, self.weight.tolist(), strict=True))
        return graph

    def to_dgl(self) -> Any:
        """A DGL graph; weights as edge data ``"weight"``."""
        import dgl
        import torch

        source, target = (torch.from_numpy(ends) for ends in self.to_edge_index())
        graph = dgl.graph((source, target), num_nodes=self.num_nodes)
        if self.weight is not None:
            graph.edata["weight"] = torch.from_numpy(self.weight.copy())
        return graph

    def transpose(self) -> Graph:
        """Every edge reversed. Costs one sort of the edges."""
        return self._relabel(csr.targets(self.indptr), self.indices)

    def undirected(self) -> Graph:
        """Every edge and its reverse; of both weights of an edge, the larger. A symmetric graph is returned unchanged."""
        if self.is_symmetric:
            return self
        if self.is_weighted:
            adjacency = self.to_scipy()
            both = Graph.from_scipy(adjacency.maximum(adjacency.T))
        else:
            edges = self.to_edge_index()
            both = Graph.from_edge_index(np.concatenate([edges, edges[::-1]], axis=1), self.num_nodes)
        # The counts are of the edges that were given: the reverses merged here are not copies of them.
        return Graph(
            both.indptr, both.indices, both.weight, self.dropped_self_loops, self.merged_duplicates, True, _checked=True
        )

    def permute(self, order: ArrayLike) -> Graph:
        """The same graph with its nodes renumbered: node i of the result is node order[i] of this one.

        Features and labels follow as x[order], y[order]. Costs one sort of the edges.
        """
        old = as_integers(order, "order")
        if old.shape != (self.num_nodes,) or not np.array_equal(np.sort(old), np.arange(self.num_nodes)):
            raise InputError(f"`order` must name each of the {count(self.num_nodes, 'node')} exactly once.")
        new = np.empty(self.num_nodes, dtype=self.indices.dtype)
        new[old] = np.arange(self.num_nodes)
        return self._relabel(new[self.indices], new[csr.targets(self.indptr)])

    def _relabel(self, source: NDArray[Any], target: NDArray[Any]) -> Graph:
        rows = csr.compress(source, target, self.weight, self.num_nodes)
        known = self.__dict__.get("is_symmetric", self._symmetric)
        return Graph(
            rows.indptr, rows.indices, rows.weight, self.dropped_self_loops, self.merged_duplicates, known, _checked=True
        )
