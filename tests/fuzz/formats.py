"""Every format that is read: how to write a sound example, and how to read a damaged one."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mutate import Files, damaged

from unifews.core.graph import Graph

N, FEATURES = 40, 6
_LEDGER = Path(__file__).with_name("ledger.jsonl")  # two runs


class Format(NamedTuple):
    """One format."""

    write: Callable[[Path], None]
    """Sound files in an empty folder."""
    read: Callable[[Path], Any]
    """What is read of such a folder, as something to compare; None: read, and there is nothing to compare."""
    checksums: str = "(?!)"
    """A pattern of the files that are covered by checksums: damage to them may not be read as other contents."""
    damage: Callable[[Files, Any], tuple[Files, bool]] = damaged


def digest(*parts) -> str:
    """Of arrays, text and plain values."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            total.update(f"{part.dtype.str} {part.shape}".encode() + np.ascontiguousarray(part).tobytes())
        else:
            total.update(repr(part).encode())
    return total.hexdigest()


def _edges(seed=3):
    rng = np.random.default_rng(seed)
    return rng.integers(0, N, (2, 4 * N)), rng.random(4 * N).astype(np.float32) + 0.1


def _graph(weighted=True):
    edges, weight = _edges()
    return Graph.from_edge_index(edges, N, weight if weighted else None)


def _of_graph(graph):
    return digest(graph.indptr, graph.indices, 0 if graph.weight is None else graph.weight, graph.num_nodes)


def _used(graph):
    """A graph that has been computed with: damage that only kernels would meet is met."""
    from unifews import propagate

    if graph.num_nodes > 10_000:
        return _of_graph(graph)
    x = np.random.default_rng(0).random((graph.num_nodes, 3), dtype=np.float32)
    return digest(_of_graph(graph), propagate(graph, x, hops=2).embedding, graph.is_symmetric)


def _file(name, write, *, read=None, **options):
    """A graph in one file."""

    def of(place):
        from unifews.io.graphs import read_graph

        return _used(read_graph(place / name))

    return Format(lambda place: write(place / name), read or of, **options)


# --------------------------------------------------------------------------------------------------------------- graphs


def _graph_folder():
    def read(place):
        return _used(Graph.open(place / "g"))

    return Format(lambda place: _graph().save(place / "g"), read, checksums=".*")


def _npz(save, **arrays):
    return _file("g.npz", lambda path: save(path, **arrays), checksums=".*")


def _scipy(kind):
    import scipy.sparse as sp

    return _file("g.npz", lambda path: sp.save_npz(path, _graph().to_scipy().asformat(kind)), checksums=".*")


def _text(name, separator):
    edges, weight = _edges()
    rows = [separator.join([str(v), str(u), f"{w:.3f}"]) for v, u, w in zip(*edges, weight, strict=True)]
    content = ("\n".join(["# edges", separator.join(["source", "target", "weight"]), *rows]) + "\n").encode()
    packed = name.endswith(".gz")
    return _file(name, lambda path: path.write_bytes(gzip.compress(content) if packed else content), checksums=r"\.gz$")


def _converted(name, save):
    """A list of edges that is read a chunk at a time."""

    def read(place):
        from unifews.datasets.convert import convert_edges

        os.fsync = lambda descriptor: None
        convert_edges(place / name, place / "g", undirected=False)
        return _used(Graph.open(place / "g"))

    return Format(lambda place: save(place / name), read)


def _parquet():
    def write(path):
        import pyarrow as arrow
        from pyarrow import parquet

        edges, weight = _edges()
        parquet.write_table(arrow.table({"source": edges[0], "target": edges[1], "weight": weight}), path)

    return _file("e.parquet", write)


# ------------------------------------------------------------------------------------------------------------- datasets


