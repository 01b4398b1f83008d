"""`unifews propagate`: propagate features over a graph, from files to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unifews.cli import console
from unifews.cli.errors import resumable
from unifews.cli.options import (
    EXECUTION,
    MODEL,
    PRUNING,
    AsJson,
    Features,
    Memory,
    Overwrite,
    Restart,
    Threads,
    Undirected,
    configured,
    flag,
    out_flag,
)
from unifews.cli.train import train_options
from unifews.errors import InputError, unknown_name
from unifews.resources import launched, parse_bytes

if TYPE_CHECKING:
    from unifews.core.config import Option
    from unifews.core.entry import Amounts
    from unifews.core.graph import Graph
    from unifews.core.schemes import Scheme
    from unifews.datasets.dataset import Dataset
    from unifews.propagation import Propagated
    from unifews.propagation.config import PropagationConfig

_EDGE_AMOUNTS = ("edge_sparsity", "edge_threshold", "relative_threshold", "max_error")
_WITHOUT_FLAG = ("every_hop", "certify")  # for Python only; --certify and --certify-sampled are written below
_SCHEME = ("hops", "alpha", "r", "skip")
_ONE_PROCESS = ("relative_threshold", "rank")  # options that several workers do not have

_CERTIFY = flag("--certify", panel=PRUNING, help="Also compute a proven upper bound on the error.")
_SAMPLED = flag(
    "--certify-sampled", panel=PRUNING, help="Or a bound by 16 random directions, wrong once in a million.", rare=True
)
_SCHEMES = "appnp|sgc|ppr|heat"
_TAIL = flag("--tail/--no-tail", panel=MODEL, help="APPNP: with the remainder of the last power, or without.", rare=True)
_TIME = flag("--time", panel=MODEL, metavar="T", help="Heat kernel: how long the heat diffuses; default: 5.", rare=True)
_COORDINATES = flag("--coordinates", help="Write principal coordinates, and their basis to P.basis.npy.", rare=True)
_PARTITION = flag(
    "--partition", panel=EXECUTION, metavar="WAY", help="Torchrun: columns, nodes, metis or FILE.npy to distribute.", rare=True
)
_GROUPS = flag("--groups", panel=EXECUTION, metavar="N", help="Torchrun: number of column groups; default: workers.", rare=True)
_EVERY_HOP = flag("--checkpoint-every-hop", panel=EXECUTION, help="Out of core: store the state after every hop.", rare=True)


def _options() -> Iterator[Option]:
    from unifews.core.config import options_of
    from unifews.core.entry import Amounts
    from unifews.propagation.config import PropagationConfig

    yield from (option for option in options_of(Amounts) if option.name in _EDGE_AMOUNTS)
    yield from (option for option in options_of(PropagationConfig) if option.name not in _WITHOUT_FLAG)
    yield from (option for option in train_options() if option.name in _SCHEME)


@configured(_options, common=("edge_sparsity", "edge_threshold", "max_error", "hops", "alpha"))
def propagate(
    graph: Annotated[
        Path, typer.Argument(metavar="GRAPH", help="Edge list (.csv, .txt, .parquet, .npy), .npz, folder or dataset name.")
    ],
    out: Annotated[Path, out_flag("P.npy")],
    features: Features = None,
    undirected: Undirected = None,
    scheme: Annotated[str, flag("--scheme", panel=MODEL, metavar=_SCHEMES, help="What to compute.")] = "appnp",
    tail: Annotated[bool | None, _TAIL] = None,
    time: Annotated[float | None, _TIME] = None,
    certify: Annotated[bool, _CERTIFY] = False,
    certify_sampled: Annotated[bool, _SAMPLED] = False,
    coordinates: Annotated[bool, _COORDINATES] = False,
    partition: Annotated[str | None, _PARTITION] = None,
    groups: Annotated[int | None, _GROUPS] = None,
    threads: Threads = None,
    memory: Memory = None,
    restart: Restart = False,
    checkpoint_every_hop: Annotated[bool, _EVERY_HOP] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Propagate features over a graph, to an allowed error or skipping the entries that do not matter.

    Several workers share the work under torchrun: torchrun --nproc-per-node=4 -m unifews propagate GRAPH ...
    """
    from unifews.propagation.tolerance import check as check_error
    from unifews.storage.journal import folder_of

    with console.workers(partition is not None or groups is not None) as workers:
        how: console.Json = {"threads": threads}
        files = memory is not None or workers.group is not None
        with workers.agreed():
            if workers.group is not None:
                _check_distributed(given, memory, coordinates, certify or certify_sampled)
                how |= {"partition": partition or "columns", "groups": groups}
            else:
                given |= _certify(certify, certify_sampled)
            chosen, hops, r = _scheme(scheme, {"tail": tail, "time": time}, given)
            amounts, config = _pruning(given)
            check_error(amounts, config, chosen)
            _check_flags(amounts, config, coordinates, memory, undirected)
            if (checkpoint_every_hop or restart) and not files:
                raise InputError("--restart and --checkpoint-every-hop need --memory, or workers started by torchrun.")
            targets = [out, out.with_suffix(".basis.npy")] if coordinates else [out]
            for target in targets:
                replaces = overwrite or (files and folder_of(out).exists())  # an interrupted call may have moved it there
                console.check_output(target, (".npy",), overwrite=replaces, inputs=(graph, features or graph))
            g, x = _load(graph, features, undirected, memory is not None)
        if files:
            how |= {"out": out, "overwrite": overwrite, "restart": restart, "checkpoint_every_hop": checkpoint_every_hop}
        if memory is not None:
            how |= {"memory": memory, "plan": lambda plan: console.note(f"plan: {plan}.")}
        with console.progress("propagating") as progress, resumable(out) if files else nullcontext():
            how |= {"progress": progress if workers.is_first else None}
            result = _run(workers.group is not None, (g, x, chosen, hops, r), features or graph, amounts, given, how)
        if workers.is_first:
            shape = [int(side) for side in result.embedding.shape] if files else _write(result, targets, overwrite)
            _report(graph, g, scheme, result, shape, targets, as_json)


