"""`unifews infer`: predict with a saved model, and measure how long it takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from unifews.cli import console
from unifews.cli.errors import configure_process
from unifews.cli.options import INPUT, AsJson, Features, Overwrite, Threads, Undirected, flag, out_flag
from unifews.cli.propagate import with_directions
from unifews.errors import InputError, ShapeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unifews.core.graph import Graph
    from unifews.serving.model import FrozenModel

Columns = dict[str, "NDArray[Any]"]
"""What is written, by the name of the column."""
Result = TypeVar("Result")

_SINGLE_NODES = 1_000  # nodes up to which each is predicted and timed alone, as in a service
_SUFFIXES = (".parquet", ".csv", ".npy")
_LABEL_ARRAYS = {"y", "labels", "node_labels"}


def infer(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", help="Folder written by unifews train --save or FrozenModel.save.")
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Dataset name, folder or .npz; or a graph file, with --features.")
    ],
    out: Annotated[Path, out_flag("FILE")],
    features: Features = None,
    undirected: Undirected = None,
    nodes: Annotated[
        str | None,
        flag("--nodes", panel=INPUT, metavar="1,5,7|FILE", help="Node numbers, a file of them or a mask; default: all."),
    ] = None,
    scores: Annotated[bool, flag("--scores", help="Also write the score of each class; in .npy instead of classes.")] = False,
    threads: Threads = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Predict the classes of nodes with a saved model, and report the latency.

    The result is a .parquet, .csv or .npy file. Up to 1,000 nodes are predicted one at a time, which measures the latency of a
    single prediction; more, or all, at once. Rows are in the order of --nodes. With several labels per node there is a column
    of 0 and 1 for each label.
    """
    configure_process()
    console.check_output(out, _SUFFIXES, overwrite=overwrite, inputs=[model, Path(data), *([features] if features else [])])
    named = None if nodes is None else _named_nodes(nodes)
    import unifews.serving.model  # noqa: F401 - imports torch, which should not count as reading the model

    frozen, read = _timed(lambda: _open(model, threads))
    (name, graph, x), loaded = _timed(lambda: _load(data, features, undirected))
    if x.shape[1] != frozen.num_features:
        raise ShapeError(
            f"{features or name} has {x.shape[1]:,} features, but {model} was trained on {frozen.num_features:,}; give it the "
            f"same ones."
        )
    chosen = None if named is None else _node_numbers(named, graph.num_nodes, name)
    made = _predict(frozen, graph, x, chosen)
    columns = _columns(made.scores, chosen, bool((frozen.record or {}).get("multilabel")), scores)
    _write(out, columns, overwrite)
    seconds = {"model": read, "data": loaded, "ready": made.ready, "predict": made.seconds}
    if as_json:
        console.print_json(_report(model, frozen, name, graph, made, out, seconds))
    else:
        _print_report(frozen, name, graph, made, out, columns, seconds)


class _Predictions(NamedTuple):
    scores: NDArray[np.float32]
    """[nodes, classes]."""
    ready: float
    """Seconds from graph and features to the first prediction; a decoupled model propagates here."""
    seconds: float
    """Seconds of all predictions."""
    each: NDArray[np.float64] | None
    """Seconds of each node predicted alone; None: all at once."""

    @property
    def throughput(self) -> float:
        """Nodes per second."""
        return len(self.scores) / max(self.seconds, 1e-9)


# --------------------------------------------------------------------------------------------------------------- inputs


def _named_nodes(text: str) -> NDArray[Any]:
    """The value of --nodes: numbers, or the column of a file."""
    import numpy as np

    parts = [part.strip() for part in text.split(",")]
    if all(part.lstrip("-").isdecimal() for part in parts):
        long = next((part for part in parts if len(part) > 18), None)
        if long is not None:
            raise InputError(f"--nodes names {long[:30]}, which is larger than any node number.")
        return np.array(parts, dtype=np.int64)
    path = Path(text)
    if not path.is_file():
        raise InputError(f"--nodes {text[:60]} is neither node numbers, as in 1,5,7, nor a file.")
    from unifews.io.tables import read_columns

    table = read_columns(path, ("index", "idx", "mask", "node"))
    if len(table.values) != 1:
        raise ShapeError(f"{path} has {len(table.values)} columns; --nodes takes one column, of node numbers or a mask.")
    column = table.values[0]
    if column.dtype.kind not in "iub":
        raise InputError(f"{path} holds {column.dtype.name} values; nodes are integers from 0, or a mask of all nodes.")
    return column


