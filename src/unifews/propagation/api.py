"""`propagate`: the public door to decoupled propagation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import is_dataclass
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

import numpy as np

from unifews.core.budget import Absolute, Budget, Relative, Target, check_error, check_sparsity, check_threshold
from unifews.core.diffusion import Diffusion
from unifews.core.entry import Entries
from unifews.core.graph import Graph
from unifews.core.memory import resident
from unifews.core.pages import Pages
from unifews.core.schemes import Scheme, resolve
from unifews.core.sizes import as_bytes
from unifews.core.trace import Trace
from unifews.core.work import known_by
from unifews.errors import GraphError, InputError, unknown_name
from unifews.kernels import describe, threads_to_use
from unifews.propagation import local
from unifews.propagation.basis import GRAM_LIMIT, VERY_WIDE, Basis, principal, stationary_mean
from unifews.propagation.bounded import bounded
from unifews.propagation.certify import Prices, joined, left_out, norm_of
from unifews.propagation.features import Features, Floats
from unifews.propagation.operator import Operator, stationary
from unifews.propagation.outofcore import Order, beyond_memory
from unifews.propagation.plan import Needs, Plan
from unifews.propagation.result import Hops, Propagated, Remainder
from unifews.propagation.sampled import DIRECTIONS, FAILURE, sampled
from unifews.propagation.view import View

Axes = Literal["principal", "input"]
Progress = Callable[[int, int], None]
_MISSED = 0.05  # of the products: a target that is missed by more is told


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
        focus: with `edge_sparsity`, how much of the budget goes to early hops; see `unifews.core.budget.Target`.
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

    The paper's own form is ``entries="node", basis="input", inherit=True, threshold=δ``.
    """
    began = perf_counter()
    if out is not None or memory is not None:
        _check_beyond_memory(x, out, memory, entries, relative_threshold, max_error, certify, rank, every_hop)
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
    op = Operator(diffusion, scheme, hops, threads_to_use(threads))
    if out is not None and memory is not None:
        order = Order(Path(out), as_bytes(memory, "memory"), taken, overwrite, again, plan)
        asked = {
            "edge_sparsity": _number(edge_sparsity), "threshold": _number(threshold), "entries": entries, "basis": basis,
            "inherit": bool(inherit),
        }  # fmt: skip
        return _beyond_memory(op, x, budget, deflate, asked, careful, order, progress)
    features = Features(x, graph.num_nodes)
    if rank is not None and (not isinstance(rank, int | np.integer) or isinstance(rank, bool) or not 1 <= rank <= features.f):
        raise InputError(
            f"`rank` is the number of axes to keep, from 1 to the {features.f:,} features there are; got {rank!r}."
        )
    # An error bound leaves no room for axes to be left out: all of them, or where they are too many to find, the input's own.
    rotate = basis == "principal" and (budget is not None or rank is not None or (bool(allowed) and features.f <= VERY_WIDE))
    deflate = rotate or (bool(allowed) and basis == "principal") if deflate is None else deflate
    setup = perf_counter() - began

    began = perf_counter()
    phi = stationary(diffusion) if deflate else None
    chosen: Basis | None = None
    mean: Floats | None = None
    macs = 0
    if rotate:
        chosen = principal(features, diffusion, phi, rank, 0.0 if allowed else edge_sparsity, op.threads)
        mean, macs = chosen.mean, chosen.macs
        if allowed and rank is None and chosen.rank < features.f:  # fewer nodes than features have no more axes than nodes
            chosen, rotate = None, False
    elif phi is not None:
        mean = stationary_mean(features, phi, op.threads)
    basis_seconds = perf_counter() - began

    began = perf_counter()
    prices = Prices(op) if (certify and not by_sample) or allowed is not None else None
    width = chosen.rank if chosen else features.f
    partial = width < features.f
    # Nothing is left to prune where the axes dropped are more than was asked for.
    spent = isinstance(budget, Target) and width <= np.ceil((1 - budget.sparsity) * features.f)

    def fresh() -> View:
        view = View(features, chosen, phi, mean, diffusion, op.threads)
        if prices and partial:
            view.square = np.zeros(graph.num_nodes, dtype=np.float32)
            if features.sparse is not None and not allowed and (spent or budget is None):
                view.sent = np.zeros(graph.num_nodes)
        return view

    def run(view: View, budget: Budget | None) -> local.Outcome:
        if budget is None:
            return local.unpruned(op, view, every_hop, progress)
        return local.pruned(op, view, entries, inherit, budget, every_hop, progress, prices)

    runs = 1
    if allowed and prices:
        done = bounded(op, fresh, prices, allowed, run)
        view, outcome, runs, macs = done.view, done.outcome, done.runs, macs + done.macs
    else:
        view = fresh()
        outcome = run(view, None if spent else budget)
    values, axes = outcome.values, chosen.axes if chosen else None
    macs += view.macs
    if phi is not None and mean is not None:
        if axes is not None:
            values, axes = _with_mean_axis(values, axes, features, op, phi, mean, outcome.growth)
        if scheme.skip != "diagonal":
            macs += graph.num_edges * hops
    exponent = _scale_back(values, outcome.growth + features.exponent)
    remainder = Remainder(features, op) if partial else None
    bound, least = None if prices is None else _proven(exponent, outcome, op, view, prices), 0.0
    if by_sample:
        bound = 0.0
        if partial or budget is not None:
            bound, least, extra = sampled(op, features, values, axes, exponent)
            macs += extra
    kept_hops = _hops(outcome, features, op, phi, chosen, mean, remainder) if every_hop else None
    setup += perf_counter() - began - sum(hop.seconds for hop in outcome.hops) - view.seconds
    trace = Trace(
        tuple(outcome.hops),
        requested=str(budget) if budget else f"max error {allowed:g}" if allowed else "unpruned",
        kernel=describe(op.threads),
        rank=view.width if rotate else None,
        basis_macs=macs,
        basis_seconds=basis_seconds + view.seconds,
        setup_seconds=max(setup, 0.0),
        dropped_norm=local.scaled(view.dropped_norm(), features.exponent),
        notes=_notes(budget, exponent, view, outcome, runs, by_sample),
        error_bound=bound,
        relative_error_bound=None if bound is None else _relative(bound, values, least),
    )
    return Propagated(values, axes, trace, exponent, kept_hops, _caller_kind(features), remainder)


