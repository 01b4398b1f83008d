"""The command line: the library's sentences with spaces. One thin function per command.

Results go to stdout (`--json` for machines), progress and notes to stderr. A user's mistake is one sentence and exit code 2;
Ctrl-C is exit code 130. Set UNIFEWS_DEBUG=1 to see tracebacks instead. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from unifews import __version__
from unifews.errors import GraphError, InputError, MissingFileError, ShapeError, UnifewsError, unknown_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from unifews.core.graph import Graph
    from unifews.core.schemes import Scheme
    from unifews.core.trace import Trace
    from unifews.propagation import Propagated

Progress = Callable[[int, int], None]

_WIDTH = 112  # of tables that do not go to a terminal
_EDGE_LISTS = (".npy", ".csv", ".tsv", ".txt", ".gz", ".parquet")
_SIZES = ("tiny", "small", "arxiv", "products")


# ---------------------------------------------------------------------------------------------------- errors and output


class _Group(TyperGroup):
    """A group of commands that ends in one sentence where typer would draw a frame or print a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        def run() -> Any:
            return super(_Group, self).main(args, prog_name, complete_var, False, windows_expand_args, **extra)

        return sys.exit(_exit_code(run)) if standalone_mode else run()


def _exit_code(run: Callable[[], Any]) -> int:
    """Run a command; say in one sentence what went wrong."""
    debug = os.environ.get("UNIFEWS_DEBUG") == "1"
    try:
        code = run()
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # whoever read our output has left
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - stands in for stdout until the end of the process
        return 1
    except (UnifewsError, OSError) as error:
        if debug:
            raise
        return _fail(_sentence(error))
    except MemoryError as error:
        if debug:
            raise
        return _fail(f"there is not enough memory for this: {str(error).strip() or 'an allocation failed'}.")
    except Exception as error:
        if hasattr(error, "format_message"):  # what typer raises for a mistyped command line
            return _fail(_usage(error))
        if debug:
            raise
        return _fail(
            f"this is a bug in unifews, {type(error).__name__}: {error}. UNIFEWS_DEBUG=1 shows where; please report it.", 1
        )
    if code == 130:
        return _fail("interrupted; nothing was written.", 130)
    return code if isinstance(code, int) else 0


