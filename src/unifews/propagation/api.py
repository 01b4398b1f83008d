"""`propagate`: the public entry point of decoupled propagation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from unifews.core.config import reported_as
from unifews.core.diffusion import Diffusion
from unifews.core.entry import Amounts, Entries
from unifews.core.graph import Graph
from unifews.core.schemes import Scheme, resolve
from unifews.deprecation import removed_arguments, renamed_arguments
from unifews.errors import GraphError, InputError
from unifews.kernels import threads_to_use
from unifews.kernels.buffers import release_memory
from unifews.propagation import stored_hops, tolerance
from unifews.propagation.basis import GRAM_LIMIT
from unifews.propagation.config import REMOVED, BasisName, ErrorNorm, Precision, PropagationConfig
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.folder import FileTarget
from unifews.propagation.inmemory import in_memory
from unifews.propagation.operator import HopOperator
from unifews.propagation.outofcore import OutOfCore, into_file
from unifews.propagation.plan import ErrorPlan, given
from unifews.propagation.planner import Plan
from unifews.propagation.result import Propagated
from unifews.propagation.task import PropagationTask
from unifews.resources import Progress, parse_bytes, resident
from unifews.storage.pages import MappedPages


@removed_arguments(**REMOVED)
@renamed_arguments(again="restart", careful="checkpoint_every_hop")
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
    basis: BasisName = "principal",
    rank: int | None = None,
    inherit: bool = False,
    every_hop: bool = False,
    error_norm: ErrorNorm = "columns",
    degree: int | None = None,
    precision: Precision | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
    out: str | PathLike[str] | None = None,
    memory: str | int | None = None,
    overwrite: bool = False,
    restart: bool = False,
    checkpoint_every_hop: bool = False,
    plan: ErrorPlan | Mapping[str, Any] | Callable[[Plan], None] | None = None,
) -> Propagated:
    """Propagate features over a graph, skipping the entries that do not matter ([P] Algorithm 1, generalised).

    ``P = Σ_l θ_l S^l X`` with one hop ``(S P)[u] = keep(u)·P[u] + Σ_{v≠u} T[u,v]·P[v]``, where an entry of the sum is kept if
    ``influence_l · |T[u,v]| · ‖operand‖ ≥ δ_l``. The skip connection ``keep`` is never pruned and T is never renormalised.

    Args:
        graph: the graph.
        x: features [n, f]; numpy, torch, or scipy sparse, which is never made dense as a whole.
        scheme: ``"appnp"``, ``"sgc"``, or an object such as ``Appnp(alpha=.1)``, ``Sgc(skip="identity")``,
            ``Polynomial.heat(3.0)``. With `max_error` also ``"ppr"`` and ``"heat"``: ``PersonalizedPageRank(alpha=.1)``,
            ``HeatKernel(time=5)``, and any ``Filter(function)``.
        hops: L; default: 20.
        r: T = D^-(1-r) Ā D^-r.
        edge_sparsity: fraction of off-diagonal products to remove, averaged over hops. Give at most one of this and the next
            three; without any of them nothing is pruned.
        threshold: δ in message units, the same for all hops.
        relative_threshold: δ as a multiple of the mean message size of each hop.
        max_error: ε, the relative error that is allowed; 0.05 is a good choice. As few hops and bytes as reach it
            (docs/adr/0027). ``out.column_errors[j]`` estimates ``‖(P̂ - P)_j‖ / ‖P_j‖`` without the stationary part of P_j;
            ``out.error`` is their root mean square, at most ε, and no column exceeds 3 ε. With ``certify=True`` both
            are upper bounds, proven for undirected graphs by a Chebyshev polynomial of higher degree (docs/adr/0016).
        certify: also return a proven upper bound on ``‖P̂ - P‖_F``, up to float32 rounding, where P̂ is the embedding and P that
            of the unpruned propagation: ``out.error_bound``, and ``out.relative_error_bound`` (docs/adr/0016). ``"sampled"``
            propagates 16 random directions unpruned instead, at the cost of one block, and measures the error in them: the
            bound is then about 4 times the error at any sparsity, and fails with probability 1e-6.
        entries: what is kept or removed together: a ``"block"`` of 16 features, a ``"feature"``, or a whole ``"node"`` row.
        basis: ``"principal"`` rotates the features to their principal components first, and propagates their stationary part
            exactly; ``"input"`` does neither.
        rank: number of leading components to propagate; default: chosen from the data. The others count as removed.
        inherit: an entry that one hop removes is removed in all later hops (the paper's progressive form).
        every_hop: also return the embedding of every hop.
        error_norm: with `max_error`, ``"frobenius"`` bounds ``‖P̂ - P‖_F / ‖P‖_F`` instead.
        degree: with `max_error`, exactly this many hops.
        precision: the row format, ``"int4"``, ``"int8"``, ``"bfloat16"`` or ``"float32"``; default: chosen with `max_error`,
            else float32. Without `max_error`, all hops are run on such rows; ``out.error`` estimates what rounding has done.
        progress: called with (steps done, steps in all).
        threads: kernel threads; default: all cores. The result does not depend on it.
        out: with `memory`, write the embedding to this ``.npy`` file, out of core: graph, features and result may each be
            larger than memory (`Graph.open`, ``np.load(…, mmap_mode="r")``). After an interruption the same call resumes
            and ends with the same bytes (docs/adr/0019). With `max_error` the result is that of memory, to the bit.
        memory: the memory that the process may use, such as ``"12GB"``.
        overwrite: replace the file `out`.
        restart: start over instead of resuming an interrupted call.
        checkpoint_every_hop: save the state after every hop, so that an interruption loses at most one; default: as often as
            costs a sixth of the time. With `max_error`, what is saved is each finished tile of up to 128 columns.
        plan: ``out.plan`` of an earlier run with `max_error`, or ``out.plan.to_dict()``: repeats it, to the bit on the same
            machine, without planning. With `memory`, a function called with the `Plan` before the work starts: groups of
            columns, passes, bytes, time.

    Pruning reduces operations and not always time: the basis and the decisions cost some. `trace.unpruned_seconds` estimates
    what the unpruned propagation would take (not with `memory`), and `trace.slower` is a message where that is less.

    The paper's form is ``entries="node", basis="input", inherit=True, threshold=δ``.
    """
    began = perf_counter()
    report, repeated = (plan, None) if plan is None or callable(plan) else (None, given(plan))
    if repeated is not None:
        others = {"edge_sparsity": edge_sparsity, "threshold": threshold, "relative_threshold": relative_threshold}
        for name, value in {**others, "degree": degree, "precision": precision}.items():
            if value is not None:
                raise InputError(f"`plan` repeats a run, and `{name}` would change it; leave out one.", setting=name)
        if max_error is not None and max_error != repeated.tolerance:
            raise InputError(
                f"`plan` is for max_error={repeated.tolerance:g}, and max_error={max_error:g} was given; leave out one.",
                setting="plan",
            )
        max_error = repeated.tolerance
        error_norm = repeated.task.get("error_norm", "columns") if error_norm == "columns" else error_norm
        certify = certify or bool(repeated.task.get("certify"))
    with reported_as(edge_threshold="threshold"):
        amounts = Amounts(edge_sparsity, threshold, relative_threshold, max_error)
    config = PropagationConfig(entries, basis, rank, inherit, certify, every_hop, error_norm, degree, precision)
    if out is not None or memory is not None:
        _check_out_of_core(x, out, memory, amounts, config)
    elif checkpoint_every_hop:
        raise InputError("`checkpoint_every_hop` needs out-of-core propagation; give `out` and `memory` too.")
    check_graph(graph)
    pages = MappedPages()
    if memory is not None:
        pages.add(graph.indptr, graph.indices, graph.weight, np.asanyarray(x) if not hasattr(x, "detach") else None)
        release_memory()  # what earlier calls left does not count as memory in use
        pages.release()  # mapped inputs count as memory; their pages are released during the work
    taken = resident()
    scheme, hops = resolve(scheme, hops)
    tolerance.check(amounts, config, scheme)
    diffusion = Diffusion(graph, r)
    op = HopOperator(diffusion, scheme, hops, threads_to_use(threads))
    if out is not None and memory is not None:
        limit, target = parse_bytes(memory, "memory"), FileTarget(Path(out), overwrite, restart, checkpoint_every_hop)
        with pages.within(limit):
            task = PropagationTask(op, FeatureMatrix(x, graph.num_nodes, op.threads), amounts, config, repeated)
            check_width(task, "`memory`")
            return into_file(OutOfCore(task, limit, taken, pages, report), target, task.identity(x), progress)
    task = PropagationTask(op, FeatureMatrix(x, graph.num_nodes, op.threads), amounts, config, repeated)
    tolerance.check_columns(task)
    if task.is_by_error:
        return tolerance.propagate(task, progress, began)
    return stored_hops.propagate(task, progress, began) if config.precision else in_memory(task, progress, began)


def _check_out_of_core(
    x: Any,
    out: str | PathLike[str] | None,
    memory: str | int | None,
    amounts: Amounts,
    config: PropagationConfig,
) -> None:
    """Refuse what is not available where columns are propagated group by group, out of core."""
    if out is None or memory is None:
        given, missing = ("out", "memory='12GB'") if memory is None else ("memory", "out='p.npy'")
        raise InputError(f"`{given}` is for out-of-core propagation; give {missing} too.")
    check_out(out)
    tolerance.check_in_memory(amounts, config, "out-of-core propagation")
    parse_bytes(memory, "memory")
    is_sparse = hasattr(x, "tocsr") or str(getattr(x, "layout", "torch.strided")) != "torch.strided"
    refused = {
        "entries='node'": (config.entries == "node", "decides by all columns of a node at once", "write entries='block'"),
        "relative_threshold": (
            amounts.relative_threshold is not None,
            "compares with the mean over all columns",
            "write threshold=δ",
        ),
        "certify": (bool(config.certify), "is not available out of core", "leave it out"),
        "rank": (config.rank is not None, "searches for axes with many columns in memory", "leave it out"),
        "every_hop": (config.every_hop, "keeps every hop in memory", "leave it out"),
        "a sparse `x`": (is_sparse, "stays in memory", "write it as a dense .npy and map it, or leave out `memory`"),
    }
    for name, (is_asked, why, instead) in refused.items():
        if is_asked:
            raise InputError(f"{name} {why}, and out of core columns are propagated in groups; {instead}.")


def check_graph(graph: Any) -> None:
    if not isinstance(graph, Graph):
        raise GraphError(
            f"`graph` is a {type(graph).__name__}; build one with Graph.from_edge_index(...) or Graph.from_pyg(...), or open "
            "one with Graph.open(...)."
        )


def check_out(out: str | PathLike[str]) -> None:
    if Path(out).suffix != ".npy":
        raise InputError(f"`out` is {str(out)!r}; it must end in .npy, the format it is written in.")


def check_width(task: PropagationTask, cause: str) -> None:
    """Refuse features that are too wide for principal components out of core; `cause` is the argument that asks for it."""
    if task.rotates and not task.is_by_error and task.features.f > GRAM_LIMIT:
        raise InputError(
            f"{cause} with basis='principal' takes up to {GRAM_LIMIT:,} features, and `x` has {task.features.f:,}; "
            "write basis='input'."
        )
