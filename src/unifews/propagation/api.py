"""`propagate`: the public door to decoupled propagation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

import numpy as np

from unifews.core.checks import check_error, check_sparsity, check_threshold
from unifews.core.diffusion import Diffusion
from unifews.core.entry import Entries
from unifews.core.graph import Graph
from unifews.core.schemes import Scheme, resolve
from unifews.errors import GraphError, InputError, unknown_name
from unifews.kernels import threads_to_use
from unifews.propagation.basis import GRAM_LIMIT
from unifews.propagation.budget import Absolute, Budget, Relative, Target
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.inmemory import InMemoryOptions, in_memory
from unifews.propagation.operator import HopOperator
from unifews.propagation.outofcore import OutOfCoreOptions, out_of_core
from unifews.propagation.planner import Plan, Requirements
from unifews.propagation.result import Propagated
from unifews.resources import Progress, parse_bytes, resident
from unifews.storage.journal import known_by
from unifews.storage.pages import Pages

Axes = Literal["principal", "input"]


def propagate(
    graph: Graph,
    x: Any,
    scheme: str | Scheme = "appnp",
    hops: int | None = None,
    r: float = 0.5,
    *,
    edge_sparsity: float | None = None,
    threshold: float | None = None,
    relative_threshold: float | None = None,
    max_error: float | None = None,
    certify: bool | Literal["sampled"] = False,
    entries: Entries = "block",
    basis: Axes = "principal",
    rank: int | None = None,
    deflate: bool | None = None,
    inherit: bool = False,
    every_hop: bool = False,
    focus: float | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
    out: str | PathLike[str] | None = None,
    memory: str | int | None = None,
    overwrite: bool = False,
    again: bool = False,
    careful: bool = False,
    plan: Callable[[Plan], None] | None = None,
) -> Propagated:
    """Propagate features over a graph, skipping the entries that do not matter ([P] Algorithm 1, generalised).

    ``P = Σ_l θ_l S^l X`` with one hop ``(S P)[u] = keep(u)·P[u] + Σ_{v≠u} T[u,v]·P[v]``, where an entry of the sum stays iff
    ``influence_l · |T[u,v]| · ‖operand‖ ≥ δ_l``. The skip connection ``keep`` is never pruned and T is never renormalised.

    Args:
        graph: the graph.
        x: features [n, f]; numpy, torch, or scipy sparse (never densified whole).
        scheme: ``"appnp"``, ``"sgc"``, or an object such as ``Appnp(alpha=.1)``, ``Sgc(skip="identity")``,
            ``Polynomial.heat(3.0)``.
        hops: L, 20 unless given.
        r: T = D^-(1-r) Ā D^-r.
        edge_sparsity: share of off-diagonal products to remove, on average over hops. Give this, or
        threshold: δ in message units, the same for all hops, or
        relative_threshold: δ as a multiple of each hop's mean message size, or
        max_error: ε; as much is removed as keeps the certified ``‖P̂ - P‖_F / ‖P‖_F`` at most ε, that is, `certify`'s bound at
            most ε times ``‖P̂‖_F - bound``, which is no more than ``‖P‖_F``. None of the four = unpruned.
        certify: also give a proven upper bound on ``‖P̂ - P‖_F``, up to the rounding of float32, where P̂ is the embedding and P
            that of the unpruned propagation: ``out.error_bound``, and ``out.relative_error_bound`` (docs/adr/0016).
            ``"sampled"`` propagates 16 random directions whole instead, one block more, and measures the error in them: the
            bound then is about 4 times the error whatever is removed, and fails with a chance of one in a million.
        entries: what one decision is about: ``"block"`` of 16 features, a ``"feature"``, or the whole row of a ``"node"``.
        basis: ``"principal"`` rotates to principal axes first; ``"input"`` leaves the features as they are.
        rank: leading axes propagated; chosen from the data unless given. What is dropped counts as removed.
        deflate: carry the stationary part of the features exactly and prune only the rest; on unless ``basis="input"``.
        inherit: an entry once removed stays removed (the paper's progressive form).
        every_hop: also keep the embedding of every hop.
        focus: with `edge_sparsity`, how much of the budget goes to early hops; see `unifews.propagation.budget.Target`.
        progress: called with (steps done, steps in all).
        threads: kernel threads, all cores unless given; the result does not depend on it.
        out: with `memory`, write the embedding to this ``.npy`` file and never hold it, or all features, in memory: graph,
            features and result may each be larger (`Graph.open`, ``np.load(…, mmap_mode="r")``). A call that was interrupted
            goes on where it stopped, with the same arguments, and ends with the same bytes (docs/adr/0019).
        memory: what this may take, such as ``"12GB"``.
        overwrite: replace the file `out`.
        again: start afresh instead of going on with what was interrupted.
        careful: keep the state after every hop, so that a kill loses one at most; else as often as takes a sixth of the time.
        plan: called with the `Plan` before it starts: groups of columns, passes, bytes, time.

    Pruning saves operations and not always time: finding axes and deciding cost some. `trace.unpruned_seconds` is an estimate
    of what the unpruned propagation would have taken (not with `memory`), and `trace.slower` a sentence where that is less.

    The paper's own form is ``entries="node", basis="input", inherit=True, threshold=δ``.
    """
    began = perf_counter()
    if out is not None or memory is not None:
        _check_out_of_core(x, out, memory, entries, relative_threshold, max_error, certify, rank, every_hop)
    elif careful:
        raise InputError("`careful` is about propagating through files, and this is in memory; give `out` and `memory` too.")
    taken = resident()
    if not isinstance(graph, Graph):
        raise GraphError(
            f"`graph` is a {type(graph).__name__}; build one with Graph.from_edge_index(...) or Graph.from_pyg(...)."
        )
    scheme, hops = resolve(scheme, hops)
    by_sample = _check_certify(certify, max_error)
    check_choice("entries", entries, get_args(Entries))
    check_choice("basis", basis, get_args(Axes))
    diffusion = Diffusion(graph, r)
    budget = budget_of(edge_sparsity, threshold, relative_threshold, max_error, scheme, hops, inherit, focus)
    allowed = None if max_error is None else check_error("max_error", max_error)
    op = HopOperator(diffusion, scheme, hops, threads_to_use(threads))
    if out is not None and memory is not None:
        order = OutOfCoreOptions(Path(out), parse_bytes(memory, "memory"), taken, overwrite, again, plan)
        asked = {
            "edge_sparsity": _number(edge_sparsity), "threshold": _number(threshold), "entries": entries, "basis": basis,
            "inherit": bool(inherit),
        }  # fmt: skip
        return _out_of_core(op, x, budget, deflate, asked, careful, order, progress)
    proven = bool(certify) and not by_sample
    wish = InMemoryOptions(entries, basis, rank, deflate, bool(inherit), every_hop, allowed, proven, by_sample)
    return in_memory(op, x, budget, wish, progress, began)


def budget_of(
    edge_sparsity: float | None,
    threshold: float | None,
    relative_threshold: float | None,
    max_error: float | None,
    scheme: Scheme,
    hops: int,
    inherit: bool,
    focus: float | None,
) -> Budget | None:
    given = {
        name: value
        for name, value in [
            ("edge_sparsity", edge_sparsity), ("threshold", threshold), ("relative_threshold", relative_threshold),
            ("max_error", max_error),
        ]
        if value is not None
    }  # fmt: skip
    if len(given) > 1:
        raise InputError(
            "give one of `edge_sparsity` (a fraction to remove), `threshold` (δ, a magnitude), `relative_threshold` (δ over "
            "the mean message) or `max_error` (a bound on the relative error); "
            f"got {' and '.join(f'{name}={value}' for name, value in given.items())}."
        )
    if edge_sparsity is not None:
        sparsity = check_sparsity("edge_sparsity", edge_sparsity)
        focus = (1.0 if inherit else scheme.focus) if focus is None else float(focus)
        if not 0 <= focus <= 1:
            raise InputError(f"`focus`, how much of the budget goes to early hops, lies in [0, 1]; got {focus}.")
        return Target(sparsity, hops, scheme.influence(hops), focus) if sparsity > 0 else None
    if threshold is not None:
        return Absolute(check_threshold("threshold", threshold))
    if relative_threshold is not None:
        return Relative(check_threshold("relative_threshold", relative_threshold))
    return None


def _check_out_of_core(
    x: Any,
    out: str | PathLike[str] | None,
    memory: str | int | None,
    entries: str,
    relative_threshold: float | None,
    max_error: float | None,
    certify: bool | str,
    rank: int | None,
    every_hop: bool,
) -> None:
    """What cannot be had when columns are propagated group by group, through files."""
    if out is None or memory is None:
        given, missing = ("out", "memory='12GB'") if memory is None else ("memory", "out='p.npy'")
        raise InputError(f"`{given}` is for propagating beyond memory, from files to a file; give {missing} too.")
    if Path(out).suffix != ".npy":
        raise InputError(f"`out` is {str(out)!r}; it must end in .npy, the format it is written in.")
    parse_bytes(memory, "memory")
    refused = {
        "entries='node'": (entries == "node", "decides by all columns of a node at once", "write entries='block'"),
        "relative_threshold": (relative_threshold is not None, "compares with the mean over all columns", "write threshold=δ"),
        "max_error": (max_error is not None, "spends one budget on all columns at once", "write edge_sparsity="),
        "certify": (bool(certify), "is not available beyond memory", "leave it out"),
        "rank": (rank is not None, "searches for axes with many columns in memory", "leave it out"),
        "every_hop": (every_hop, "keeps every hop in memory", "leave it out"),
        "a sparse `x`": (
            hasattr(x, "tocsr") or str(getattr(x, "layout", "torch.strided")) != "torch.strided",
            "stays in memory", "write it as a dense .npy and map it, or leave out `memory`",
        ),
    }  # fmt: skip
    for name, (is_asked, why, instead) in refused.items():
        if is_asked:
            raise InputError(f"{name} {why}, and with `memory` columns are propagated group by group; {instead}.")


def _out_of_core(
    op: HopOperator,
    x: Any,
    budget: Budget | None,
    deflate: bool | None,
    asked: dict[str, Any],
    careful: bool,
    order: OutOfCoreOptions,
    progress: Progress | None,
) -> Propagated:
    """From files to a file; what is mapped of them counts as memory too, and is given back in time."""
    graph, pages = op.diffusion.graph, Pages()
    pages.add(graph.indptr, graph.indices, graph.weight, np.asanyarray(x) if not hasattr(x, "detach") else None)
    with pages.within(order.memory):
        needs, task, inputs = posed(op, x, budget, deflate, asked, "`memory`", careful)
        return out_of_core(needs, order, task, inputs, pages, progress)


def posed(
    op: HopOperator, x: Any, budget: Budget | None, deflate: bool | None, asked: dict[str, Any], door: str, careful: bool
) -> tuple[Requirements, dict[str, Any], list[Path]]:
    """What a propagation through files needs, and what its result depends on: facts for JSON, and input files.

    `asked` are the caller's edge_sparsity, threshold, entries, basis and inherit; `door` is what it asked for files with.
    """
    graph, rotate = op.diffusion.graph, asked["basis"] == "principal" and budget is not None
    deflate = rotate if deflate is None else deflate
    features = FeatureMatrix(x, graph.num_nodes)
    if rotate and features.f > GRAM_LIMIT:
        raise InputError(
            f"{door} with principal axes takes up to {GRAM_LIMIT:,} features, and `x` has {features.f:,}; write basis='input'."
        )
    spent = isinstance(budget, Target) and np.ceil((1 - budget.sparsity) * features.f) >= features.f
    needs = Requirements(
        op, features, None if spent else budget, rotate, deflate, asked["entries"] == "feature", asked["inherit"], careful
    )
    task = {
        "task": "propagate", "scheme": _described(op.scheme, op), "hops": op.hops, "r": float(op.diffusion.r), **asked,
        "deflate": bool(deflate), "focus": budget.focus if isinstance(budget, Target) else None,
    }  # fmt: skip
    inputs = []
    given = {"indptr": graph.indptr, "indices": graph.indices, "weight": graph.weight}
    for name, array in {**given, "x": features.dense if features.is_torch else np.asanyarray(x)}.items():
        if array is not None:
            files, facts = known_by(name, array)
            inputs += files
            task |= facts
    return needs, task, inputs


def _described(scheme: Scheme, op: HopOperator) -> str:
    """A scheme in words that are the same in another process."""
    return repr(scheme) if is_dataclass(scheme) else f"{type(scheme).__name__} {op.coefficients.tolist()}"


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _check_certify(certify: Any, max_error: float | None) -> bool:
    """Whether the error is to be measured in random directions."""
    if isinstance(certify, bool | np.bool_):
        return False
    if certify != "sampled":
        raise InputError(f"`certify` is True for a proven bound, or 'sampled' for one by random directions; got {certify!r}.")
    if max_error is not None:
        raise InputError("max_error is kept by a proven bound, hop by hop, and certify='sampled' knows one only at the end; "
                         "leave `certify` out.")  # fmt: skip
    return True


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown_name(f"`{name}`", value, known)
