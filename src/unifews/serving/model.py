"""`FrozenModel`: a compressed model, for predictions only."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from unifews.core.checks import as_array, check_sparse
from unifews.core.graph import Graph
from unifews.errors import InputError, ShapeError
from unifews.kernels import threads_to_use
from unifews.nn.ops.linear import check_tensor
from unifews.nn.thinning import GraphThinner
from unifews.serving import model_folder
from unifews.serving.graph_steps import ProgramEdges, edge_tensors
from unifews.serving.packed_arrays import Json
from unifews.serving.products import Weight, sparse_rows
from unifews.serving.program import Program
from unifews.serving.runtime import BoundGraph, ProgramRun
from unifews.serving.subgraph import Nodes, SubgraphPlanner, hidden_layers

_ALL_NODES_FROM = 0.25  # fraction of the nodes from which all nodes are computed


class FrozenModel:
    """A model as steps over packed weights and kept edges: ``fast(x, edge_index)`` returns the scores of all nodes.

    On a graph other than the one it was compressed with, layers send the same columns, or compare with the same thresholds;
    where individual edges were removed, edges that the training graph did not have are kept.
    """

    def __init__(self, program: Program, *, requested: str = "", record: Json | None = None) -> None:
        self.program = program
        self.requested = requested
        """The requested pruning, as text."""
        self.record = record
        """Metadata of its training: JSON values, saved with the model."""
        self._widths = program.widths
        self._threads: int | None = None
        self._bound: tuple[BoundGraph, SubgraphPlanner] | None = None
        self._hidden: frozenset[int] = frozenset()
        """Steps whose results `predict` stores for all nodes."""
        self._edges_cache: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    # --------------------------------------------------------------------------------------------------------- properties

    @property
    def num_features(self) -> int:
        return self._widths[0]

    @property
    def num_outputs(self) -> int:
        return self._widths[-1]

    @property
    def weights(self) -> tuple[int, int]:
        """Weights kept, and entries of the matrices they are in."""
        arrays = [array for step in self.program.steps for array in step.arrays.values()]
        found = [(array.kept, array.shape[0] * array.shape[1]) for array in arrays if isinstance(array, Weight)]
        found += [step.settings["layer"].weights for step in self.program.steps if step.op == "layer"]
        return sum(kept for kept, _ in found), sum(whole for _, whole in found)

    @property
    def threads(self) -> int | None:
        """Threads that a call uses; None = every core this process may use. Results are equal, up to rounding in dense
        products."""
        return self._threads

    @threads.setter
    def threads(self, threads: int | None) -> None:
        self._threads = None if threads is None else threads_to_use(threads)

    def __repr__(self) -> str:
        kept, whole = self.weights
        pruned = f"pruned by {self.requested}" if self.requested and self.requested != "unpruned" else "nothing pruned"
        bound = f", bound to {self._bound[0].edges.num_nodes:,} nodes" if self._bound else ""
        return (
            f"FrozenModel({self.num_features:,} features → {self.num_outputs:,} scores in {len(self.program.steps)} steps, "
            f"{kept:,} of {whole:,} weights, {pruned}{bound})"
        )

    # ------------------------------------------------------------------------------------------------------------ predict

    def __call__(self, x: Any, edge_index: Any, edge_weight: Any = None) -> Tensor:
        """Scores of all nodes, float32 [n, outputs].

        Args:
            x: features [n, features]; torch or numpy, dense or sparse.
            edge_index: [2, m] of torch or numpy, row 0 sends and row 1 receives; a torch sparse matrix; or a `Graph`.
            edge_weight: [m], if the model takes edge weights.
        """
        return ProgramRun(self.program, self._bound_graph(x, edge_index, edge_weight), self._threads).all()

    def bind(self, x: Any, edge_index: Any, edge_weight: Any = None, *, cache: bool = True) -> FrozenModel:
        """Set the graph that `predict` works on; returns the model itself. `compress` binds the graph it is called with.

        Args:
            x: features, as in a call.
            edge_index: edges, as in a call.
            edge_weight: weights, as in a call.
            cache: let `predict` store the hidden values that the last layer reads, for all nodes: 4 bytes · nodes · their
                columns (`hidden_bytes`). They are computed for all nodes once the neighbourhoods of earlier calls have cost as
                much, and again after torch has written to x. Writes by NumPy are not noticed: bind again after them.
        """
        bound = self._bound_graph(x, edge_index, edge_weight)
        planner = SubgraphPlanner(self.program, bound.edges, sparse=bound.x.layout != torch.strided)
        self._bound = bound, planner
        self._hidden = hidden_layers(self.program, bound.edges) if cache else frozenset()
        return self

    @property
    def hidden_bytes(self) -> int:
        """Memory of the hidden values that `predict` has stored."""
        if self._bound is None:
            return 0
        known = self._bound[0].known
        return sum(known[number].nbytes for number in self._hidden if number in known)

    def predict(self, nodes: Any = None) -> Tensor:
        """Scores [nodes, outputs] of some nodes of the bound graph, computed from their neighbourhoods only.

        Args:
            nodes: a node number, several, or a boolean mask of all nodes; None = all nodes.

        Equal to the rows of a call with the whole graph, up to rounding. Repeated calls read stored values of the hidden layers
        (`bind`), and then cost one neighbourhood of the last layer.
        """
        if self._bound is None:
            raise InputError("this model is not bound to a graph; call bind(x, edge_index) first, or model(x, edge_index).")
        bound, planner = self._bound
        bound.refresh()
        run = ProgramRun(self.program, bound, self._threads)
        if nodes is None:
            return run.all()
        chosen = _node_numbers(nodes, bound.edges.num_nodes)
        if not len(chosen):
            return torch.zeros(0, self.num_outputs)
        once, back = np.unique(chosen, return_inverse=True) if len(chosen) > 1 else (chosen, None)
        if len(once) > _ALL_NODES_FROM * bound.edges.num_nodes:
            return run.all()[torch.from_numpy(chosen)]
        plan = planner.plan(once, bound.known)
        bound.work += plan.work
        if self._hidden and bound.work > planner.whole and not self._hidden <= bound.known.keys():
            run.store_hidden(self._hidden)
            plan = planner.plan(once, bound.known)
        out = run.some(plan, once)
        return out if back is None else out[torch.from_numpy(back)]

    def thin(self, edge_index: Any, edge_weight: Any = None) -> tuple[Tensor, Tensor | None]:
        """The edges of a graph that this model uses, and their weights: all, unless edges were pruned by ``entries="edge"``."""
        ends, weight = edge_tensors(edge_index, edge_weight)
        if self.program.thinning is None:
            return ends, weight
        graph = GraphThinner(self.program.thinning).of(ends)
        return graph.edges, None if weight is None else graph.only(weight)

    def _bound_graph(self, x: Any, edge_index: Any, edge_weight: Any) -> BoundGraph:
        x = features_of(x)
        if x.shape[1] != self.num_features:
            raise ShapeError(
                f"x has {x.shape[1]:,} features, but this model was trained on {self.num_features:,}; give it the same ones."
            )
        weighted = edge_weight is not None or (isinstance(edge_index, Graph) and edge_index.is_weighted)
        if weighted and not self.program.weighted:
            raise InputError("this model takes no edge weights; leave them out.")
        if isinstance(edge_index, Graph) and edge_index.num_nodes != len(x):
            raise ShapeError(f"x has {len(x):,} rows, but the graph has {edge_index.num_nodes:,} nodes; give one row per node.")
        return BoundGraph(x, self._program_edges(edge_index, edge_weight, len(x)))

    def _program_edges(self, edge_index: Any, edge_weight: Any, num_nodes: int) -> ProgramEdges:
        """Cached as long as the given tensors live and are not written to."""
        if not isinstance(edge_index, Tensor) or not isinstance(edge_weight, Tensor | None) or edge_index.is_inference():
            return ProgramEdges(self.program, edge_index, edge_weight, num_nodes)
        version = (edge_index._version, None if edge_weight is None else edge_weight._version, num_nodes)
        found = self._edges_cache.get(edge_index)  # type: ignore[no-untyped-call]
        if found is None or found[0] != version or found[1] is not edge_weight:
            found = (version, edge_weight, ProgramEdges(self.program, edge_index, edge_weight, num_nodes))
            self._edges_cache[edge_index] = found
        edges: ProgramEdges = found[2]
        return edges

    # --------------------------------------------------------------------------------------------------------------- files

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model as a folder of ``model.safetensors`` and ``config.json`` (docs/FORMAT.md), atomically."""
        model_folder.write_program(
            model_folder.as_path("folder", folder), self.program, self.requested, self.record, overwrite=overwrite
        )

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> FrozenModel:
        """Read such a folder. All of its content is validated, and no code in it is executed."""
        program, requested, record = model_folder.read_program(model_folder.as_path("folder", folder))
        return cls(program, requested=requested, record=record)