def _node_numbers(named: NDArray[Any], n: int, owner: str) -> NDArray[np.int64]:
    """Node numbers from numbers or from a mask (booleans, or 0 and 1 for each node)."""
    import numpy as np

    if not len(named):
        raise InputError("--nodes names no node; leave it out for all of them.")
    if named.dtype.kind == "b" or (len(named) == n > 2 and np.isin(named, (0, 1)).all()):
        if len(named) != n:
            raise ShapeError(f"--nodes has {len(named):,} flags, but {owner} has {n:,} nodes; give one each, or node numbers.")
        return np.flatnonzero(named)
    wrong = named[(named < 0) | (named >= n)]
    if len(wrong):
        raise InputError(f"--nodes names {wrong[0]:,}, but {owner} has nodes 0 to {n - 1:,}.")
    return named.astype(np.int64)


def _open(folder: Path, threads: int | None) -> FrozenModel:
    from unifews.serving.model import FrozenModel

    with console.status() as show:
        show(f"reading {folder}")
        frozen = FrozenModel.load(folder)
    frozen.threads = threads
    return frozen


def _load(data: str, features: Path | None, undirected: bool | None) -> tuple[str, Graph, Any]:
    """Name, graph and features."""
    from unifews.datasets.load import load_dataset
    from unifews.datasets.user_files import is_edge_list, read_features, read_fitting_graph

    path = Path(data)
    if features is None and _is_unlabelled(path):
        features = path
    if features is not None:
        x = read_features(features)
        graph = read_fitting_graph(path, x.shape, str(features))
        return data, with_directions(graph, path, undirected), x
    if is_edge_list(path):
        raise InputError(f"{path} holds no features; give them with --features X.npy.")
    if undirected is not None:
        option = "--undirected" if undirected else "--directed"
        raise InputError(f"{option} is for graph files with --features; the edges of a dataset are used as they are.")
    with console.progress_bar(f"loading {data}") as progress:
        dataset = load_dataset(data, progress=progress)
    return dataset.name, dataset.graph, dataset.x


def _is_unlabelled(path: Path) -> bool:
    """Whether this is a .npz file with features and without labels."""
    from unifews.storage.archive import Archive

    if path.suffix != ".npz" or not path.is_file():
        return False
    names = set(Archive(path))
    return names.isdisjoint(_LABEL_ARRAYS) and not names.isdisjoint({"x", "x_indptr"})


# ----------------------------------------------------------------------------------------------------------- predicting


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """The result and the seconds it took."""
    began = perf_counter()
    result = work()
    return result, perf_counter() - began


def _predict(frozen: FrozenModel, graph: Graph, x: Any, chosen: NDArray[np.int64] | None) -> _Predictions:
    import numpy as np

    singly = chosen is not None and len(chosen) <= _SINGLE_NODES

    def prepare() -> None:
        with warnings.catch_warnings():  # features are memory-mapped and not written to
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            frozen.bind(x, graph)
        frozen.predict([0])  # computes what depends on the graph alone, such as a propagation

    with console.status() as show:
        show("preparing")
        _, ready = _timed(prepare)
        if not singly or chosen is None:
            show(f"predicting {graph.num_nodes if chosen is None else len(chosen):,} nodes")
            found, seconds = _timed(lambda: frozen.predict(chosen).numpy())
            return _Predictions(found, ready, seconds, None)
    each, rows = np.zeros(len(chosen)), []
    with console.progress("predicting") as update:
        for i in range(len(chosen)):
            row, each[i] = _timed(partial(frozen.predict, chosen[i : i + 1]))
            rows.append(row.numpy())
            if update:
                update(i + 1, len(chosen))
    return _Predictions(np.concatenate(rows), ready, float(each.sum()), each)


# -------------------------------------------------------------------------------------------------------------- writing