def _proven(exponent: int, outcome: local.Outcome, op: Operator, view: View, prices: Prices) -> float:
    """The certified error of values that are given over 2^exponent."""
    parts = [*outcome.certificates, *([left_out(op, view, prices)] if view.square is not None else [])]
    return joined(parts, exponent) if parts else 0.0


def _relative(bound: float, values: Floats, least: float) -> float:
    """A bound relative to the unpruned norm, which is `least` at least, and that of the values less the bound."""
    if bound == 0:
        return 0.0
    least = max(least, norm_of(values) - bound)  # what lies outside the axes would only add to it
    return bound / least if least > 0 else math.inf


def _scale_back(values: Floats, exponent: int) -> int:
    """Multiply by 2^exponent where float32 can hold it; returns the exponent that is left to say."""
    if not exponent:
        return 0
    peak = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    assert math.isfinite(peak), "values are brought down before they outgrow float32"
    if not 2.0**-100 < local.scaled(peak, exponent) < 2.0**120:
        return exponent
    values *= np.float32(math.ldexp(1, exponent))
    return 0


def _hops(
    outcome: local.Outcome,
    features: Features,
    op: Operator,
    phi: Floats | None,
    basis: Basis | None,
    mean: Floats | None,
    remainder: Remainder | None,
) -> Hops:
    shift = features.exponent
    columns = [] if phi is None else [(column, grown + shift) for column, grown in op.powers(phi)]
    values = [(hop, grown + shift) for hop, grown in outcome.snapshots]
    return Hops(values, columns, basis.axes if basis else None, mean, remainder)


