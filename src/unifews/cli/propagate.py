"""`unifews propagate`: features over a graph, from files to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unifews.cli import output
from unifews.cli.crew import Crew, crew
from unifews.cli.generate import Again, resumable
from unifews.distributed.launch import launched
from unifews.errors import InputError, MissingFileError, unknown_name

if TYPE_CHECKING:
    from rich.table import Table

    from unifews.core.graph import Graph
    from unifews.core.schemes import Scheme
    from unifews.core.trace import Trace
    from unifews.datasets.dataset import Dataset
    from unifews.propagation import Propagated


Directions = Annotated[
    bool | None,
    typer.Option(
        "--undirected/--directed",
        help="Add the reverse of each edge, or keep directions. Default: an edge list is undirected, a graph stays as it is.",
    ),
]


def propagate(
    graph: Annotated[
        Path,
        typer.Argument(
            metavar="GRAPH",
            help="Folder (graph or dataset), .npz, .npy [2, m], .csv, .tsv, .txt (.gz), .parquet, or a known dataset's name.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="P.npy", help="Where the embedding goes.")],
    features: Annotated[
        Path | None,
        typer.Option(
            "--features", "-x", metavar="X.npy", help="Features [n, f], if GRAPH holds none; .npy, .npz, .csv or .parquet."
        ),
    ] = None,
    undirected: Directions = None,
    scheme: Annotated[str, typer.Option(metavar="appnp|sgc", help="What is computed.")] = "appnp",
    alpha: Annotated[
        float | None, typer.Option(metavar="A", help="APPNP: share of its own features a node keeps, 0.1 unless given.")
    ] = None,
    skip: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Skip connection: diagonal (APPNP's), identity (SGC's), identity+loop, none."),
    ] = None,
    tail: Annotated[
        bool | None,
        typer.Option("--tail/--no-tail", help="APPNP: with the last power's remainder (unless given), or as in the paper."),
    ] = None,
    hops: Annotated[int, typer.Option(metavar="L", help="Propagation steps.")] = 20,
    r: Annotated[float, typer.Option("--r", metavar="R", help="T = D^-(1-r) (A + I) D^-r.")] = 0.5,
    edge_sparsity: Annotated[
        float | None, typer.Option(metavar="S", help="Share of the products to remove, 0.9 for nine in ten.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(metavar="D", help="Instead: remove messages smaller than this.")] = None,
    relative_threshold: Annotated[
        float | None, typer.Option(metavar="C", help="Instead: remove messages smaller than C times the hop's mean.")
    ] = None,
    max_error: Annotated[
        float | None, typer.Option(metavar="E", help="Instead: remove as much as keeps the certified relative error below E.")
    ] = None,
    certify: Annotated[bool, typer.Option("--certify", help="Also tell a proven upper bound on the error.")] = False,
    certify_sampled: Annotated[
        bool,
        typer.Option("--certify-sampled", help="A bound by 16 random directions: 4 times the error, wrong once in a million."),
    ] = False,
    entries: Annotated[
        str, typer.Option(metavar="block|feature|node", help="What one decision covers: 16 features, one, or all of a node's.")
    ] = "block",
    basis: Annotated[str, typer.Option(metavar="principal|input", help="The axes that are pruned.")] = "principal",
    rank: Annotated[
        int | None, typer.Option(metavar="K", help="Leading principal axes to propagate, chosen unless given.")
    ] = None,
    deflate: Annotated[
        bool | None,
        typer.Option("--deflate/--no-deflate", help="Carry the stationary part exactly; on unless --basis input."),
    ] = None,
    inherit: Annotated[bool, typer.Option("--inherit", help="What is removed once stays removed (the paper's form).")] = False,
    threads: Annotated[int | None, typer.Option(metavar="N", help="Kernel threads, all cores unless given.")] = None,
    coordinates: Annotated[
        bool,
        typer.Option("--coordinates", help="Write principal coordinates to P.npy and the axes to P.basis.npy."),
    ] = False,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="WAY", help="Under torchrun, what workers share: columns (unless given), nodes, metis, or FILE.npy [n]."
        ),
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option(metavar="N", help="Under torchrun: groups that columns are cut into, as many as workers unless given."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Work through files with no more memory than this, such as 12GB; can be resumed."),
    ] = None,
    again: Again = False,
    careful: Annotated[
        bool,
        typer.Option(
            "--careful", help="Keep the state after every hop, so that a kill loses one at most; through files, by workers."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trace as JSON.")] = False,
) -> None:  # fmt: skip
    """Propagate features over a graph, skipping the entries that do not matter.

    Several workers share the work where torchrun starts them: torchrun --nproc-per-node=4 -m unifews propagate GRAPH ...
    """
    from unifews.storage.journal import folder_of

    with crew(partition is not None or groups is not None) as workers:
        with workers.agreed():
            if workers.group is not None:
                _check_workers(memory, coordinates, rank, relative_threshold, max_error, certify, certify_sampled)
            if memory is not None:
                _check_beyond_memory(memory, coordinates, undirected, certify, certify_sampled)
            through_files = memory is not None or workers.group is not None
            for option, is_given in (("--careful", careful), ("--again", again)):
                if is_given and not through_files:
                    raise InputError(
                        f"{option} is about work through files; add --memory 12GB, or have torchrun start workers."
                    )
            if workers.group is not None and not launched():
                output.note("this is one worker, which --partition and --groups leave all the work; torchrun starts several.")
            resumed = through_files and folder_of(out).exists()  # then a result may be there, moved in place by a killed call
            targets = _targets(out, coordinates, overwrite or resumed, inputs=(graph, features or graph))
            chosen = _scheme(scheme, alpha, skip, tail, hops, r)
            if certify and certify_sampled:
                raise InputError("--certify and --certify-sampled are two ways to a bound; give one of them.")
            if max_error is not None and certify_sampled:
                raise InputError("--max-error comes with a proven bound; leave out --certify-sampled.")
            pruned = _check_pruning(edge_sparsity, threshold, relative_threshold, max_error, inherit)
            _check_axes(entries, basis, rank, coordinates, pruned)
            _check_threads(threads)
            g, x = _load(graph, features, undirected, rank, memory is not None)
        how: dict[str, Any] = {}
        if through_files:
            how |= {"out": out, "overwrite": overwrite, "again": again, "careful": careful}
        if workers.group is not None:
            how |= {"partition": partition or "columns", "groups": groups}
        else:
            how |= {
                "relative_threshold": relative_threshold, "max_error": max_error, "rank": rank,
                "certify": "sampled" if certify_sampled else certify,
            }  # fmt: skip
        if memory is not None:
            how |= {"memory": memory, "plan": lambda plan: output.note(f"plan: {plan}.")}
        with output.bar("propagating") as progress, resumable(out) if through_files else nullcontext():
            result = _propagator(workers)(
                g, x, chosen, hops, r, edge_sparsity=edge_sparsity, threshold=threshold,
                entries=entries, basis=basis, deflate=deflate, inherit=inherit,
                threads=threads, progress=progress if workers.is_first else None, **how,
            )  # fmt: skip
        if not workers.is_first:
            return
        shape = [int(side) for side in result.embedding.shape] if through_files else _write(result, targets, overwrite)
        if as_json:
            output.print_json(_report(graph, g, result, shape, targets))
        else:
            _show(g, chosen, result, shape, targets)


def _propagator(workers: Crew) -> Callable[..., Propagated]:
    if workers.group is not None:
        from unifews.distributed import propagate as by_all

        return by_all
    from unifews.propagation.api import propagate as alone

    return alone


def _check_workers(
    memory: str | None,
    coordinates: bool,
    rank: int | None,
    relative_threshold: float | None,
    max_error: float | None,
    certify: bool,
    certify_sampled: bool,
) -> None:
    """What workers do not have."""
    given = {
        "--memory": memory is not None, "--coordinates": coordinates, "--rank": rank is not None, "--certify": certify,
        "--relative-threshold": relative_threshold is not None, "--max-error": max_error is not None,
        "--certify-sampled": certify_sampled,
    }  # fmt: skip
    for option, is_given in given.items():
        if is_given:
            asked = "torchrun" if launched() else "--partition and --groups"
            raise InputError(f"{option} is for one process alone; leave it out, or leave out {asked}.")


def _check_beyond_memory(memory: str, coordinates: bool, undirected: bool | None, certify: bool, certify_sampled: bool) -> None:
    from unifews.resources import parse_bytes

    parse_bytes(memory, "--memory")
    if coordinates:
        raise InputError("--coordinates cannot go with --memory, which writes the embedding; leave one of them out.")
    if undirected:
        raise InputError("--undirected makes its graph in memory; run `unifews data convert` first, and leave it out here.")
    if certify or certify_sampled:
        option = "--certify" if certify else "--certify-sampled"
        raise InputError(f"{option} needs all columns at once, and --memory takes them group by group; leave one of them out.")


def _targets(out: Path, coordinates: bool, overwrite: bool, inputs: tuple[Path, ...]) -> list[Path]:
    """The files to write, after checking that they can be written."""
    if out.suffix != ".npy":
        raise InputError(f"--out {out} must end in .npy, the format it is written in.")
    targets = [out, out.with_suffix(".basis.npy")] if coordinates else [out]
    folder = out.parent
    if not folder.is_dir():
        raise MissingFileError(f"cannot write {out}: there is no folder {folder}.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {out}: the folder {folder} is write-protected.")
    for target in targets:
        if target.is_dir():
            raise InputError(f"cannot write {target}: it is a folder.")
        if target.exists() and any(path.exists() and target.samefile(path) for path in inputs):
            raise InputError(f"{target} is one of the inputs; give --out another name.")
        if target.exists() and not overwrite:
            raise InputError(f"{target} already exists; add --overwrite to replace it, or give --out another name.")
    return targets


def _scheme(name: str, alpha: float | None, skip: str | None, tail: bool | None, hops: int, r: float) -> Scheme:
    from unifews.core.schemes import Appnp, Sgc, resolve

    if name not in ("appnp", "sgc"):
        raise unknown_name("scheme", name, ("appnp", "sgc"))
    if not 0 <= r <= 1:
        raise InputError(f"--r, the exponent of the source's degree, lies in [0, 1]; got {r:g}.")
    given: dict[str, Any] = {} if skip is None else {"skip": skip}
    if name == "appnp":
        return resolve(Appnp(**given, alpha=0.1 if alpha is None else alpha, tail=tail is not False), hops)[0]
    if alpha is not None or tail is not None:
        raise InputError("--alpha, --tail and --no-tail belong to --scheme appnp; SGC has no such terms.")
    return resolve(Sgc(**given), hops)[0]


def _check_pruning(
    edge_sparsity: float | None, threshold: float | None, relative: float | None, max_error: float | None, inherit: bool
) -> bool:
    """Whether anything is to be pruned."""
    from unifews.core.checks import check_error, check_sparsity, check_threshold

    checks = {"--edge-sparsity": check_sparsity, "--max-error": check_error}
    given = {
        "--edge-sparsity": edge_sparsity, "--threshold": threshold, "--relative-threshold": relative, "--max-error": max_error
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are ways to say the same thing; give one of them.")
    for name, value in given.items():
        if value is not None:
            checks.get(name, check_threshold)(name, value)
    if inherit and not given:
        raise InputError(
            "--inherit removes nothing by itself; add --edge-sparsity, --threshold, --relative-threshold or --max-error."
        )
    return bool(given) and edge_sparsity != 0 and max_error != 0


def _check_axes(entries: str, basis: str, rank: int | None, coordinates: bool, pruned: bool) -> None:
    for option, value, known in [
        ("--entries", entries, ("block", "feature", "node")),
        ("--basis", basis, ("principal", "input")),
    ]:
        if value not in known:
            raise unknown_name(f"choice for {option}", value, known)
    if rank is not None and rank < 1:
        raise InputError(f"--rank is the number of axes to keep, at least 1; got {rank}.")
    if rank is not None and basis == "input":
        raise InputError("--rank counts principal axes; leave out --basis input, or --rank.")
    if coordinates and (basis == "input" or not (pruned or rank)):
        raise InputError("--coordinates needs principal axes: prune or give --rank, and leave out --basis input.")


def _check_threads(threads: int | None) -> None:
    from unifews.kernels import threads_to_use

    if threads is not None and threads < 1:
        raise InputError(f"--threads is at least 1; got {threads}.")
    threads_to_use(threads)


def _load(
    path: Path, features: Path | None, undirected: bool | None, rank: int | None, through_files: bool
) -> tuple[Graph, Any]:  # fmt: skip
    """Graph and features, the sizes of which fit."""
    from unifews.datasets.user_files import check_fit, check_there, is_edge_list, read_features, read_fitting_graph
    from unifews.io.edge_lists import kind_of
    from unifews.io.graphs import read_matrix

    dataset = _dataset(path)
    if dataset is None:
        check_there(path)
    if dataset is None and features is None and not _holds_features(path):
        raise InputError(f"{path} holds no features; give them with --features X.npy.")
    if through_files and undirected is None and is_edge_list(path):
        raise InputError(
            f"{path} is an edge list, to which reverse edges are added in memory; run `unifews data convert` first, or add "
            f"--directed."
        )
    if dataset and features is None:
        x = dataset.x
    elif features is not None and kind_of(features) not in (".npy", ".npz"):
        x = read_features(features)
    else:
        x = read_matrix(features or path, dense=False)
    if rank is not None and rank > x.shape[1]:
        raise InputError(f"--rank {rank} is more than the {x.shape[1]:,} features there are.")
    owner = str(features or "x")
    g = check_fit(dataset.graph, path, x.shape, owner) if dataset else read_fitting_graph(path, x.shape, owner)
    return with_directions(g, path, undirected), x


def with_directions(graph: Graph, path: Path, undirected: bool | None) -> Graph:
    """The graph of a file with the reverse of each edge, or as it is; None: an edge list gets them, as in `data convert`."""
    from unifews.datasets.user_files import is_edge_list

    if undirected is False or graph.is_symmetric or not (undirected or is_edge_list(path)):
        return graph
    both = graph.undirected()
    if undirected is None:
        added = both.num_edges - graph.num_edges
        output.note(f"{path} is used undirected: {added:,} reverse edges were added; --directed keeps edges as they are.")
    return both


def _dataset(path: Path) -> Dataset | None:
    """The dataset in a folder, or a known one by its name; a file or folder of that name comes first."""
    from unifews.datasets.folder import KIND, open_dataset
    from unifews.datasets.load import load_dataset
    from unifews.datasets.registry import RECORDS, find
    from unifews.storage.journal import folder_of

    if path.exists() or find(str(path)) is None:
        if not path.exists() and len(path.parts) == 1 and not path.suffix and not folder_of(path).exists():
            raise unknown_name("graph file, folder or dataset", str(path), RECORDS)
        return open_dataset(path) if KIND.describes(path) else None
    with output.stages(f"loading {path}") as progress:
        return load_dataset(str(path), progress=progress)


def _holds_features(path: Path) -> bool:
    from unifews.storage.archive import Archive

    return path.suffix == ".npz" and path.is_file() and not {"x", "x_indptr"}.isdisjoint(Archive(path))


def _write(result: Propagated, targets: list[Path], overwrite: bool) -> list[int]:
    """All files or none; the shape of the first."""
    from numpy.lib.format import write_array

    from unifews.storage.atomic import atomic_file

    arrays = [result.coordinates, result.basis] if len(targets) == 2 else [result.embedding]
    with ExitStack() as stack:
        files = [stack.enter_context(atomic_file(target, overwrite=overwrite)) for target in targets]
        for file, array in zip(files, arrays, strict=True):
            write_array(file, array, allow_pickle=False)
    return [int(side) for side in arrays[0].shape]


def _report(path: Path, g: Graph, result: Propagated, shape: list[int], targets: list[Path]) -> dict[str, Any]:
    return {
        "graph": {"path": str(path), "num_nodes": g.num_nodes, "num_edges": g.num_edges},
        "out": str(targets[0]),
        "basis": str(targets[1]) if len(targets) == 2 else None,
        "shape": shape,
        "exponent": result.exponent,
        **result.trace.to_dict(),
        "notes": _notes(result.trace),
    }


def _notes(trace: Trace) -> list[str]:
    return [*trace.notes, *([trace.slower] if trace.slower else [])]


def _show(g: Graph, scheme: Scheme, result: Propagated, shape: list[int], targets: list[Path]) -> None:
    trace = result.trace
    table = _trace_table(trace)
    console = output.console(table)
    console.print(table)
    name = type(scheme).__name__.upper()
    console.print(f"{name}, {len(trace.hops)} hops, {trace.requested}; {g.num_nodes:,} nodes, {g.num_edges:,} edges")
    if trace.basis_macs:
        axes = f"{trace.rank} axes; " if trace.rank is not None else ""
        console.print(
            f"basis: {axes}{trace.basis_macs:,} MACs in {trace.basis_seconds:.3f} s, listed apart; "
            f"norm left out {trace.dropped_norm:.3g}"
        )
    if trace.certified:
        console.print(f"certified: {trace.certified}")
    if trace.traffic:
        console.print(str(trace.traffic))
    console.print(f"kernel: {trace.kernel}")
    for note in _notes(trace):
        console.print(f"note: {note}")
    console.print(f"wrote {' and '.join(map(str, targets))}: float32 [{', '.join(map(str, shape))}]")


def _trace_table(trace: Trace) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    totals = {
        "hop": "all",
        "entries": f"{sum(hop.entries for hop in trace.hops):,}",
        "kept": f"{sum(hop.kept for hop in trace.hops):,}",
        "zero": f"{sum(hop.zeros for hop in trace.hops):,}",
        "MACs": f"{trace.macs:,}",
        "removed": f"{trace.edge_sparsity:.1%}",
        "threshold": "",
        "seconds": f"{trace.seconds:.3f}",
    }
    for name, total in totals.items():
        table.add_column(name, total, justify="right", no_wrap=True)
    for hop in trace.hops:
        delta = "-" if hop.threshold is None else f"{hop.threshold:.3g}"
        table.add_row(
            str(hop.index), f"{hop.entries:,}", f"{hop.kept:,}", f"{hop.zeros:,}", f"{hop.macs:,}", f"{hop.sparsity:.1%}",
            delta, f"{hop.seconds:.3f}",
        )  # fmt: skip
    return table
