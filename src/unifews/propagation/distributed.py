"""`propagate` by many workers: the same result, from files to a file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.config import reported_as
from unifews.core.diffusion import Diffusion
from unifews.core.entry import Amounts, Entries
from unifews.core.graph import Graph
from unifews.core.schemes import Scheme, resolve
from unifews.deprecation import renamed_arguments
from unifews.distributed.communicator import ProcessGroup, check_same, workers
from unifews.errors import GraphError, InputError, unknown_name
from unifews.kernels import threads_to_use
from unifews.propagation.api import check_width
from unifews.propagation.assembly import RESULT, trace_of
from unifews.propagation.columns import by_columns
from unifews.propagation.config import BasisName, PropagationConfig
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.nodes import by_nodes
from unifews.propagation.operator import HopOperator
from unifews.propagation.planner import Requirements
from unifews.propagation.result import Propagated
from unifews.propagation.shared import DistributedOptions, shared
from unifews.propagation.task import PropagationTask
from unifews.resources import Progress
from unifews.storage.atomic import check_place
from unifews.storage.journal import array_identity, fingerprint
from unifews.storage.npy import open_array


@renamed_arguments(again="restart", careful="checkpoint_every_hop")
def propagate(
    graph: Graph,
    x: Any,
    scheme: str | Scheme = "appnp",
    hops: int | None = None,
    r: float = 0.5,
    *,
    out: str | PathLike[str],
    partition: str | PathLike[str] | NDArray[Any] = "columns",
    groups: int | None = None,
    edge_sparsity: float | None = None,
    threshold: float | None = None,
    entries: Entries = "block",
    basis: BasisName = "principal",
    deflate: bool | None = None,
    inherit: bool = False,
    focus: float | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    restart: bool = False,
    checkpoint_every_hop: bool = False,
) -> Propagated:
    """`unifews.propagate` by all the workers that torchrun has started; each of them calls this with the same arguments.

    Args:
        graph, x: the same for all workers, best as files that are mapped (`Graph.open`, ``np.load(…, mmap_mode="r")``).
        out: the ``.npy`` file the embedding is written to, on a disk that all workers share. Progress is saved in a folder
            beside it; after a restart (``torchrun --max-restarts``), or in another call, it resumes at the last checkpoint.
        partition: what is distributed. ``"columns"``: each worker has the whole graph and some of its columns. ``"nodes"``:
            each has some of the rows, in ranges of equally many edges, and receives rows of other workers that its edges begin
            at before each hop, as far as some entry needs them (``out.trace.traffic``); for graphs larger than the memory of
            one machine. ``"metis"``: the same with rows chosen by METIS so that fewer edges are cut (pymetis; reads the graph
            whole). Or the worker of each node, an array [n] or a ``.npy`` file of one.
        groups: with columns, how many groups they are cut into, default: one per worker. Each group has a threshold of
            its own where a sparsity is asked for, so it is on the groups, not on the workers, that the result depends.
        overwrite, restart: replace `out`; start over instead of resuming.
        checkpoint_every_hop: so that a lost worker costs at most one hop.

    Everything else is as in `unifews.propagate`. Returns the embedding as a memory map of the file written, to every worker.
    """
    with workers() as group:
        with group.agreed():
            if not isinstance(graph, Graph):
                raise GraphError(f"`graph` is a {type(graph).__name__}; open one with Graph.open(...).")
            if Path(out).suffix != ".npy":
                raise InputError(f"`out` is {str(out)!r}; it must end in .npy, the format it is written in.")
            if hasattr(x, "tocsr") or str(getattr(x, "layout", "torch.strided")) != "torch.strided":
                raise InputError("`x` is sparse, and workers take dense features; write them as a dense .npy and map it.")
            scheme, hops = resolve(scheme, hops)
            with reported_as(edge_threshold="threshold"):
                amounts = Amounts(edge_sparsity, threshold)
            config = PropagationConfig(entries, basis, deflate=deflate, inherit=inherit, focus=focus)
            if entries == "node":
                raise InputError(
                    "entries='node' decides by all columns of a node at once, and workers do not; write entries='block'."
                )
            op = HopOperator(Diffusion(graph, r), scheme, hops, threads_to_use(threads))
            task = PropagationTask(op, FeatureMatrix(x, graph.num_nodes), amounts, config)
            check_width(task, "distributed propagation")
            identity, inputs = task.identity(x)
            way, facts = _way(partition, groups, group.size)
            order = DistributedOptions(Path(out), identity | facts, inputs, overwrite, restart, checkpoint_every_hop)
            files = {f"the contents of {file.name}": fingerprint(file)["ends"] for file in order.inputs}
        check_same(group, {**order.task, **files})
        return _propagated(group, Requirements(task), order, way, groups, progress)


def _propagated(
    group: ProcessGroup,
    needs: Requirements,
    order: DistributedOptions,
    way: str | NDArray[Any],
    groups: int | None,
    progress: Progress | None,
) -> Propagated:
    out = order.out
    with shared(group, order) as common:
        finished = group.all_gather(common.is_first and out.exists() and not (common.folder / RESULT).exists())[0]
        if not (finished and common.get("summary")):  # else killed after the last step
            with group.agreed():
                check_place(out, order.overwrite)
            if isinstance(way, str) and way == "columns":
                by_columns(common, needs, order.checkpoint_every_hop, groups, progress)
            else:
                by_nodes(common, needs, order.checkpoint_every_hop, way, progress)
            if common.is_first:
                (common.folder / RESULT).replace(out)
        summary = common.get("summary")
        common.remove()
        group.barrier()
    return Propagated(open_array(out), None, trace_of(summary), summary["exponent"], None, lambda array: array)


def _way(
    partition: str | PathLike[str] | NDArray[Any], groups: int | None, workers: int
) -> tuple[str | NDArray[Any], dict[str, Any]]:
    """What is distributed: a name, or the worker of each node; and the same as JSON."""
    if groups is not None and not (isinstance(partition, str) and partition == "columns"):
        raise InputError("`groups` applies to partition='columns' only; leave it out when nodes are partitioned.")
    if groups is not None and (not isinstance(groups, int) or isinstance(groups, bool) or groups < 1):
        raise InputError(f"`groups` is how many groups of columns there are, at least 1; got {groups!r}.")
    if isinstance(partition, str) and partition == "columns":
        return partition, {"partition": partition, "groups": groups}
    if isinstance(partition, str) and partition in ("nodes", "metis"):
        return partition, {"partition": partition, "workers": workers}
    if isinstance(partition, str | PathLike):
        if Path(partition).suffix != ".npy":
            raise unknown_name("partition", str(partition), ("columns", "nodes", "metis", "FILE.npy"))
        partition = open_array(Path(partition))
    array = np.asarray(partition.detach().cpu() if hasattr(partition, "detach") else partition)
    return array, {"partition": array_identity("partition", np.array(array))[1]["partition"], "workers": workers}