def _fail(sentence: str, code: int = 2) -> int:
    sys.stderr.write(f"unifews: {sentence}\n")
    return code


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and not isinstance(error, UnifewsError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        return f"cannot use{where}: {error.strerror}."
    return " ".join(str(error).split())


def _usage(error: Any) -> str:
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "unifews"
    return f"{message[:1].lower()}{message[1:]} (see {command} --help)."


def _console(table: Table | None = None) -> Console:
    """Where results are printed, wide enough for `table`: a terminal may wrap a row, but digits are never cut off."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    if table is not None:
        console.width = max(console.width, Console(width=1000).measure(table).maximum)
    return console


def _note(sentence: str) -> None:
    sys.stderr.write(f"note: {sentence}\n")


def _print_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """JSON knows no infinity; it is written as a string."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and value - value != 0 else value


@contextmanager
def _bar(what: str) -> Iterator[Progress | None]:
    """A progress bar on stderr that vanishes when done; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _stage() -> Iterator[Callable[[str], None]]:
    """Says on stderr what is going on, one line that is overwritten; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(text)


# ----------------------------------------------------------------------------------------------------------------- app

app = typer.Typer(cls=_Group, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
bench_app = typer.Typer(cls=_Group, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(bench_app, name="bench", help="Measure the kernels on this machine.")


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from unifews.kernels import native, threads_to_use

    threads = threads_to_use(None) if native.openmp() else 1
    sys.stdout.write(
        f"unifews {__version__}\n"
        f"kernels: {native.level()} (this processor runs {', '.join(native.levels())})\n"
        f"threads: {threads}\n"
        f"OpenMP: {'yes' if native.openmp() else 'no'}\n"
    )
    raise typer.Exit


@app.callback(invoke_without_command=True)
def unifews(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show version, kernels and threads, and exit."),
    ] = False,
) -> None:
    """Cheaper graph neural networks: skip the entries of their matrix products that do not matter."""
    _help_if_alone(context)


@bench_app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure the kernels on this machine."""
    _help_if_alone(context)


def _help_if_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


# ----------------------------------------------------------------------------------------------------------- propagate


@app.command()
def propagate(
    graph: Annotated[
        Path,
        typer.Argument(metavar="GRAPH", help="Graph folder, .npz, .npy [2, m], .csv, .tsv, .txt (or .gz), or .parquet."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="P.npy", help="Where the embedding goes.")],
    features: Annotated[
        Path | None,
        typer.Option("--features", "-x", metavar="X.npy", help="Features [n, f], .npy or .npz; not needed if GRAPH holds x."),
    ] = None,
    undirected: Annotated[bool, typer.Option("--undirected", help="Use every edge in both directions.")] = False,
    scheme: Annotated[str, typer.Option(metavar="appnp|sgc", help="What is computed.")] = "appnp",
    alpha: Annotated[
        float | None, typer.Option(metavar="A", help="APPNP: share of its own features a node keeps, 0.1 unless given.")
    ] = None,
    skip: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Skip connection: diagonal (APPNP's), identity (SGC's), identity+loop, none."),
    ] = None,
    tail: Annotated[
        bool, typer.Option("--tail/--no-tail", help="APPNP: with the last power's remainder, or as printed in the paper.")
    ] = True,
    hops: Annotated[int, typer.Option(metavar="L", help="Propagation steps.")] = 20,
    r: Annotated[float, typer.Option("--r", metavar="R", help="T = D^-(1-r) (A + I) D^-r.")] = 0.5,
    edge_sparsity: Annotated[
        float | None, typer.Option(metavar="S", help="Share of the products to remove, 0.9 for nine in ten.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(metavar="D", help="Instead: remove messages smaller than this.")] = None,
    relative_threshold: Annotated[
        float | None, typer.Option(metavar="C", help="Instead: remove messages smaller than C times the hop's mean.")
    ] = None,
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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trace as JSON.")] = False,
) -> None:  # fmt: skip
    """Propagate features over a graph, skipping the entries that do not matter."""
    from unifews.propagation.api import propagate as run

    targets = _targets(out, coordinates, overwrite, inputs=(graph, features or graph))
    chosen = _scheme(scheme, alpha, skip, tail, hops, r)
    pruned = _check_pruning(edge_sparsity, threshold, relative_threshold, inherit)
    _check_axes(entries, basis, rank, coordinates, pruned)
    _check_threads(threads)
    g, x = _load(graph, features, undirected, rank)
    with _bar("propagating") as progress:
        result = run(
            g, x, chosen, hops, r,
            edge_sparsity=edge_sparsity, threshold=threshold, relative_threshold=relative_threshold,
            entries=entries, basis=basis, rank=rank, deflate=deflate, inherit=inherit,  # type: ignore[arg-type]
            threads=threads, progress=progress,
        )  # fmt: skip
    shape = _write(result, targets, overwrite)
    if as_json:
        _print_json(_report(graph, g, result, shape, targets))
    else:
        _show(g, chosen, result, shape, targets)


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


def _scheme(name: str, alpha: float | None, skip: str | None, tail: bool, hops: int, r: float) -> Scheme:
    from unifews.core.schemes import Appnp, Sgc, resolve

    if name not in ("appnp", "sgc"):
        raise unknown_name("scheme", name, ("appnp", "sgc"))
    if not 0 <= r <= 1:
        raise InputError(f"--r, the exponent of the source's degree, lies in [0, 1]; got {r:g}.")
    given: dict[str, Any] = {} if skip is None else {"skip": skip}
    if name == "appnp":
        return resolve(Appnp(**given, alpha=0.1 if alpha is None else alpha, tail=tail), hops)[0]
    if alpha is not None or not tail:
        raise InputError("--alpha and --no-tail belong to --scheme appnp; SGC has no such terms.")
    return resolve(Sgc(**given), hops)[0]


def _check_pruning(edge_sparsity: float | None, threshold: float | None, relative: float | None, inherit: bool) -> bool:
    """Whether anything is to be pruned."""
    from unifews.core.budget import check_sparsity, check_threshold

    given = {"--edge-sparsity": edge_sparsity, "--threshold": threshold, "--relative-threshold": relative}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are ways to say the same thing; give one of them.")
    for name, value in given.items():
        if value is not None:
            (check_sparsity if name == "--edge-sparsity" else check_threshold)(name, value)
    if inherit and not given:
        raise InputError("--inherit removes nothing by itself; add --edge-sparsity, --threshold or --relative-threshold.")
    return bool(given) and edge_sparsity != 0


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


def _load(path: Path, features: Path | None, undirected: bool, rank: int | None) -> tuple[Graph, Any]:
    """Graph and features, the sizes of which fit."""
    from unifews.core.files import read_graph, read_matrix

    if not path.exists():
        raise MissingFileError(f"there is no graph {path}.")
    if features is None and not _holds_features(path):
        raise InputError(f"{path} holds no features; give them with --features X.npy.")
    x = read_matrix(features or path, dense=False)
    n, f = x.shape
    if rank is not None and rank > f:
        raise InputError(f"--rank {rank} is more than the {f:,} features there are.")
    listed = path.is_file() and path.suffix.lower() in _EDGE_LISTS
    try:
        g = read_graph(path, num_nodes=n)
    except GraphError as error:
        if not listed:
            raise
        raise ShapeError(f"{path} does not fit the {n:,} rows of {features}: {error}") from error
    if g.num_nodes != n:
        hint = " Did you give the transposed matrix?" if f == g.num_nodes else ""
        raise ShapeError(f"{features or 'x'} has {n:,} rows, but {path} has {g.num_nodes:,} nodes; each has one row.{hint}")
    if undirected:
        g = _both_directions(g)
    elif listed and not g.is_symmetric:
        _note(f"{path} is directed, source then target; add --undirected to use its edges both ways.")
    return g, x


def _holds_features(path: Path) -> bool:
    import zipfile

    if path.suffix != ".npz" or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return not {"x.npy", "x_indptr.npy"}.isdisjoint(archive.namelist())


def _both_directions(g: Graph) -> Graph:
    """Every edge and its reverse; where both are there already, the larger weight. A symmetric graph stays as it is."""
    import numpy as np

    from unifews.core.graph import Graph

    if g.is_symmetric:
        return g
    if g.is_weighted:
        adjacency = g.to_scipy()
        return Graph.from_scipy(adjacency.maximum(adjacency.T))
    edges = g.to_edge_index()
    return Graph.from_edge_index(np.concatenate([edges, edges[::-1]], axis=1), g.num_nodes)


def _write(result: Propagated, targets: list[Path], overwrite: bool) -> list[int]:
    """All files or none; the shape of the first."""
    from numpy.lib.format import write_array

    from unifews.core.atomic import atomic_file

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
    }


def _show(g: Graph, scheme: Scheme, result: Propagated, shape: list[int], targets: list[Path]) -> None:
    trace = result.trace
    table = _trace_table(trace)
    console = _console(table)
    console.print(table)
    name = type(scheme).__name__.upper()
    console.print(f"{name}, {len(trace.hops)} hops, {trace.requested}; {g.num_nodes:,} nodes, {g.num_edges:,} edges")
    if trace.basis_macs:
        axes = f"{trace.rank} axes; " if trace.rank is not None else ""
        console.print(
            f"basis: {axes}{trace.basis_macs:,} MACs in {trace.basis_seconds:.3f} s, listed apart; "
            f"norm left out {trace.dropped_norm:.3g}"
        )
    console.print(f"kernel: {trace.kernel}")
    for note in trace.notes:
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


# ----------------------------------------------------------------------------------------------------- demo, benchmarks


@app.command()
def demo(as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False) -> None:
    """Make a graph with classes, propagate it unpruned and pruned, and compare cost, error and accuracy. No download."""
    from unifews import demo as module

    with _stage() as say:
        result = module.run(say)
    if as_json:
        _print_json(result.to_dict())
        return
    table = module.table(result)
    console = _console(table)
    console.print(module.before(result), soft_wrap=True)
    console.print(table)
    console.print(module.AFTER, soft_wrap=True)


@bench_app.command("propagation")
def bench_propagation(
    size: Annotated[str, typer.Option(metavar="|".join(_SIZES), help="The generated graph to measure on.")] = "small",
    trials: Annotated[int, typer.Option(metavar="N", help="Runs of each case; the median is shown.")] = 5,
    verify: Annotated[bool, typer.Option("--verify", help="Also compare the results with slow, independent ones.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
) -> None:
    """Time of a propagation, unpruned and pruned, beside scipy and torch."""
    if size not in _SIZES:
        raise unknown_name("size", size, _SIZES)
    if trials < 1:
        raise InputError(f"--trials is at least 1; got {trials}.")
    module = import_module("unifews.bench.propagation")
    with _stage() as say:
        result = module.run(size, trials, verify, say)
    if as_json:
        _print_json(result)
    else:
        module.render(result, _console())


def main() -> None:
    """The entry point of the `unifews` script."""
    app(prog_name="unifews")


if __name__ == "__main__":
    main()