def _run(
    distributed: bool, task: tuple[Any, ...], source: Path, amounts: Amounts, given: console.Json, how: console.Json
) -> Propagated:
    run: Callable[..., Propagated]
    if distributed:
        from unifews.propagation.distributed import propagate as run
    else:
        from unifews.propagation.api import propagate as run
    settings = {name: value for name, value in given.items() if name != "edge_threshold"}
    try:
        return run(*task, threshold=amounts.edge_threshold, **settings, **how)
    except InputError as error:
        error.args = (str(error).replace("`x`", str(source)),)  # the file that the user knows
        raise


# ------------------------------------------------------------------------------------------------------------- settings


def _check_distributed(given: console.Json, memory: str | None, coordinates: bool, certify: bool) -> None:
    """Refuse what several workers do not have."""
    asked = {"--memory": memory is not None, "--coordinates": coordinates, "--certify": certify}
    asked |= {f"--{name.replace('_', '-')}": name in given for name in _ONE_PROCESS}
    for option, is_given in asked.items():
        if is_given:
            cause = "torchrun" if launched() else "--partition and --groups"
            raise InputError(f"{option} is available in a single process only; leave it out, or leave out {cause}.")
    if not launched():
        console.note("this is a single worker, so --partition and --groups have no effect; torchrun starts several.")


def _certify(proven: bool, sampled: bool) -> console.Json:
    if proven and sampled:
        raise InputError("--certify and --certify-sampled exclude each other; give one of them.")
    return {"certify": "sampled" if sampled else True} if proven or sampled else {}


def _scheme(name: str, own: dict[str, Any], given: console.Json) -> tuple[Scheme, int | None, float]:
    """The scheme, its number of hops and r; taken out of `given`. `own`: flags that one scheme has."""
    from unifews.core.schemes import SCHEMES, resolve

    if name not in SCHEMES:
        raise unknown_name("scheme", name, sorted(SCHEMES))
    kind = SCHEMES[name]
    values: console.Json = {option: given.pop(option) for option in ("alpha", "skip") if option in given}
    values |= {option: value for option, value in own.items() if value is not None}
    for option in values:
        owners = [other for other, each in SCHEMES.items() if option in {field.name for field in fields(each)}]
        if name not in owners:
            raise InputError(f"--{option} belongs to --scheme {' or '.join(owners)}; {name} has no such setting.")
    hops, r = given.pop("hops", None), given.pop("r", 0.5)
    scheme, _ = resolve(kind(**values), hops)
    return scheme, hops, r


def _pruning(given: console.Json) -> tuple[Amounts, PropagationConfig]:
    """What is to be removed and how, checked before anything is read."""
    from unifews.core.config import check_needs
    from unifews.core.entry import Amounts
    from unifews.propagation.config import PropagationConfig

    amounts = Amounts(**{name: value for name, value in given.items() if name in _EDGE_AMOUNTS})
    config = PropagationConfig(**{name: value for name, value in given.items() if name not in _EDGE_AMOUNTS})
    check_needs(config, amounts, given=given)
    return amounts, config


def _check_flags(
    amounts: Amounts, config: PropagationConfig, coordinates: bool, memory: str | None, undirected: bool | None
) -> None:
    """Refuse combinations with flags that only the command has."""
    if memory is not None:
        parse_bytes(memory, "memory")
    if coordinates and amounts.max_error is not None:
        raise InputError(
            "--max-error propagates the features themselves; leave out --coordinates, or prune by --edge-sparsity."
        )
    if coordinates and (config.basis == "input" or not (amounts.prunes_edges or config.rank)):
        raise InputError("--coordinates needs a PCA basis: prune or add --rank, and leave out --basis input.")
    if coordinates and memory is not None:
        raise InputError("--memory writes the embedding; leave out --coordinates.")
    if undirected and memory is not None:
        raise InputError("--undirected needs the graph in memory; run unifews data convert first, and leave it out here.")


