"""`propagate` by several workers: the same result, from files to a file."""

from __future__ import annotations

from itertools import pairwise
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
from unifews.deprecation import removed_arguments, renamed_arguments
from unifews.distributed.communicator import Communicator, check_same, workers
from unifews.distributed.partition import Owners, Part, metis, ranges
from unifews.errors import InputError, unknown_name
from unifews.kernels import LANES, MAX_BLOCKS, threads_to_use
from unifews.propagation import tolerance
from unifews.propagation.api import check_graph, check_out, check_width
from unifews.propagation.basis import Basis
from unifews.propagation.config import REMOVED, BasisName, ErrorNorm, Precision, PropagationConfig
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.folder import FORM, FileTarget, FolderStore
from unifews.propagation.halo import PartitionOperator, PartitionView
from unifews.propagation.lanczos import Goal, series_of, tile_shapes
from unifews.propagation.operator import HopOperator
from unifews.propagation.outofcore import Arrangement, into_file
from unifews.propagation.planner import least_groups
from unifews.propagation.result import Propagated
from unifews.propagation.symmetric import SymmetricOperator
from unifews.propagation.task import PropagationTask
from unifews.propagation.tile_files import TileFiles
from unifews.propagation.tile_parts import PartitionedRows, PartRows
from unifews.propagation.tiles import Shape, cut
from unifews.propagation.view import View
from unifews.resources import Progress
from unifews.storage import state_files
from unifews.storage.journal import array_identity, fingerprint
from unifews.storage.npy import open_array