def features_of(x: Any) -> Tensor:
    """Features as float32 on the CPU: dense, or sparse compressed rows."""
    if hasattr(x, "tocsr"):
        rows = check_sparse(x, "x")
        bounds, columns, values = map(torch.from_numpy, (rows.indptr, rows.indices, rows.data))
        return sparse_rows(bounds, columns, values, rows.shape)
    if isinstance(x, Tensor):
        given = x.detach().cpu()
    else:
        array = _array(x)
        if array.dtype.kind not in "fiubc":
            raise InputError(f"x is a {type(x).__name__} without numeric values; give features [nodes, columns].")
        given = torch.from_numpy(np.ascontiguousarray(array))
    if given.ndim != 2:
        raise ShapeError(f"x has shape {list(given.shape)}; features are a matrix, one row per node.")
    if given.is_complex():
        raise InputError(f"x holds {given.dtype} numbers; features are real numbers.")
    if given.layout == torch.strided:
        return given.float().contiguous()
    check_tensor(given, "x")
    return (given if given.layout == torch.sparse_csr else given.to_sparse_csr()).float()


def _array(x: Any) -> NDArray[Any]:
    try:
        return as_array(x)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:  # a Data object, or rows of different lengths
        raise InputError(
            f"x is a {type(x).__name__} and not a matrix; give features [nodes, columns], such as data.x, and then the edges."
        ) from error


def _node_numbers(nodes: Any, num_nodes: int) -> Nodes:
    array = np.atleast_1d(as_array(nodes))
    if array.dtype == np.bool_:
        if array.shape != (num_nodes,):
            raise ShapeError(f"`nodes` is a mask of {array.size:,} values for {num_nodes:,} nodes; give one per node.")
        return array.nonzero()[0]
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InputError(f"`nodes` are node numbers, integers from 0 to {num_nodes - 1:,}; got {str(nodes)[:60]}.")
    if array.size and (int(array.min()) < 0 or int(array.max()) >= num_nodes):
        wrong = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise InputError(f"there is no node {wrong:,}; the bound graph has nodes 0 to {num_nodes - 1:,}.")
    return array.astype(np.int64)
