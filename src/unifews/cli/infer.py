"""`unifews infer`: a saved model and a graph to predictions in a file, with how long one takes."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from unifews.cli import output
from unifews.cli.propagate import Directions, with_directions
from unifews.cli.run import own_process
from unifews.errors import InputError, MissingFileError, ShapeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unifews.core.graph import Graph
    from unifews.serving.model import FrozenModel

_FEW = 1_000  # nodes up to which each is predicted by itself, as a service would
_KINDS = (".npy", ".csv", ".parquet")
_LABELS = {"y", "labels", "node_labels"}


def infer(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of unifews train --save or FrozenModel.save.")],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="A known name, a dataset folder or .npz; or any graph file, its features with --features."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Predictions: .parquet, .csv or .npy.")],
    features: Annotated[
        Path | None, typer.Option("--features", "-x", metavar="X.npy", help="Features [n, f]; .npy, .npz, .csv or .parquet.")
    ] = None,
    undirected: Directions = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="1,5,7|FILE", help="Node numbers from 0, or a file with a column of them; all unless given."),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Also what each class scored; in .npy instead of classes.")] = False,
    threads: Annotated[int | None, typer.Option(metavar="N", help="All cores unless given.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done and how fast as JSON.")] = False,
) -> None:
    """Predict the class of nodes with a saved model, and tell how long it takes.

    Up to 1,000 nodes are predicted one at a time, for the latency of a single prediction; more, or all, in one go. Rows of the
    file come in the order of --nodes. Where nodes may have several labels, a column of 0 and 1 for each.
    """
    own_process()
    _check_out(out, overwrite, (model, *([] if features is None else [features]), Path(data)))
    if threads is not None and threads < 1:
        raise InputError(f"--threads is at least 1; got {threads}.")
    named = None if nodes is None else _named(nodes)
    import unifews.serving.model  # noqa: F401 - torch, which takes longer than reading a model

    fast, read = _timed(lambda: _open(model, threads))
    (name, graph, x), loaded = _timed(lambda: _load(data, features, undirected))
    if x.shape[1] != fast.num_features:
        raise ShapeError(
            f"{features or name} has {x.shape[1]:,} features, but {model} was trained on {fast.num_features:,}; give it the "
            f"same ones."
        )
    chosen = None if named is None else _chosen(named, graph.num_nodes, name)
    made = _predict(fast, graph, x, chosen)
    columns = _columns(made.scores, chosen, _several(fast), scores)
    _write(out, columns, overwrite)
    seconds = {"model": read, "data": loaded, "ready": made.ready, "predict": made.seconds}
    if as_json:
        output.print_json(_report(model, fast, name, graph, made, out, seconds))
    else:
        _show(fast, name, graph, made, out, columns, seconds)


class _Made(NamedTuple):
    scores: NDArray[np.float32]
    """[nodes, classes]."""
    ready: float
    """Seconds from graph and features to a first prediction; a decoupled model propagates here."""
    seconds: float
    """Predicting."""
    each: NDArray[np.float64] | None
    """Seconds of every node by itself; None: all in one go."""

    @property
    def throughput(self) -> float:
        """Nodes per second."""
        return len(self.scores) / max(self.seconds, 1e-9)


# --------------------------------------------------------------------------------------------------------------- before


def _check_out(out: Path, overwrite: bool, inputs: tuple[Path, ...]) -> None:
    """The file can be written; found out before any work."""
    if out.suffix not in _KINDS:
        raise InputError(f"--out {out} must end in .parquet, .csv or .npy, which says the format it is written in.")
    if not out.parent.is_dir():
        raise MissingFileError(f"cannot write {out}: there is no folder {out.parent}.")
    if not os.access(out.parent, os.W_OK):
        raise InputError(f"cannot write {out}: the folder {out.parent} is write-protected.")
    if out.is_dir():
        raise InputError(f"cannot write {out}: it is a folder.")
    if out.exists() and any(path.exists() and out.samefile(path) for path in inputs):
        raise InputError(f"{out} is one of the inputs; give --out another name.")
    if out.exists() and not overwrite:
        raise InputError(f"{out} already exists; add --overwrite to replace it, or give --out another name.")


def _named(said: str) -> NDArray[Any]:
    """What --nodes names: numbers, or the column in a file."""
    import numpy as np

    parts = [part.strip() for part in said.split(",")]
    if all(part.lstrip("-").isdecimal() for part in parts):
        wide = next((part for part in parts if len(part) > 18), None)
        if wide is not None:
            raise InputError(f"--nodes names {wide[:30]}, which is no node of any graph.")
        return np.array(parts, dtype=np.int64)
    path = Path(said)
    if not path.is_file():
        raise InputError(f"--nodes {said[:60]} is neither node numbers, as in 1,5,7, nor a file.")
    from unifews.io.tables import read_columns

    table = read_columns(path, ("index", "idx", "mask", "node"))
    if len(table.values) != 1:
        raise ShapeError(f"{path} has {len(table.values)} columns; --nodes takes one, of node numbers or a mask.")
    column = table.values[0]
    if column.dtype.kind not in "iub":
        raise InputError(f"{path} holds {column.dtype.name} values; nodes are whole numbers from 0, or a mask of all nodes.")
    return column


def _chosen(named: NDArray[Any], n: int, owner: str) -> NDArray[np.int64]:
    """The nodes meant by numbers, or by a mask: flags, or 0 and 1 for each node."""
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

    with output.stage() as say:
        say(f"reading {folder}")
        fast = FrozenModel.load(folder)
    fast.threads = threads
    return fast


def _load(data: str, features: Path | None, undirected: bool | None) -> tuple[str, Graph, Any]:
    """A name for it, graph and features."""
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
        raise InputError(f"{option} is about a graph file with --features; a dataset has its directions already.")
    with output.stages(f"loading {data}") as progress:
        dataset = load_dataset(data, progress=progress)
    return dataset.name, dataset.graph, dataset.x


def _is_unlabelled(path: Path) -> bool:
    """Whether it is a .npz with features and no labels: a dataset to predict, not to train on."""
    from unifews.storage.archive import Archive

    if path.suffix != ".npz" or not path.is_file():
        return False
    names = set(Archive(path))
    return names.isdisjoint(_LABELS) and not names.isdisjoint({"x", "x_indptr"})


def _several(fast: FrozenModel) -> bool:
    """Whether a node may have several labels: its training record says so."""
    return bool((fast.record or {}).get("multilabel"))


# ----------------------------------------------------------------------------------------------------------- predicting


def _timed(work: Any) -> tuple[Any, float]:
    began = perf_counter()
    result = work()
    return result, perf_counter() - began


def _predict(fast: FrozenModel, graph: Graph, x: Any, chosen: NDArray[np.int64] | None) -> _Made:
    import numpy as np

    singly = chosen is not None and len(chosen) <= _FEW

    def prepare() -> None:
        with warnings.catch_warnings():  # features are mapped from their file, and nothing writes to them
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            fast.bind(x, graph)
        fast.predict([0])  # the first prediction makes what depends on the graph alone, a propagation for one

    with output.stage() as say:
        say("preparing")
        _, ready = _timed(prepare)
        if not singly or chosen is None:
            say(f"predicting {graph.num_nodes if chosen is None else len(chosen):,} nodes")
            found, seconds = _timed(lambda: fast.predict(chosen).numpy())
            return _Made(found, ready, seconds, None)
    each, rows = np.zeros(len(chosen)), []
    with output.bar("predicting") as update:
        for i in range(len(chosen)):
            row, each[i] = _timed(lambda i=i: fast.predict(chosen[i : i + 1]))
            rows.append(row.numpy())
            if update:
                update(i + 1, len(chosen))
    return _Made(np.concatenate(rows), ready, float(each.sum()), each)


# -------------------------------------------------------------------------------------------------------------- writing


def _columns(
    scores: NDArray[np.float32], chosen: NDArray[np.int64] | None, several: bool, with_scores: bool
) -> dict[str, NDArray[Any]]:
    """What is written, by name."""
    import numpy as np

    columns: dict[str, NDArray[Any]] = {"node": np.arange(len(scores)) if chosen is None else chosen}
    if several:  # trained by the logistic loss of each label: a score above 0 is a yes
        columns |= {f"label_{i}": (scores[:, i] > 0).astype(np.uint8) for i in range(scores.shape[1])}
    else:
        columns["class"] = scores.argmax(axis=1)
    if with_scores:
        columns |= {f"score_{i}": scores[:, i] for i in range(scores.shape[1])}
    return columns


def _write(out: Path, columns: dict[str, NDArray[Any]], overwrite: bool) -> None:
    """The file, complete or not at all."""
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
                words = [f"{value:.8g}" if type(value) is float else str(value) for value in row]
                file.write((",".join(words) + "\n").encode())
        else:
            np.lib.format.write_array(file, _matrix(columns), allow_pickle=False)


def _matrix(columns: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """What a .npy holds: scores if they are asked for, else classes [nodes], or labels [nodes, labels]."""
    import numpy as np

    if "score_0" in columns:
        return np.stack([column for name, column in columns.items() if name.startswith("score_")], axis=1)
    if "class" in columns:
        return columns["class"]
    return np.stack([column for name, column in columns.items() if name.startswith("label_")], axis=1)


# -------------------------------------------------------------------------------------------------------------- showing


def _latency(made: _Made) -> dict[str, float] | None:
    """Milliseconds of one prediction."""
    import numpy as np

    if made.each is None:
        return None
    median, p95 = (float(value) for value in np.percentile(made.each * 1e3, (50, 95)))
    return {"median_ms": median, "p95_ms": p95}


def _report(
    folder: Path, fast: FrozenModel, name: str, graph: Graph, made: _Made, out: Path, seconds: dict[str, float]
) -> dict[str, Any]:
    from unifews.kernels import threads_to_use

    kept, whole = fast.weights
    return {
        "model": {"path": str(folder), "pruned": fast.requested, "weights_kept": kept, "weights": whole},
        "graph": {"name": name, "num_nodes": graph.num_nodes, "num_edges": graph.num_edges},
        "out": str(out),
        "nodes": len(made.scores),
        "outputs": fast.num_outputs,
        "seconds": seconds,
        "latency": _latency(made),
        "nodes_per_second": made.throughput,
        "threads": threads_to_use(fast.threads),
    }


def _show(
    fast: FrozenModel, name: str, graph: Graph, made: _Made, out: Path, columns: dict[str, NDArray[Any]],
    seconds: dict[str, float],
) -> None:  # fmt: skip
    kept, whole = fast.weights
    count, latency = len(made.scores), _latency(made)
    nodes = f"{count:,} {'nodes' if count != 1 else 'node'}"
    if latency is None:
        speed = f"predicted {nodes} in {made.seconds:.3f} s, {made.throughput:,.0f} a second"
    else:
        speed = (
            f"predicted {nodes} one at a time: median {latency['median_ms']:.2f} ms, 95th percentile "
            f"{latency['p95_ms']:.2f} ms, {made.throughput:,.0f} a second"
        )
    what = list(columns) if out.suffix != ".npy" else ["scores" if "score_0" in columns else "classes"]
    shown = what if len(what) <= 4 else [*what[:3], "…", what[-1]]
    lines = (
        f"{fast.num_features:,} features to {fast.num_outputs:,} scores, {kept:,} of {whole:,} weights; {name}: "
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges",
        f"model read in {seconds['model']:.2f} s, graph in {seconds['data']:.2f} s, made ready in {seconds['ready']:.2f} s",
        speed,
        f"wrote {out}: {', '.join(shown)} of {nodes}",
    )  # fmt: skip
    console = output.console()
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
