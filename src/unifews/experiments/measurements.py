"""Measurements that are not trainings: functions of a dataset, registered by name, run and recorded like trainings.

    @measurement("clock", cost=5.0)
    def clock(data: Dataset, *, sparsity: float, trials: int = 3) -> Values: ...

A measurement returns numbers by name, and curves as ``{"x": [...], "y": [...]}``. Its keyword arguments are its settings.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from unifews import __version__
from unifews.core.diffusion import Diffusion
from unifews.core.entry import Entries
from unifews.core.graph import Graph
from unifews.core.schemes import Appnp, Scheme, Sgc
from unifews.datasets.dataset import Dataset, summarise
from unifews.errors import unknown_name
from unifews.experiments.runner import Advance, Record, dataset_of, epoch_cost
from unifews.propagation import propagate
from unifews.theory.bounds import edge_factors
from unifews.training.fingerprint import fingerprint
from unifews.training.ledger import Ledger
from unifews.training.result import FORMAT, machine, versions
from unifews.training.spec import TrainSpec

if TYPE_CHECKING:
    from torch import nn

Values = dict[str, Any]
Function = Callable[..., Values]


@dataclass(frozen=True)
class MeasurementKind:
    """A registered measurement."""

    function: Function
    cost: float
    """Time relative to an epoch of training a decoupled model on the same dataset."""
    exclusive: bool
    """Whether no other cell may run at the same time: it measures times."""

    @property
    def source(self) -> str:
        """Its code and that of the functions of its module that it calls, without comments and docstrings: part of the id of
        a measurement, so that a changed measurement is run again and a reworded one is not."""
        found: dict[str, str] = {}
        pending = [self.function]
        while pending:
            function = pending.pop()
            if function.__name__ not in found:
                found[function.__name__] = _code(function)
                module = vars(sys.modules[function.__module__])
                called = (module.get(name) for name in function.__code__.co_names)
                pending += [each for each in called if inspect.isfunction(each) and each.__module__ == function.__module__]
        return "\n".join(found[name] for name in sorted(found))


def _code(function: Function) -> str:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    if ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:]
    return ast.unparse(tree)


_KINDS: dict[str, MeasurementKind] = {}


def measurement(name: str, *, cost: float = 20.0, exclusive: bool = False) -> Callable[[Function], Function]:
    """Registers the decorated function under this name."""

    def register(function: Function) -> Function:
        _KINDS[name] = MeasurementKind(function, cost, exclusive)
        return function

    return register


def kind_of(name: str) -> MeasurementKind:
    """The registered measurement of this name."""
    if name not in _KINDS:
        raise unknown_name("measurement", name, _KINDS)
    return _KINDS[name]


@dataclass(frozen=True)
class Measurement:
    """One measurement on one dataset, as a cell of `run_cells`."""

    name: str
    settings: Mapping[str, Any]
    source: str | Dataset
    id: str
    what: str
    cost: float

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any]) -> Measurement:
        """A checked measurement; `settings` include the dataset."""
        kind, rest = kind_of(name), dict(settings)
        source = rest.pop("dataset")
        known = dict(list(inspect.signature(kind.function).parameters.items())[1:])
        for setting in rest:
            if setting not in known:
                raise unknown_name(f"setting of measurement {name!r}", setting, known)
        data = dataset_of(source)
        defaults = {setting: each.default for setting, each in known.items() if each.default is not each.empty}
        text = json.dumps([name, defaults | rest, fingerprint(data), __version__, kind.source], sort_keys=True)
        what = " ".join([data.name, name, *(f"{setting} {value}" for setting, value in rest.items())])
        cost = kind.cost * epoch_cost(data, TrainSpec.of({"dataset": data.name}))
        return cls(name, rest, source, hashlib.sha256(text.encode()).hexdigest()[:12], what, cost)

    def run(self, ledger: Ledger, advance: Advance) -> Record:
        """See `unifews.experiments.runner.Cell`."""
        data = dataset_of(self.source)
        advance(0.0, "measuring")
        began = perf_counter()
        found = kind_of(self.name).function(data, **self.settings)
        curves = {name: value for name, value in found.items() if isinstance(value, dict)}
        record = {
            "format": FORMAT,
            "id": self.id,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "measurement": self.name,
            "settings": {"dataset": data.name, **self.settings},
            "values": {name: value for name, value in found.items() if name not in curves},
            "curves": curves,
            "seconds": {"measure": perf_counter() - began},
            "versions": versions(),
            "machine": machine(),
        }
        ledger.append(record)
        return record


# --------------------------------------------------------------------------------------------------------------- datasets


@measurement("counts", cost=2.0)
def counts(data: Dataset) -> Values:
    """Nodes, directed edges without and with self-loops, features, classes, split sizes in percent (tab:dataset)."""
    summary = summarise(data)
    parts = [100 * part / summary.labelled for part in summary.split_sizes]
    return {
        "nodes": summary.num_nodes,
        "edges": summary.num_edges,
        "edges_and_loops": summary.num_edges + summary.num_nodes,
        "features": summary.num_features,
        "classes": summary.num_classes,
        **dict(zip(("train", "val", "test"), parts, strict=True)),
        "homophily": summary.homophily,
    }


@measurement("spread", cost=2.0)
def spread(data: Dataset, *, bins: int = 30) -> Values:
    """Densities of degrees, entries of T (r = ½) and first messages ‖T[u,v]·x[v]‖ over logarithmic bins (fig:proc)."""
    graph = data.graph
    factors = edge_factors(Diffusion(graph))
    messages = factors * _row_norms(data.x)[graph.indices]
    return {
        "degrees": histogram(graph.degree[graph.degree > 0], bins),
        "entries of T": histogram(factors, bins),
        "messages": histogram(messages[messages > 0], bins),
        "largest degree": int(graph.degree.max()),
        "mean degree": graph.num_edges / graph.num_nodes,
    }


def _row_norms(x: Any) -> NDArray[np.float64]:
    """‖x[v]‖, [n]."""
    squares = x.multiply(x).sum(axis=1) if hasattr(x, "multiply") else np.square(x, dtype=np.float64).sum(axis=1)
    return np.sqrt(np.asarray(squares, np.float64).ravel())


def histogram(values: NDArray[Any], bins: int) -> dict[str, list[float]]:
    """Centres of the logarithmic bins that are not empty, and the density there."""
    low, high = float(values.min()), float(values.max())
    edges = np.geomspace(low, high * (1 + 1e-9), bins + 1) if high > low else np.array([low * 0.9, low * 1.1])
    count, _ = np.histogram(values, edges)
    filled = count > 0
    centre, density = np.sqrt(edges[1:] * edges[:-1]), count / (count.sum() * np.diff(edges))
    return {"x": centre[filled].tolist(), "y": density[filled].tolist()}


# ------------------------------------------------------------------------------------------------------------ propagation


@measurement("distance", cost=10.0)
def distance(
    data: Dataset,
    *,
    model: Literal["sgc", "appnp"] = "sgc",
    hops: int = 20,
    edge_sparsity: float | None = None,
    relative_threshold: float | None = None,
    entries: Entries = "block",
    basis: Literal["principal", "input"] = "principal",
    rank: int | None = None,
    inherit: bool = False,
) -> Values:
    """‖P̂ - P‖/‖P‖ and, of SGC, ‖P̂ - P*‖/‖P*‖ with P* = T^∞ X, in percent; sparsity and multiply-adds (fig:proc).

    SGC is T^L X here, which converges to P*.
    """
    scheme = scheme_of(model)
    unpruned = propagate(data.graph, data.x, scheme, hops)
    pruned = propagate(
        data.graph,
        data.x,
        scheme,
        hops,
        edge_sparsity=edge_sparsity,
        relative_threshold=relative_threshold,
        entries=entries,
        basis=basis,
        rank=rank,
        inherit=inherit,
    )
    found = {
        "error": relative(pruned.embedding, unpruned.embedding),
        "edge_removed": 100 * pruned.trace.edge_sparsity,
        "prop_gmacs": pruned.trace.macs / 1e9,
    }
    if model == "sgc":
        found["to_limit"] = relative(pruned.embedding, limit(data.graph, data.x))
    return found


@measurement("certified", cost=20.0)
def certified(
    data: Dataset,
    *,
    model: Literal["sgc", "appnp"] = "appnp",
    hops: int = 20,
    edge_sparsity: float | None = None,
    max_error: float | None = None,
) -> Values:
    """Actual and certified ‖P̂ - P‖/‖P‖ in percent, their ratio, and what was removed.

    With `edge_sparsity` also the bound by random directions; with `max_error` as few hops as the certified error allows.
    """
    scheme = scheme_of(model)
    unpruned = propagate(data.graph, data.x, scheme, hops)
    out = propagate(data.graph, data.x, scheme, hops, edge_sparsity=edge_sparsity, max_error=max_error, certify=True)
    error, bound = relative(out.embedding, unpruned.embedding), 100 * out.relative_error_bound
    sampled = None
    if max_error is None:
        by_samples = propagate(data.graph, data.x, scheme, hops, edge_sparsity=edge_sparsity, certify="sampled")
        sampled = 100 * by_samples.relative_error_bound
    return {
        "error": error,
        "bound": bound if math.isfinite(bound) else None,
        "factor": bound / error if error and math.isfinite(bound) else None,
        "sampled": sampled,
        "sampled_factor": sampled / error if error and sampled else None,
        "edge_removed": 100 * out.trace.edge_sparsity,
        "prop_gmacs": out.trace.macs / 1e9,
        "whole_gmacs": unpruned.trace.macs / 1e9,
    }


@measurement("clock", cost=20.0, exclusive=True)
def clock(
    data: Dataset, *, model: Literal["sgc", "appnp"] = "appnp", hops: int = 20, edge_sparsity: float, trials: int = 5
) -> Values:
    """Median seconds of pruned and unpruned propagation, interleaved, so that other load affects both alike.

    The embedding is in the PCA basis, on which a head is trained; rotating into it is included in the seconds and `axes_gmacs`.
    """
    pruned: list[float] = []
    unpruned: list[float] = []
    traces = {}
    for _ in range(trials):
        for sparsity, times in ((edge_sparsity, pruned), (0.0, unpruned)):
            began = perf_counter()
            out = propagate(data.graph, data.x, model, hops, edge_sparsity=sparsity or None)
            times.append(perf_counter() - began)
            traces[sparsity] = out.trace
            del out
    trace = traces[edge_sparsity]
    return {
        "seconds": median(pruned),
        "seconds_spread": (max(pruned) - min(pruned)) / 2,
        "times_faster": median(unpruned) / median(pruned),
        "times_fewer": traces[0.0].macs / trace.macs,
        "prop_gmacs": trace.macs / 1e9,
        "axes_gmacs": trace.basis_macs / 1e9,
        "edge_removed": 100 * trace.edge_sparsity,
    }


def scheme_of(name: str) -> Scheme:
    """APPNP, or SGC as T^L X."""
    return Sgc(skip="diagonal") if name == "sgc" else Appnp()


def relative(one: Any, other: Any) -> float:
    """‖one - other‖ / ‖other‖ in percent."""
    return 100 * float(np.linalg.norm(np.asarray(one, np.float64) - other) / np.linalg.norm(other))


def limit(graph: Graph, x: Any) -> Any:
    """P* = T^∞ X for r = ½: φφᵀX / ‖φ‖² in every connected component, φ = √d, d including the self-loop."""
    from scipy.sparse.csgraph import connected_components

    phi = np.sqrt(graph.degree + 1.0)
    parts, component = connected_components(graph.to_scipy(), directed=False)
    rows = x.toarray() if hasattr(x, "toarray") else np.asarray(x)
    sums = np.zeros((parts, rows.shape[1]))
    np.add.at(sums, component, phi[:, None] * rows)
    mass = np.bincount(component, weights=phi**2, minlength=parts)
    return phi[:, None] * (sums / mass[:, None])[component]


# ------------------------------------------------------------------------------------------------------------------ models

_UNPRUNED_NORMS: dict[tuple[str, int, int, int], tuple[float, float]] = {}  # of this process: cells share unpruned models


@measurement("norms", cost=200.0)
def norms(
    data: Dataset,
    *,
    edge_threshold: float = 0.0,
    weight_threshold: float = 0.0,
    epochs: int = 200,
    width: int = 512,
    seed: int = 42,
) -> Values:
    """‖τ̂_0‖_F of the messages kept in the first layer and ‖Ĥ_1‖_F of its output before BatchNorm, of a GCN trained with these
    relative thresholds (the paper's form), both relative to a GCN trained unpruned (fig:spar)."""
    from unifews.training.api import train
    from unifews.training.spec import paper_form

    common: Values = {"epochs": epochs, "width": width, "seed": seed, "patience": 0}
    run = train(data, "gcn", edge_threshold=edge_threshold, weight_threshold=weight_threshold, **paper_form("gcn"), **common)
    key = (fingerprint(data), epochs, width, seed)
    if key not in _UNPRUNED_NORMS:
        unpruned = train(data, "gcn", **common).model
        assert unpruned is not None
        _UNPRUNED_NORMS[key] = first_layer_norms(unpruned, data)
    assert run.model is not None
    message, representation = first_layer_norms(run.model, data)
    return {
        "message": message / _UNPRUNED_NORMS[key][0],
        "representation": representation / _UNPRUNED_NORMS[key][1],
        "edge_removed": 100 * run.trace.edge_sparsity,
        "weight_removed": 100 * run.trace.weight_sparsity,
        "accuracy": run.accuracy.test,
    }


def first_layer_norms(model: nn.Module, data: Dataset) -> tuple[float, float]:
    """‖τ_0‖_F over the edges that the first layer keeps, without the diagonal, and ‖H_1‖_F."""
    import torch

    from unifews.nn.edges import LayerEdges
    from unifews.nn.products.diffusion import row_sizes
    from unifews.training.layered import features

    conv: Any = next(iter(model.convs))  # type: ignore[arg-type]
    x, edge_index = features(data), torch.from_numpy(data.graph.to_edge_index())
    with torch.no_grad():
        model.eval()
        y, out = conv.lin(x), conv(x, edge_index)
        edges = LayerEdges.of(edge_index, None, data.num_nodes, "gcn", loops=1.0)
        size = edges.factor * row_sizes(y)[edges.adjacency.indices.long()]
        kept = ~torch.isin(edges.adjacency.keys, conv.removed)
        return math.sqrt(float((size[kept].double() ** 2).sum())), float(out.double().norm())