@removed_arguments(**REMOVED)
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
    max_error: float | None = None,
    entries: Entries = "block",
    basis: BasisName = "principal",
    inherit: bool = False,
    error_norm: ErrorNorm = "columns",
    degree: int | None = None,
    precision: Precision | None = None,
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
        max_error: with columns, workers take turns at tiles of up to 128 columns, and the result is that of
            `unifews.propagate`, to the bit. With nodes, rows are sent in the format they are stored in, and sums over rows are
            added up in another order, so the result differs from that by rounding, at most a twentieth of the allowed error.
        overwrite, restart: replace `out`; start over instead of resuming.
        checkpoint_every_hop: so that a lost worker costs at most one hop.

    Everything else is as in `unifews.propagate`. Returns the embedding as a memory map of the file written, to every worker.
    """
    with workers() as comm:
        with comm.agreed():
            check_graph(graph)
            check_out(out)
            if hasattr(x, "tocsr") or str(getattr(x, "layout", "torch.strided")) != "torch.strided":
                raise InputError("`x` is sparse, and workers take dense features; write them as a dense .npy and map it.")
            scheme, hops = resolve(scheme, hops)
            with reported_as(edge_threshold="threshold"):
                amounts = Amounts(edge_sparsity, threshold, max_error=max_error)
            config = PropagationConfig(
                entries,
                basis,
                inherit=inherit,
                error_norm=error_norm,
                degree=degree,
                precision=precision,
            )
            tolerance.check(amounts, config, scheme)
            tolerance.check_in_memory(amounts, config, "distributed propagation")
            if entries == "node":
                raise InputError(
                    "entries='node' decides by all columns of a node at once, and workers do not; write entries='block'."
                )
            op = HopOperator(Diffusion(graph, r), scheme, hops, threads_to_use(threads))
            task = PropagationTask(op, FeatureMatrix(x, graph.num_nodes), amounts, config)
            check_width(task, "distributed propagation")
            facts, inputs = task.identity(x)
            way, chosen = _arrangement(task, comm, partition, groups)
            facts |= chosen
            files = {f"the contents of {file.name}": fingerprint(file)["ends"] for file in inputs}
        check_same(comm, {**facts, **files})
        target = FileTarget(Path(out), overwrite, restart, checkpoint_every_hop)
        return into_file(way, target, (facts, inputs), progress)


def _arrangement(
    task: PropagationTask, comm: Communicator, partition: str | PathLike[str] | NDArray[Any], groups: int | None
) -> tuple[Arrangement, dict[str, Any]]:
    """What is distributed, and the same as JSON."""
    if task.is_by_error and groups is not None:
        raise InputError("`groups` has no effect with max_error, whose result does not depend on them; leave it out.")
    if groups is not None and not (isinstance(partition, str) and partition == "columns"):
        raise InputError("`groups` applies to partition='columns' only; leave it out when nodes are partitioned.")
    if groups is not None and (not isinstance(groups, int) or isinstance(groups, bool) or groups < 1):
        raise InputError(f"`groups` is how many groups of columns there are, at least 1; got {groups!r}.")
    if isinstance(partition, str) and partition == "columns":
        return ByColumns(task, comm, groups), {"partition": partition, "groups": groups}
    if isinstance(partition, str) and partition in ("nodes", "metis"):
        return ByNodes(task, comm, partition), {"partition": partition, "workers": comm.size}
    if isinstance(partition, str | PathLike):
        if Path(partition).suffix != ".npy":
            raise unknown_name("partition", str(partition), ("columns", "nodes", "metis", "FILE.npy"))
        partition = open_array(Path(partition))
    array = np.asarray(partition.detach().cpu() if hasattr(partition, "detach") else partition)
    identity = array_identity("partition", np.array(array))[1]["partition"]
    return ByNodes(task, comm, array), {"partition": identity, "workers": comm.size}


class ByColumns(Arrangement):
    """Every worker has the whole graph and some of the columns; hops need no communication."""

    by_columns = True

    def __init__(self, task: PropagationTask, comm: Communicator, wanted: int | None) -> None:
        super().__init__(task, comm)
        self.wanted = wanted

    def groups(self, store: FolderStore) -> list[Shape]:
        """On the groups the result depends, not on the workers: an interrupted call is resumed with its own."""
        comm, width, kept = self.comm, self.task.features.f, store.get("plan")
        if kept:
            shapes = [Shape(*each) for each in kept["groups"]]
        elif self.wanted is not None:
            shapes = dealt(width, self.wanted, 1)
        else:
            shapes = dealt(width, least_groups(self.task, width, self.task.budget_on(width)), comm.size)
        if comm.size > len(shapes):
            raise comm.refuse(
                f"{comm.size} workers are too many for {len(shapes)} group{'s' if len(shapes) > 1 else ''} of columns "
                f"({width:,} features make {-(-width // LANES)} of {LANES} at most); start {len(shapes)}, or partition the "
                f"nodes with partition='nodes' (--partition nodes)."
            )
        _record(store, shapes)
        return shapes

    def tiles(self, store: FolderStore, goal: Goal) -> tuple[list[Shape], TileFiles | None]:
        comm, width, shapes = self.comm, self.task.features.f, tile_shapes(self.task.features.f, self.task.features.n)
        if comm.size > len(shapes):
            raise comm.refuse(
                f"{comm.size} workers are too many for max_error, which propagates {width:,} features in {len(shapes)} "
                f"tile{'s' if len(shapes) > 1 else ''} of up to {shapes[0].width} columns; start {len(shapes)}."
            )
        _record(store, shapes)
        return shapes, None


class ByNodes(Arrangement):
    """Every worker has some rows and the edges into them, and receives other rows before each hop."""

    part: Part

    def __init__(self, task: PropagationTask, comm: Communicator, way: str | NDArray[Any]) -> None:
        """`way`: "nodes", "metis", or the worker of each node."""
        super().__init__(task, comm)
        self.way, self.rows_comm = way, comm

    def groups(self, store: FolderStore) -> list[Shape]:
        task, width = self.task, self.task.features.f
        return self._parts(store, cut(width, least_groups(task, width, task.budget_on(width))))

    def tiles(self, store: FolderStore, goal: Goal) -> tuple[list[Shape], TileFiles | None]:
        features = self.task.features
        return self._parts(store, tile_shapes(features.f, features.n)), None

    def _parts(self, store: FolderStore, shapes: list[Shape]) -> list[Shape]:
        with self.comm.agreed():
            owners = self._owners()
        _record(store, shapes)
        self.owners = owners or self._metis(store)
        return shapes

    def _owners(self) -> Owners | None:
        graph, workers = self.task.op.graph, self.comm.size
        if isinstance(self.way, np.ndarray):
            return Owners.given(self.way, graph.num_nodes, workers)
        return Owners(ranges(graph, workers)) if self.way == "nodes" else None

    def _metis(self, store: FolderStore) -> Owners:
        """By the first worker, once: the result of METIS may vary."""
        graph, comm, file = self.task.op.graph, self.comm, store.folder / "owners"
        with comm.agreed():
            if store.journal and store.journal.get("owners") is None:
                store.record(owners=state_files.save(file, [metis(graph, comm.size)]))
        crc, worker = store.get("owners"), np.empty(graph.num_nodes, dtype=np.int64)
        with comm.agreed():
            state_files.load(file, [worker], crc)
            return Owners.given(worker, graph.num_nodes, comm.size)

    def view(self, store: FolderStore, basis: Basis, groups: list[Shape]) -> View:
        op = self.task.op
        op.diffusion.release()
        self.part = Part.of(op.graph, self.owners, self.comm)
        diffusion = Diffusion(self.part.graph, op.diffusion.r)
        return PartitionView(self.task.features, basis, PartitionOperator(diffusion, op.scheme, op.hops, op.threads, self.part))

    def symmetric(self, view: View, files: TileFiles | None) -> tuple[SymmetricOperator, FeatureMatrix]:
        return PartitionedRows.of(view.op, series_of(view.op)), PartRows(self.task.features, self.part)

    def pieces(self) -> list[tuple[int, int]]:
        step, owned = max(1, self.task.features.chunks()[0][1]), self.part.owned
        return [(first, min(first + step, owned)) for first in range(0, owned, step)]

    def nodes(self, first: int, last: int) -> NDArray[np.int64]:
        return self.part.nodes[first:last]


def dealt(width: int, least: int, workers: int) -> list[Shape]:
    """Groups of columns, of like size: at least so many, and as many for each worker."""
    blocks = -(-width // LANES)
    count = max(-(-blocks // MAX_BLOCKS), least, workers)
    count = min(-(-count // workers) * workers, blocks)
    ends = [number * blocks // count for number in range(count + 1)]
    return [Shape(LANES * a, min(LANES * b, width) - LANES * a, b - a) for a, b in pairwise(ends)]


def _record(store: FolderStore, shapes: list[Shape]) -> None:
    store.record(plan={"form": FORM, "groups": [[shape.column, shape.width, shape.blocks] for shape in shapes]})
