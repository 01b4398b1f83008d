"""`thin`: remove edges of a graph once, and get back the kind of graph that was given.

A method of `unifews.methods` decides on a `Graph`; this module finds the edges that it keeps in the caller's own arrays, so
that edge features, labels and masks stay with their edges.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.checks import as_edges, scipy_of_torch
from unifews.core.graph import Graph
from unifews.errors import GraphError, InputError, unknown_name
from unifews.methods import registry
from unifews.methods.base import EdgeSelector, Rewirer
from unifews.resources import Progress

_STREAM = 17  # which random numbers of the seed


def thin(
    graph: Any,
    method: Any = "unifews",
    *,
    sparsity: float | None = None,
    keep: int | None = None,
    x: Any = None,
    seed: int = 42,
    progress: Progress | None = None,
    **settings: Any,
) -> Any:
    """The graph with fewer edges, chosen once. Undirected graphs stay undirected, self-loops stay, nodes keep their numbers.

    Args:
        graph: a `Graph`, PyG `Data` or `HeteroData` (every relation by itself), `edge_index` [2, m], a pair (edge_index,
            edge_weight or None), or a scipy sparse matrix, rows being targets. The result is of the same kind; edge
            features, labels and masks of a `Data` are those of the kept edges.
        method: ``"unifews"`` (by the size |T[u,v]| of the messages), ``"random"``, ``"dspar"``, ``"effective-resistance"``,
            ``"k-neighbor"``, ``"gdc-topk"``; a text with settings such as ``"k-neighbor:k=10"``, or an object.
        sparsity: fraction of the edges to remove.
        keep: or the number of edges to keep.
        x: features [n, f], for methods that use them; ``"unifews"`` then goes by |T[u,v]|·‖x[v]‖.
        seed: of random choices. The same seed gives the same edges.
        progress: called with (steps done, steps in all), for methods that take long.
        settings: of the method, such as ``k=10``.

    ``"dspar"`` and ``"effective-resistance"`` also return weights that make the sample unbiased (``factors=False``: none), and
    ``"gdc-topk"`` returns new edges with weights. A `Data` has them as `edge_weight`; to get them with an `edge_index`, pass
    a pair.

    >>> import numpy as np
    >>> square = Graph.from_edge_index(np.array([[0, 1, 1, 2, 2, 3, 3, 0], [1, 0, 2, 1, 3, 2, 0, 3]]))
    >>> thin(square, "random", sparsity=0.5)
    Graph(4 nodes, 4 edges, undirected)
    """
    how = _Thinner(selector_of(method, **settings), sparsity, keep, x, seed, progress)
    if isinstance(graph, Graph):
        return how.graph(graph)
    if hasattr(graph, "tocsr"):
        return how.matrix(graph)
    if hasattr(graph, "edge_types") and hasattr(graph, "edge_subgraph"):
        return how.hetero_data(graph)
    if hasattr(graph, "edge_attrs") and hasattr(graph, "num_nodes"):
        return how.data(graph)
    if isinstance(graph, tuple | list) and len(graph) == 2 and getattr(graph[0], "ndim", 0) == 2:
        return how.edge_index(graph[0], graph[1])
    if getattr(graph, "ndim", 0) == 2 and len(graph) == 2:
        return how.edge_index(graph)
    raise GraphError(
        f"`graph` is a {type(graph).__name__}; thin takes a Graph, PyG data, an edge_index [2, m], a pair (edge_index, "
        "edge_weight) or a scipy sparse matrix."
    )


def selector_of(method: Any, **settings: Any) -> EdgeSelector | Rewirer:
    """The method, of those that choose edges, with these settings."""
    found = registry.resolve(method)
    name = found.card.name
    if not isinstance(found, EdgeSelector | Rewirer):
        raise InputError(
            f"method {name!r} does not choose edges before training; write method={_either(thinning_methods())}.",
            setting="method",
        )
    if settings:
        known = registry.settings_of(name) if isinstance(method, str) else vars(found)
        for setting in settings:
            if setting not in known:
                raise unknown_name(f"setting of method {name!r}", setting, known)
        found = replace(found, **settings)  # type: ignore[type-var]
    chosen: EdgeSelector | Rewirer = found
    return chosen


def thinning_methods() -> list[str]:
    """Names of the methods that `thin` takes."""
    return [name for name in registry.names() if _thins(name)]


def _thins(name: str) -> bool:
    try:
        return issubclass(registry.find(name), EdgeSelector | Rewirer)
    except InputError:  # a package whose method cannot be loaded
        return False


def _either(names: list[str]) -> str:
    return " or ".join(map(repr, names))


@dataclass(frozen=True)
class _Thinner:
    method: EdgeSelector | Rewirer
    sparsity: float | None
    keep: int | None
    x: Any
    seed: int
    progress: Progress | None

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, _STREAM])

    # ----------------------------------------------------------------------------------------------------------- decisions

    def selected(self, graph: Graph) -> tuple[NDArray[np.bool_], NDArray[np.float32] | None]:
        """The kept edges in the order of the graph's rows, bool [m], and factors of their weights."""
        assert isinstance(self.method, EdgeSelector)
        found = self._select(graph)
        if graph.is_symmetric and not _is_paired(graph, found.keep):
            # A method that decides about each direction by itself decides about one of each edge, for both.
            targets = csr.targets(graph.indptr)
            below = graph.indices < targets
            group = np.empty(graph.num_edges, dtype=np.int64)
            group[below] = np.arange(int(below.sum()))
            order = np.lexsort((targets[~below], graph.indices[~below]))  # the reverses, in the order of the edges below
            group[np.flatnonzero(~below)[order]] = np.arange(len(order))
            indptr = np.concatenate([[0], np.cumsum(np.bincount(targets[below], minlength=graph.num_nodes))])
            half = Graph(indptr, graph.indices[below], None if graph.weight is None else graph.weight[below], _checked=True)
            found = replace(self, keep=None if self.keep is None else self.keep // 2)._select(half)
            factor = None if found.factor is None else found.factor[group]
            found = replace(found, keep=found.keep[group], factor=factor)
        for note in found.notes:
            warnings.warn(note, stacklevel=4)
        return found.keep, found.factor

    def _select(self, graph: Graph) -> Any:
        assert isinstance(self.method, EdgeSelector)
        return self.method.select(graph, x=self.x, sparsity=self.sparsity, keep=self.keep, rng=self.rng)

    def rewired(self, graph: Graph) -> Any:
        """A new graph, scipy CSR [targets, sources], or None if the method chooses among the edges there are."""
        if isinstance(self.method, EdgeSelector):
            return None
        return self.method.rewire(graph, sparsity=self.sparsity, keep=self.keep, rng=self.rng, progress=self.progress)

    # --------------------------------------------------------------------------------------------------- kinds of graphs

    def graph(self, graph: Graph) -> Graph:
        new = self.rewired(graph)
        if new is not None:
            return Graph.from_scipy(new)
        kept, factor = self.selected(graph)
        weight = graph.weight
        if factor is not None:
            weight = factor if weight is None else weight * factor
        indptr = np.concatenate([[0], np.cumsum(kept, dtype=np.int64)])[graph.indptr]
        weight = None if weight is None else np.ascontiguousarray(weight[kept])
        return Graph(indptr, graph.indices[kept], weight, _symmetric=True if graph.is_symmetric else None, _checked=True)

    def matrix(self, matrix: Any) -> Any:
        """A scipy sparse matrix; its diagonal stays."""
        import scipy.sparse as sp

        graph = Graph.from_scipy(matrix)
        new = self.rewired(graph)
        if new is None:
            new = self.graph(graph).to_scipy() + sp.diags_array(matrix.diagonal())
        new = sp.csr_matrix(new) if isinstance(matrix, sp.spmatrix) else sp.csr_array(new)
        return new.astype(matrix.dtype if matrix.dtype.kind == "f" else new.dtype).asformat(matrix.format)

    def edge_index(self, edge_index: Any, *weight: Any) -> Any:
        """An edge_index, or a pair of one and its weights."""
        edges = as_edges(edge_index)
        n = int(edges.max()) + 1 if edges.size else 0
        if self.x is not None:
            n = max(n, len(self.x))
        graph = Graph.from_edge_index(edges, n, weight[0] if weight and weight[0] is not None else None)
        new = self.rewired(graph)
        if new is None:
            kept, factor = self._of_edges(graph, edges)
            result = edge_index[:, _like(kept, edge_index)]
            values = weight[0] if weight else None
            if values is not None:
                values = values[_like(kept, values)]
        else:
            coo = new.tocoo()
            result, values, factor = _like(np.stack([coo.col, coo.row]).astype(np.int64), edge_index), None, coo.data
        if factor is None:
            return (result, values) if weight else result
        if not weight:
            raise InputError(
                f"method {self.method.card.name!r} gives the kept edges weights; pass (edge_index, None) to get a pair back"
                + (", or factors=False for none." if new is None else ".")
            )
        factor = _like(factor, edge_index)
        return result, factor if values is None else values * factor

    def _of_edges(self, graph: Graph, edges: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.float32] | None]:
        """Which of the caller's edges [2, e] are kept, bool [e], and the factors of those. Self-loops are."""
        kept, factor = self.selected(graph)
        n, loops = max(graph.num_nodes, 1), edges[0] == edges[1]
        keys = csr.targets(graph.indptr) * n + graph.indices
        place = np.searchsorted(keys, edges[1].astype(np.int64) * n + edges[0])
        place = np.minimum(place, max(len(keys) - 1, 0))
        mine = loops.copy()
        mine[~loops] = kept[place[~loops]]
        if factor is None:
            return mine, None
        factors = np.ones(len(loops), dtype=np.float32)
        factors[~loops] = factor[place[~loops]]
        return mine, factors[mine]

    def data(self, data: Any) -> Any:
        """A PyG `Data`, copied."""
        import torch

        if getattr(data, "edge_index", None) is None:
            return self._data_of_matrix(data)
        edges, weight = as_edges(data.edge_index), getattr(data, "edge_weight", None)
        graph = Graph.from_edge_index(edges, data.num_nodes, weight)
        new = self.rewired(graph)
        if new is not None:
            coo, result = new.tocoo(), data.clone()
            for name in data.edge_attrs():  # those of edges that are no longer there
                del result[name]
            result.edge_index = _like(np.stack([coo.col, coo.row]).astype(np.int64), data.edge_index)
            result.edge_weight = _like(coo.data, data.edge_index)
            return result
        kept, factor = self._of_edges(graph, edges)
        result = data.edge_subgraph(torch.from_numpy(kept).to(data.edge_index.device))
        if factor is not None:
            factors = _like(factor, data.edge_index)
            result.edge_weight = factors if weight is None else result.edge_weight * factors
        return result

    def _data_of_matrix(self, data: Any) -> Any:
        """A PyG `Data` with a sparse matrix `adj_t` instead of an edge_index."""
        import torch

        graph = Graph.from_pyg(data)
        if not isinstance(data.adj_t, torch.Tensor):
            raise GraphError(
                f"`adj_t` is a {type(data.adj_t).__name__}; thin takes an edge_index, or adj_t as a torch.sparse tensor."
            )
        matrix = self.matrix(scipy_of_torch(data.adj_t, "adj_t"))
        coo, result = matrix.tocoo(), data.clone()
        places = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
        values = torch.from_numpy(coo.data.astype(np.float32)).to(data.adj_t.dtype)
        new = torch.sparse_coo_tensor(places, values, (graph.num_nodes, graph.num_nodes)).coalesce()
        result.adj_t = (new.to_sparse_csr() if data.adj_t.layout == torch.sparse_csr else new).to(data.adj_t.device)
        return result

    def hetero_data(self, data: Any) -> Any:
        """A PyG `HeteroData`, every relation by itself."""
        import torch

        if self.keep is not None:
            raise InputError("`keep` is a number of edges of one relation; for a HeteroData give `sparsity`.", setting="keep")
        if isinstance(self.method, Rewirer):
            raise InputError(
                f"method {self.method.card.name!r} needs one kind of node; pass data.to_homogeneous().", setting="method"
            )
        subsets, weights = {}, {}
        for relation in data.edge_types:
            store = data[relation]
            if "edge_index" not in store:
                raise GraphError(f"relation {relation} has no edge_index; thin takes relations as edge_index [2, m].")
            edges = as_edges(store.edge_index)
            senders, targets = (data[kind].num_nodes for kind in (relation[0], relation[-1]))
            if relation[0] != relation[-1]:  # two sets of nodes: the targets are numbered after the senders
                edges = np.stack([edges[0], edges[1] + senders])
                targets += senders
            weight = store.get("edge_weight")
            graph = Graph.from_edge_index(edges, targets, weight)
            kept, factor = replace(self, x=None)._of_edges(graph, edges)
            subsets[relation] = torch.from_numpy(kept).to(store.edge_index.device)
            if factor is not None:
                factors = _like(factor, store.edge_index)
                weights[relation] = factors if weight is None else weight[subsets[relation]] * factors
        result = data.edge_subgraph(subsets)
        for relation, values in weights.items():
            result[relation].edge_weight = values
        return result


def _is_paired(graph: Graph, keep: NDArray[np.bool_]) -> bool:
    """Whether both directions of every undirected edge are kept or removed together."""
    from scipy.sparse import csr_array

    n = graph.num_nodes
    kept = csr_array((keep.astype(np.int8), graph.indices, graph.indptr), shape=(n, n))
    return bool((kept != kept.T).nnz == 0)


def _like(values: NDArray[Any], other: Any) -> Any:
    """As a numpy array or a torch tensor on the same device, whichever the other is."""
    if not hasattr(other, "detach"):
        return values
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(other.device)