def _columns(scores: NDArray[np.float32], chosen: NDArray[np.int64] | None, multilabel: bool, with_scores: bool) -> Columns:
    import numpy as np

    columns: Columns = {"node": np.arange(len(scores)) if chosen is None else chosen}
    if multilabel:  # trained with the logistic loss of each label: predicted where the score is above 0
        columns |= {f"label_{i}": (scores[:, i] > 0).astype(np.uint8) for i in range(scores.shape[1])}
    else:
        columns["class"] = scores.argmax(axis=1)
    if with_scores:
        columns |= {f"score_{i}": scores[:, i] for i in range(scores.shape[1])}
    return columns


def _write(out: Path, columns: Columns, overwrite: bool) -> None:
    """Write the file atomically."""
    import numpy as np

    from unifews.storage.atomic import atomic_file

    with atomic_file(out, overwrite=overwrite) as file:
        if out.suffix == ".parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table(columns), file)
        elif out.suffix == ".csv":
            file.write((",".join(columns) + "\n").encode())
            for row in zip(*(column.tolist() for column in columns.values()), strict=True):
                cells = [f"{value:.8g}" if type(value) is float else str(value) for value in row]
                file.write((",".join(cells) + "\n").encode())
        else:
            np.lib.format.write_array(file, _matrix(columns), allow_pickle=False)


def _matrix(columns: Columns) -> NDArray[Any]:
    """The array of a .npy file: scores [nodes, classes] if they are wanted, else classes [nodes] or labels [nodes, labels]."""
    import numpy as np

    if "score_0" in columns:
        return np.stack([column for name, column in columns.items() if name.startswith("score_")], axis=1)
    if "class" in columns:
        return columns["class"]
    return np.stack([column for name, column in columns.items() if name.startswith("label_")], axis=1)


# -------------------------------------------------------------------------------------------------------------- report


def _latency(made: _Predictions) -> dict[str, float] | None:
    """Milliseconds per prediction."""
    import numpy as np

    if made.each is None:
        return None
    median, p95 = (float(value) for value in np.percentile(made.each * 1e3, (50, 95)))
    return {"median_ms": median, "p95_ms": p95}


def _report(
    folder: Path, frozen: FrozenModel, name: str, graph: Graph, made: _Predictions, out: Path, seconds: dict[str, float]
) -> console.Json:
    from unifews.kernels import threads_to_use

    kept, whole = frozen.weights
    return {
        "model": {"path": str(folder), "pruned": frozen.requested, "weights_kept": kept, "weights": whole},
        "graph": {"name": name, "num_nodes": graph.num_nodes, "num_edges": graph.num_edges},
        "out": str(out),
        "nodes": len(made.scores),
        "outputs": frozen.num_outputs,
        "seconds": seconds,
        "latency": _latency(made),
        "nodes_per_second": made.throughput,
        "threads": threads_to_use(frozen.threads),
    }


def _print_report(
    frozen: FrozenModel,
    name: str,
    graph: Graph,
    made: _Predictions,
    out: Path,
    columns: Columns,
    seconds: dict[str, float],
) -> None:
    from unifews.core.checks import count

    kept, whole = frozen.weights
    nodes, latency = count(len(made.scores), "node"), _latency(made)
    if latency is None:
        speed = f"predicted {nodes} in {made.seconds:.3f} s, {made.throughput:,.0f} per second"
    else:
        speed = (
            f"predicted {nodes} one at a time: median {latency['median_ms']:.2f} ms, 95th percentile "
            f"{latency['p95_ms']:.2f} ms, {made.throughput:,.0f} per second"
        )
    written = list(columns) if out.suffix != ".npy" else ["scores" if "score_0" in columns else "classes"]
    shown = written if len(written) <= 4 else [*written[:3], "…", written[-1]]
    console.echo(
        f"{frozen.num_features:,} features to {frozen.num_outputs:,} scores, {kept:,} of {whole:,} weights; {name}: "
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges",
        f"read the model in {seconds['model']:.2f} s and the graph in {seconds['data']:.2f} s, first prediction after "
        f"{seconds['ready']:.2f} s",
        speed,
        f"wrote {out}: {', '.join(shown)} of {nodes}",
    )