# --------------------------------------------------------------------------------------------------------------- inputs


def _load(path: Path, features: Path | None, undirected: bool | None, out_of_core: bool) -> tuple[Graph, Any]:
    """Graph and features of fitting sizes."""
    from unifews.datasets.user_files import check_fit, check_there, is_edge_list, read_features, read_fitting_graph
    from unifews.io.edge_lists import kind_of
    from unifews.io.graphs import read_matrix

    dataset = dataset_at(path)
    if dataset is None:
        check_there(path)
    if dataset is None and features is None and not _holds_features(path):
        raise InputError(f"{path} holds no features; give them with --features X.npy.")
    if out_of_core and undirected is None and is_edge_list(path):
        raise InputError(
            f"{path} is an edge list, to which reverse edges are added in memory; run unifews data convert first, or add "
            f"--directed."
        )
    if dataset and features is None:
        x = dataset.x
    elif features is not None and kind_of(features) not in (".npy", ".npz"):
        x = read_features(features)
    else:
        x = read_matrix(features or path, dense=False)
    owner = str(features or "x")
    g = check_fit(dataset.graph, path, x.shape, owner) if dataset else read_fitting_graph(path, x.shape, owner)
    return with_directions(g, path, undirected), x


def with_directions(graph: Graph, path: Path, undirected: bool | None) -> Graph:
    """The graph with reverse edges, or as it is; None: an edge list gets them, as in `unifews data convert`."""
    from unifews.datasets.user_files import is_edge_list

    if undirected is False or graph.is_symmetric or not (undirected or is_edge_list(path)):
        return graph
    both = graph.undirected()
    if undirected is None:
        added = both.num_edges - graph.num_edges
        console.note(f"{path} is used as an undirected graph: {added:,} reverse edges were added; --directed adds none.")
    return both


def dataset_at(path: Path) -> Dataset | None:
    """The dataset in a folder, or a known one by its name; files and folders take precedence over names."""
    from unifews.datasets.folder import KIND, open_dataset
    from unifews.datasets.load import load_dataset
    from unifews.datasets.registry import RECORDS, find
    from unifews.storage.journal import folder_of

    if path.exists() or find(str(path)) is None:
        if not path.exists() and len(path.parts) == 1 and not path.suffix and not folder_of(path).exists():
            raise unknown_name("graph file, folder or dataset", str(path), RECORDS)
        return open_dataset(path) if KIND.describes(path) else None
    with console.progress_bar(f"loading {path}") as progress:
        return load_dataset(str(path), progress=progress)


def _holds_features(path: Path) -> bool:
    from unifews.storage.archive import Archive

    return path.suffix == ".npz" and path.is_file() and not {"x", "x_indptr"}.isdisjoint(Archive(path))


# --------------------------------------------------------------------------------------------------------------- report


def _write(result: Propagated, targets: list[Path], overwrite: bool) -> list[int]:
    """Write all files or none; the shape of the first."""
    from numpy.lib.format import write_array

    from unifews.storage.atomic import atomic_file

    arrays = [result.coordinates, result.basis] if len(targets) == 2 else [result.embedding]
    with ExitStack() as stack:
        files = [stack.enter_context(atomic_file(target, overwrite=overwrite)) for target in targets]
        for file, array in zip(files, arrays, strict=True):
            write_array(file, array, allow_pickle=False)
    return [int(side) for side in arrays[0].shape]


def _report(
    path: Path, g: Graph, scheme: str, result: Propagated, shape: list[int], targets: list[Path], as_json: bool
) -> None:
    trace = result.trace
    notes = [*trace.notes, *([trace.slower] if trace.slower else [])]
    if as_json:
        report: console.Json = {
            "graph": {"path": str(path), "num_nodes": g.num_nodes, "num_edges": g.num_edges},
            "out": str(targets[0]),
            "basis": str(targets[1]) if len(targets) == 2 else None,
            "shape": shape,
            "exponent": result.exponent,
        }
        if result.accuracy is not None:
            plan = result.accuracy.plan
            report |= {
                "plan": None if plan is None else plan.to_dict(),
                "largest_column_error": float(result.column_errors.max(initial=0.0)),
            }
        console.print_json({**report, **trace.to_dict(), "notes": notes})
        return
    ran, planned = len(trace.ran), len(trace.hops)
    hops = f"{ran} hops" if ran == planned else f"{ran} of {planned} hops"
    head = f"{scheme.upper()}, {hops}, {trace.requested}; {g.num_nodes:,} nodes, {g.num_edges:,} edges"
    wrote = f"wrote {' and '.join(map(str, targets))}: float32 [{', '.join(map(str, shape))}]"
    notes = [f"note: {note}" for note in notes]
    console.echo(*trace.table(), head, *trace.summary(), f"kernel: {trace.kernel}", *notes, wrote)
