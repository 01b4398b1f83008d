"""The raw files of Planetoid: pickles of a Python 2 of 2016, read without giving them the power to run anything.

ind.<name>.x, y          training rows; the first of allx, ally
ind.<name>.allx, ally    all rows but the test nodes', features sparse, labels one-hot
ind.<name>.tx, ty        rows of the test nodes, in the order of test.index
ind.<name>.graph         {node: [neighbours]}
ind.<name>.test.index    the numbers of the test nodes, one per line; citeseer has gaps: nodes without features or label
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset
from unifews.datasets.splits import Split
from unifews.errors import FileFormatError, InputError

FILES = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_VALIDATION = 500  # nodes after the training ones, by convention


def read_planetoid(files: Mapping[str, bytes], name: str, source: str = "Planetoid files") -> Dataset:
    """The dataset in the contents of its eight files, keyed as in FILES; features as they are, not normalised.

    A node in a gap of the test numbers has no features and counts as class 0, as in PyG.
    """
    try:
        parts = {key: loads(files[key], f"ind.{name}.{key}") for key in FILES if key != "test.index"}
        test = np.array(files["test.index"].split(), dtype=np.int64)
        return _assembled(parts, test, name, source)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
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

    if not isinstance(rows, _Rows):
        raise TypeError(f"features are {type(rows).__name__}, not a sparse matrix")
    state = vars(rows)
    shape = tuple(int(side) for side in state["_shape"])
    matrix = csr_array((state["data"], state["indices"], state["indptr"]), shape=shape, dtype=np.float32)
    matrix.check_format(full_check=True)
    return matrix


# ---------------------------------------------------------------------------------------------- the restricted unpickler


class _Rows:
    """Stands in for scipy's csr_matrix: holds what the pickle says of it, and does nothing."""


def _array(kind: type[np.ndarray[Any, Any]], shape: tuple[int, ...], code: str | bytes) -> NDArray[Any]:
    """Stands in for numpy's _reconstruct: an empty array, whose state follows."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError(f"an array of kind {kind!r}")
    return np.ndarray(shape, dtype=code.decode("ascii") if isinstance(code, bytes) else code)


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("scipy.sparse.csr", "csr_matrix"): _Rows,
    ("scipy.sparse._csr", "csr_matrix"): _Rows,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def loads(content: bytes, file: str = "the file") -> Any:
    """What a pickle of arrays, sparse matrices, lists and dictionaries holds; anything else in it is refused unrun."""
    try:
        return _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise FileFormatError(
            f"{file} is a pickle that is not loaded: {error}, and only arrays, sparse matrices, lists and dictionaries are "
            f"admitted, because anything else can run code."
        ) from error
    except (EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError, ImportError, InputError) as error:
        raise FileFormatError(f"{file} cannot be read as a pickle of arrays: {error}. Get it again.") from error