def _with_mean_axis(
    values: Floats, axes: Floats, features: Features, op: Operator, phi: Floats, mean: Floats, growth: int
) -> tuple[Floats, Floats]:
    """Where the axes do not span the stationary part's features c, add one axis so that nothing of it is lost.

    Only the stationary part is propagated on it; of the rest a node keeps its own, as on every axis left out.
    """
    outside = mean - axes @ (mean @ axes)
    size = float(np.linalg.norm(outside))
    if axes.shape[0] == axes.shape[1] or size <= 1e-6 * float(np.linalg.norm(mean)):
        return values, axes
    axis = (outside / size)[:, None]
    rest = features.times(axis, op.threads)[:, 0] - phi * np.float32(size)
    column = op.column(phi, growth) * np.float32(size) + op.alone(growth) * rest
    return np.concatenate([values, column[:, None]], axis=1), np.concatenate([axes, axis], axis=1)


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
        return Target(sparsity, hops, scheme.influence(hops), focus) if sparsity > 0 else None
    if threshold is not None:
        return Absolute(check_threshold("threshold", threshold))
    if relative_threshold is not None:
        return Relative(check_threshold("relative_threshold", relative_threshold))
    return None


def _check_beyond_memory(
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
    as_bytes(memory, "memory")
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


def _beyond_memory(
    op: Operator,
    x: Any,
    budget: Budget | None,
    deflate: bool | None,
    asked: dict[str, Any],
    careful: bool,
    order: Order,
    progress: Progress | None,
) -> Propagated:
    """From files to a file; what is mapped of them counts as memory too, and is given back in time."""
    graph, pages = op.diffusion.graph, Pages()
    pages.add(graph.indptr, graph.indices, graph.weight, np.asanyarray(x) if not hasattr(x, "detach") else None)
    with pages.within(order.memory):
        needs, task, inputs = posed(op, x, budget, deflate, asked, "`memory`", careful)
        return beyond_memory(needs, order, task, inputs, pages, progress)


def posed(
    op: Operator, x: Any, budget: Budget | None, deflate: bool | None, asked: dict[str, Any], door: str, careful: bool
) -> tuple[Needs, dict[str, Any], list[Path]]:
    """What a propagation through files needs, and what its result depends on: facts for JSON, and input files.

    `asked` are the caller's edge_sparsity, threshold, entries, basis and inherit; `door` is what it asked for files with.
    """
    graph, rotate = op.diffusion.graph, asked["basis"] == "principal" and budget is not None
    deflate = rotate if deflate is None else deflate
    features = Features(x, graph.num_nodes)
    if rotate and features.f > GRAM_LIMIT:
        raise InputError(
            f"{door} with principal axes takes up to {GRAM_LIMIT:,} features, and `x` has {features.f:,}; write basis='input'."
        )
    spent = isinstance(budget, Target) and np.ceil((1 - budget.sparsity) * features.f) >= features.f
    needs = Needs(
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


def _described(scheme: Scheme, op: Operator) -> str:
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


def _caller_kind(features: Features) -> Callable[[Floats], Any]:
    """Back to what the caller gave: torch in, torch out, on the same device."""
    if not features.is_torch:
        return lambda array: array

    def to_torch(array: Floats) -> Any:
        import torch

        return torch.from_numpy(array).to(features.device)

    return to_torch


def _notes(
    budget: Budget | None, exponent: int, view: View, outcome: local.Outcome, runs: int, by_sample: bool
) -> tuple[str, ...]:  # fmt: skip
    notes = []
    if by_sample:
        notes.append(f"the error was measured in {DIRECTIONS} random directions; the bound fails with a chance of {FAILURE:g}")
    if runs > 1:
        notes.append(f"propagated {runs} times until the bound was met")
    if outcome.groups > 1:
        notes.append(f"columns were propagated in {outcome.groups} groups; the thresholds told are those of the leading one")
    if exponent:
        notes.append(f"values lie outside float32 and are given divided by 2^{exponent}")
    if isinstance(budget, Target) and view.basis is not None:
        least = 1 - view.width / view.features.f
        if least > budget.sparsity + 0.01:
            notes.append(
                f"{view.width} of {view.features.f:,} axes hold what matters: that alone removes {least:.1%}, more than the "
                f"{budget.sparsity:.1%} asked for (rank= keeps more)"
            )
    if isinstance(budget, Target) and view.diffusion.graph.num_edges:
        achieved = Trace(tuple(outcome.hops)).edge_sparsity
        if achieved < budget.sparsity - _MISSED:
            notes.append(f"{achieved:.1%} could be removed, not the {budget.sparsity:.1%} asked for")
    return tuple(notes)
