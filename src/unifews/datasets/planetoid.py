"""The raw files of Planetoid: pickles of a Python 2 of 2016, of which arrays are read as data and nothing is unpickled.

ind.<name>.x, y          training rows; the first of allx, ally
ind.<name>.allx, ally    all rows but the test nodes', features sparse, labels one-hot
ind.<name>.tx, ty        rows of the test nodes, in the order of test.index
ind.<name>.graph         {node: [neighbours]}
ind.<name>.test.index    the numbers of the test nodes, one per line; citeseer has gaps: nodes without features or label
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.checks import compressed
from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset
from unifews.datasets.splits import Split
from unifews.errors import FileFormatError
from unifews.io import pickles
from unifews.storage.reading import reading

FILES = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_VALIDATION = 500  # nodes after the training ones, by convention


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

    if not isinstance(rows, pickles.Rows):
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