def _dataset(sparse=False):
    from scipy.sparse import csr_array

    from unifews.datasets.dataset import About, Dataset, Split

    rng = np.random.default_rng(5)
    x = (rng.normal(size=(N, FEATURES)) * (rng.random((N, FEATURES)) < 0.4)).astype(np.float32)
    split = Split.of(*np.split(rng.permutation(N), [N // 2, 3 * N // 4]), num_nodes=N)
    graph = _graph(weighted=False).undirected()
    return Dataset("tiny", graph, csr_array(x) if sparse else x, np.arange(N) % 3, (split,), About("here", split="stored"))


def _of_dataset(dataset):
    x = dataset.x
    values = [x] if isinstance(x, np.ndarray) else [x.indptr, x.indices, x.data, x.shape]
    return digest(_used(dataset.graph), *values, dataset.y, *(part for split in dataset.splits for part in split))


def _dataset_folder(sparse):
    def write(place):
        from unifews.datasets.folder import save_dataset

        save_dataset(_dataset(sparse), place / "d")

    def read(place):
        from unifews.datasets.load import load_dataset

        return _of_dataset(load_dataset(str(place / "d")))

    return Format(write, read, checksums=".*")


def _dataset_npz():
    def write(place):
        data = _dataset()
        parts = {f"{part}_idx": nodes for part, nodes in data.splits[0]._asdict().items()}
        np.savez(place / "d.npz", indptr=data.graph.indptr, indices=data.graph.indices, x=data.x, y=data.y, **parts)

    def read(place):
        from unifews.datasets.load import load_dataset

        return _of_dataset(load_dataset(str(place / "d.npz")))

    return Format(write, read, checksums=".*")


def _tables():
    def write(place):
        data = _dataset()
        words = np.full(N, "none", dtype=object)
        for part, nodes in data.splits[0]._asdict().items():
            words[nodes] = part
        np.savetxt(place / "edges.csv", data.graph.to_edge_index().T, fmt="%d", delimiter=",")
        np.savetxt(place / "x.csv", data.x, fmt="%.4f", delimiter=",", header="a,b,c,d,e,f", comments="")
        (place / "y.txt").write_text("".join(f"{node} class{label}\n" for node, label in enumerate(data.y)))
        (place / "split.csv.gz").write_bytes(gzip.compress("".join(f"{i},{word}\n" for i, word in enumerate(words)).encode()))

    def read(place):
        from unifews.datasets.user_files import read_dataset

        return _of_dataset(read_dataset(place / "edges.csv", place / "x.csv", place / "y.txt", split=place / "split.csv.gz"))

    return Format(write, read)


def _planetoid():
    def write(place):
        from scipy.sparse import csr_matrix

        known, drawn = csr_matrix(np.eye(600, 9, dtype=np.float32)), csr_matrix(np.eye(3, 9, dtype=np.float32))
        labels = np.eye(3, dtype=np.int32)
        graph = defaultdict(list, {node: [(node * 7 + 1) % 603, (node + 3) % 603] for node in range(0, 603, 5)})
        parts = dict(x=known[:4], y=labels[np.arange(4) % 3], tx=drawn, ty=labels, allx=known, ally=labels[np.arange(600) % 3])
        for key, value in (parts | {"graph": graph}).items():
            (place / key).write_bytes(pickle.dumps(value, 4))
        (place / "test.index").write_text("602\n600\n601\n")

    def read(place):
        from unifews.datasets.planetoid import FILES, read_planetoid

        return _of_dataset(read_planetoid({key: (place / key).read_bytes() for key in FILES if (place / key).exists()}, "tiny"))

    return Format(write, read)


def _features():
    def read(place):
        from unifews.datasets.user_files import read_features

        return digest(np.asarray(read_features(place / "x.npy")))

    return Format(lambda place: np.save(place / "x.npy", _dataset().x), read)


# --------------------------------------------------------------------------------------------------------- runs and work


def _run_file():
    def write(place):
        from unifews.training.run_files import write_toml
        from unifews.training.spec import TrainSpec

        spec = TrainSpec.of({"dataset": "cora", "edge_sparsity": 0.9, "weight_sparsity": 0.5, "seeds": 3})
        (place / "run.toml").write_text(write_toml(spec))

    def read(place):
        from unifews.training.run_files import read_toml

        return digest(json.dumps(read_toml(place / "run.toml"), default=str))

    return Format(write, read)


def _ledger():
    def read(place):
        from unifews.report.exhibits import gather
        from unifews.report.page import report

        material = gather([place / "ledger.jsonl"])
        report(material, "damaged")
        return digest(json.dumps(material.records))

    return Format(lambda place: shutil.copy(_LEDGER, place), read)


_HOW = dict(scheme="appnp", hops=4, edge_sparsity=0.8, threads=1, out="p.npy", memory="2MB")


def _work():
    """The working folder of an interrupted propagation: going on ends with the same bytes."""

    def by_block():
        from unifews.propagation import api, folder, planner

        planner.Requirements.memory = lambda self, blocks, outside=False: blocks * 1_000_000
        api.resident = lambda: 0
        folder._WORTH = 0.0

    def write(place):
        import unifews as uf

        by_block()
        os.chdir(place)
        data = uf.powerlaw(120, 800, num_features=40, num_classes=3, seed=17)
        data.graph.save("graph")
        np.save("x.npy", data.x)

        def stop(done, total):
            if done == 7:
                raise KeyboardInterrupt

        try:
            uf.propagate(Graph.open("graph"), np.load("x.npy", mmap_mode="r"), progress=stop, **_HOW)
        except KeyboardInterrupt:
            return
        raise AssertionError("it was not interrupted")

    def read(place):
        import unifews as uf

        os.chdir(place)
        uf.propagate(Graph.open("graph"), np.load("x.npy", mmap_mode="r"), **_HOW)
        return digest(Path("p.npy").read_bytes())

    def of_work(files, rng):
        inside = {name: data for name, data in files.items() if name.startswith("p.npy.work")}
        changed, fits = damaged(inside, rng)
        return {name: data for name, data in files.items() if name not in inside} | changed, fits

    return Format(write, read, checksums=".*", damage=of_work)


def _models():
    import models

    return Format(models.write, models.read, damage=models.damaged)


_GRAPH = {"indptr": _graph().indptr, "indices": _graph().indices, "weight": _graph().weight}
_EDGES, _WEIGHT = _edges()

FORMATS: dict[str, Callable[[], Format]] = {
    "graph-folder": _graph_folder,
    "dataset-folder-dense": lambda: _dataset_folder(sparse=False),
    "dataset-folder-sparse": lambda: _dataset_folder(sparse=True),
    "npz-csr": lambda: _npz(np.savez, **_GRAPH),
    "npz-edge-index": lambda: _npz(np.savez_compressed, edge_index=_EDGES, edge_weight=_WEIGHT, num_nodes=N),
    "npz-row-col": lambda: _npz(np.savez, row=_EDGES[0], col=_EDGES[1], num_nodes=N),
    "npz-scipy-csr": lambda: _scipy("csr"),
    "npz-scipy-csc": lambda: _scipy("csc"),
    "npz-scipy-coo": lambda: _scipy("coo"),
    "dataset-npz": _dataset_npz,
    "npy-edges": lambda: _file("e.npy", lambda path: np.save(path, _EDGES)),
    "csv": lambda: _text("e.csv", ","),
    "txt": lambda: _text("e.txt", " "),
    "csv-gz": lambda: _text("e.csv.gz", ","),
    "parquet": _parquet,
    "convert-npz": lambda: _converted(
        "e.npz", lambda path: np.savez(path, edge_index=_EDGES, edge_weight=_WEIGHT, num_nodes=np.array(N))
    ),
    "convert-npz-compressed": lambda: _converted("e.npz", lambda path: np.savez_compressed(path, row=_EDGES[0], col=_EDGES[1])),
    "features-npy": _features,
    "tables": _tables,
    "planetoid": _planetoid,
    "run-toml": _run_file,
    "ledger": _ledger,
    "propagation-work": _work,
    "model-folders": _models,
}
