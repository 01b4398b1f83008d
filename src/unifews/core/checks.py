"""Checks at the public API: arguments become valid arrays, or an error that names the problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.core import csr
from unifews.core.csr import MAX_NODES, Examined
from unifews.errors import GraphError, InputError, ShapeError
from unifews.resources import available, format_bytes

_ALWAYS = 1_000_000  # nodes that are always accepted: their offsets take 8 MB
_PER_EDGE = 64  # nodes for each edge of a list: far more than in graphs of mostly isolated nodes
_ADVICE = "Pass ids=True if these are identifiers"
_LIMIT = f"a graph has at most {MAX_NODES:,} nodes, numbered from 0."
_IDENTIFIERS = "Number identifiers with ids, numbers = np.unique(edge_index, return_inverse=True)"
_CHUNK = 1 << 22  # values that are checked at a time: features may be a map of a file larger than memory


def as_array(values: Any) -> NDArray[Any]:
    """A numpy array of numpy, torch or list. Torch is recognised by its methods, so that it need not be imported."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InputError(
            "a masked array was given, and its masked values would be taken for real ones. Fill them first, with filled(0) "
            "for example."
        )
    return np.asarray(values)


def as_integers(values: Any, name: str) -> NDArray[Any]:
    """An integer array; floats pass if they are whole numbers."""
    array = as_array(values)
    if array.dtype.kind in "iu":
        if array.dtype.itemsize == 8 and array.dtype.kind == "u":
            return _as_int64(array, name)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.size == 0:  # numpy gives an empty list the type float64
        return array.astype(np.int64)
    if array.dtype.kind != "f":
        raise InputError(f"`{name}` holds {array.dtype.name} values; node numbers are integers.")
    bad = ~(np.isfinite(array) & (array == np.floor(array)))
    if bad.any():
        place = np.unravel_index(int(bad.argmax()), array.shape)
        raise InputError(f"{name}{_place(place)} is {array[place]}; node numbers are integers.")
    return _as_int64(array, name)


def _as_int64(array: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Whole numbers as int64, which unsigned and floating ones may be too large for."""
    far = np.abs(array) >= 2.0**63 if array.dtype.kind == "f" else array >= 2**63
    if far.any():
        place = np.unravel_index(int(far.argmax()), array.shape)
        raise GraphError(f"{name}{_place(place)} is {array[place]}, and {_LIMIT}")
    return array.astype(np.int64)


def as_edges(edge_index: Any) -> NDArray[Any]:
    """Integers [2, m], not yet known to name existing nodes."""
    edges = as_integers(edge_index, "edge_index")
    if edges.ndim == 2 and edges.shape[0] == 2:
        return edges
    hint = ""
    if edges.ndim == 2 and edges.shape[1] == 2:
        hint = " It looks transposed: pass edge_index.T."
    elif edges.ndim == 2 and edges.shape[0] == edges.shape[1]:
        hint = " For an adjacency matrix, use Graph.from_scipy."
    raise ShapeError(f"`edge_index` has shape {list(edges.shape)}; it must be [2, m], sources in the first row.{hint}")


def count_nodes(edges: NDArray[Any], num_nodes: int | None) -> int:
    """The number of nodes, after checking that every edge is between two of them."""
    if num_nodes is None:
        if edges.size == 0:
            raise GraphError("a graph without edges needs num_nodes, since nothing else gives the number of nodes.")
        n = int(edges.max()) + 1
    else:
        n = as_count(num_nodes, "num_nodes")
        if n < 1:
            raise GraphError(f"a graph needs at least one node; got num_nodes={n}.")
    if n > MAX_NODES:
        named = "the largest node number is" if num_nodes is None else "num_nodes is"
        raise GraphError(f"{named} {n - (num_nodes is None):,}, and {_LIMIT}")
    _check_range(edges, n, "edge_index")
    if num_nodes is None:
        check_proportion(n, edges.shape[1], advice=_IDENTIFIERS)
    if 8 * (n + 1) > available():
        raise GraphError(
            f"a graph of {n:,} nodes takes at least {format_bytes(8 * (n + 1))} of memory, "
            f"and {format_bytes(available())} are free. "
            f"Number only nodes that have edges, or make it a folder with unifews data convert."
        )
    return n


def as_count(value: Any, name: str) -> int:
    """A whole number, of Python, numpy or a float without a fraction."""
    try:
        number = int(value)
        if not isinstance(value, bool) and number == value:
            return number
    except (TypeError, ValueError, OverflowError):  # no number at all, NaN, infinity
        pass
    raise InputError(f"{name} must be an integer; got {value!r}.")


def _check_range(numbers: NDArray[Any], num_nodes: int, name: str) -> None:
    if numbers.size and int(numbers.min()) < 0:
        place = _first(numbers, lambda part: part < 0)
        raise GraphError(f"{name}{_place(place)} is {numbers[place]}, a negative number; nodes are numbered from 0.")
    if numbers.size and int(numbers.max()) >= num_nodes:
        place = _first(numbers, lambda part: part >= num_nodes)
        raise GraphError(
            f"{name}{_place(place)} is {numbers[place]:,}, but a graph of {count(num_nodes, 'node')} has numbers "
            f"0 … {num_nodes - 1:,}; num_nodes must be at least {int(numbers.max()) + 1:,}."
        )


def check_rows(indptr: NDArray[np.int64], indices: NDArray[Any], weight: NDArray[np.float32] | None = None) -> Examined:
    """The findings of `csr.examine` on the compressed rows of a graph, once they are known to be valid."""
    if indptr.ndim != 1 or indices.ndim != 1:
        raise ShapeError(f"`indptr` and `indices` are vectors; got shapes {list(indptr.shape)}, {list(indices.shape)}.")
    n = len(indptr) - 1
    if n < 1:
        raise GraphError("a graph needs at least one node, so `indptr`, which has one number more, needs two.")
    if indptr[0] != 0 or indptr[-1] != len(indices):
        raise ShapeError(
            f"`indptr` must run from 0 to the length of `indices`, {len(indices):,}; "
            f"it runs from {indptr[0]:,} to {indptr[-1]:,}."
        )
    seen = csr.examine(indptr, indices, weight)
    if seen.pointer >= 0:
        falls = indptr[1:] < indptr[:-1]
        row = int(falls.argmax())
        raise GraphError(f"`indptr` must not decrease, and indptr[{row + 1}] is less than indptr[{row}].")
    if seen.range >= 0:
        _check_range(indices, n, "indices")
    return seen


def check_sparse(matrix: Any, name: str) -> Any:
    """A scipy sparse matrix of any format as valid, canonical CSR: the caller's own, or a copy where that is not canonical.

    scipy does not check the arrays of a matrix, even in its conversions and products: an index outside the shape reads or
    writes outside the memory of the matrix.
    """
    if matrix.ndim != 2:
        raise ShapeError(f"`{name}` has shape {list(matrix.shape)}; a sparse matrix has two dimensions here.")
    if matrix.format in ("csr", "csc", "bsr"):
        _check_compressed(matrix, name)
    elif matrix.format == "coo":
        for line, side in zip((matrix.row, matrix.col), matrix.shape, strict=True):
            if len(line) != len(matrix.data):
                raise ShapeError(f"`{name}` is damaged: it has {len(matrix.data):,} values and {len(line):,} places for them.")
            if len(line) and (line.min() < 0 or line.max() >= side):
                raise InputError(f"`{name}` is damaged: it has entries outside its shape {list(matrix.shape)}.")
    rows = matrix.tocsr()
    seen = _check_compressed(rows, name)
    if seen.order >= 0:
        rows = rows.copy() if rows is matrix else rows
        # scipy caches these flags, and a matrix may have changed since.
        rows.has_sorted_indices = rows.has_canonical_format = False
        rows.sum_duplicates()
    return rows


def scipy_of_torch(x: Any, name: str) -> Any:
    """A sparse torch tensor as a scipy matrix of the same layout, not yet checked: torch's conversions do not check it."""
    import scipy.sparse as sp

    x, layout = x.detach().cpu(), str(x.layout).removeprefix("torch.sparse_")
    try:
        if layout == "coo":
            return sp.coo_array((x._values().numpy(), tuple(x._indices().numpy())), shape=tuple(x.shape))
        if layout == "csr":
            rows = x.crow_indices().numpy(), x.col_indices().numpy()
            return sp.csr_array((x.values().numpy(), rows[1], rows[0]), shape=tuple(x.shape))
        if layout == "csc":
            columns = x.ccol_indices().numpy(), x.row_indices().numpy()
            return sp.csc_array((x.values().numpy(), columns[1], columns[0]), shape=tuple(x.shape))
    except (ValueError, TypeError) as error:
        raise InputError(f"`{name}` is a damaged sparse tensor: {error}. Build it again.") from error
    raise InputError(f"`{name}` is a sparse tensor of layout {x.layout}; give it as CSR, with x.to_sparse_csr().")


def _check_compressed(matrix: Any, name: str) -> Examined:
    height, width = matrix.shape if matrix.format != "csc" else matrix.shape[::-1]
    if matrix.format == "bsr":
        height, width = height // matrix.blocksize[0], width // matrix.blocksize[1]
    indptr, indices = np.asarray(matrix.indptr), np.asarray(matrix.indices)
    problem = ""
    if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        problem = f"its indices are of type {indices.dtype} and its indptr is of type {indptr.dtype}, and both must be integers"
    elif indptr.shape != (height + 1,) or indices.ndim != 1:
        problem = f"its indptr has {indptr.size:,} numbers where {height + 1:,} are needed"
    elif indptr[0] != 0 or indptr[-1] > min(len(indices), len(matrix.data)):
        problem = f"its indptr runs from {indptr[0]} to {indptr[-1]} and it has {len(indices):,} indices"
    if not problem:
        index = np.int32 if indices.dtype == np.int32 else np.int64
        seen = csr.examine(np.ascontiguousarray(indptr, np.int64), np.ascontiguousarray(indices, index), columns=width)
        if seen.pointer >= 0:
            problem = "its indptr decreases, or points outside its indices"
        elif seen.range >= 0:
            problem = f"index {indices[seen.range]} at place {seen.range:,} is outside its shape {list(matrix.shape)}"
        else:
            return seen
    raise InputError(f"`{name}` is a damaged {matrix.format} matrix: {problem}. Load or build it again.")


def as_weights(values: Any, length: int, name: str, item: str) -> NDArray[np.float32]:
    """Weights as float32 [length], finite and not negative."""
    array = as_array(values)
    if array.dtype.kind not in "fiub":
        raise InputError(f"`{name}` holds {array.dtype.name} values; weights are real numbers.")
    if array.ndim != 1 or len(array) != length:
        raise ShapeError(f"`{name}` has shape {list(array.shape)}; it must be [{length}], one weight per {item}.")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf and is reported as such
        weight = array.astype(np.float32, copy=False)
    kinds: dict[str, Callable[[NDArray[Any]], NDArray[np.bool_]]] = {
        "NaN": np.isnan,
        "infinite": np.isinf,
        "negative": lambda part: part < 0,
    }
    for kind, test in kinds.items():
        bad = test(weight)
        if bad.any():
            first = int(bad.argmax())
            raise InputError(
                f"`{name}` has {count(int(bad.sum()), f'{kind} value')}, the first at {item} {first:,} "
                f"({array[first]}); weights must be finite and at least 0."
            )
    return weight


def _first(numbers: NDArray[Any], test: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> tuple[int, ...]:
    flat = int(test(numbers).argmax())
    return tuple(int(i) for i in np.unravel_index(flat, numbers.shape))


def _place(place: tuple[Any, ...]) -> str:
    return f"[{', '.join(str(int(i)) for i in place)}]"


def count(number: int, noun: str) -> str:
    """A number and its noun: "1 node", "2,708 nodes"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def not_finite(x: Any) -> tuple[int, int]:
    """How many values of x, dense or scipy CSR, are NaN or beyond float32, and the row of the first one (-1 = none)."""
    starts = getattr(x, "indptr", None)
    values = x if starts is None else x.data
    step = max(1, _CHUNK // (x.shape[1] or 1)) if starts is None else _CHUNK
    bad, first = 0, -1
    for at in range(0, len(values), step):
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(np.asarray(values[at : at + step], dtype=np.float32))
        if first < 0 and wrong.any():
            first = at + int(np.argwhere(wrong)[0][0])
        bad += int(wrong.sum())
    return bad, first if starts is None or first < 0 else int(np.searchsorted(starts, first, side="right")) - 1


def check_proportion(num_nodes: int, num_edges: int, where: str = "", advice: str = _ADVICE) -> None:
    """An error where the largest node number is out of proportion to the number of edges listed.

    For callers that were not given the number of nodes: every node takes 8 bytes in the graph, with or without edges, so one
    edge between identifiers near 3e9 would write 24 GB. `where` names the file, if there is one; `advice` is what to do
    with identifiers.
    """
    if num_nodes <= max(_ALWAYS, _PER_EDGE * num_edges):
        return
    listed = f"{f'{where} has ' if where else ''}{num_edges:,} edge{'' if num_edges == 1 else 's'}"
    otherwise = f", or num_nodes={num_nodes} if they are node numbers" if num_nodes <= MAX_NODES else ""
    raise GraphError(
        f"{listed}, but node numbers up to {num_nodes - 1:,}: a graph numbers its nodes from 0 without gaps. "
        f"{advice}{otherwise}."
    )


def compressed(kind: Any, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int]) -> Any:
    """The `kind` (csr_array, csc_array, bsr_array) of these parts, or a ValueError.

    scipy's own check misses decreasing offsets, and all indices where the last offset is 0 or negative.
    """
    for name, numbers in (("indptr", indptr), ("indices", indices)):
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ValueError(f"{name} is {numbers.dtype.name} {list(numbers.shape)}, and it is a vector of whole numbers")
    if not len(indptr) or indptr[0] != 0 or indptr[-1] > len(indices) or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"indptr must increase from 0 to at most {len(indices):,}, the number of indices")
    matrix = kind((data, indices, indptr), shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def check_finite(name: str, x: Any) -> None:
    """Refuse features of a dataset of this name, dense or scipy CSR, that float32 cannot represent."""
    bad, row = not_finite(x)
    if bad:
        raise InputError(
            f"the features of {name} hold {count(bad, 'NaN or infinite value')}, the first in row {row:,} (float32 ends at "
            f"3.4e38); replace them first, for example with np.nan_to_num(x)."
        )


def check_count(name: str, value: Any, least: int = 1) -> int:
    """An integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"`{name}` must be an integer of at least {least}; got {value!r}.", setting=name)
    return int(value)


def check_sparsity(name: str, value: float) -> float:
    """A fraction to remove, in [0, 1)."""
    if not _is_number(value) or not 0 <= value < 1:
        percent = isinstance(value, int | float) and 1 < value < 100
        hint = f" For {value:g} percent write {name}={value / 100:g}." if percent else ""
        raise InputError(f"`{name}` is the fraction to remove and must lie in [0, 1); got {value!r}.{hint}", setting=name)
    return float(value)


def check_threshold(name: str, value: float) -> float:
    """A magnitude, 0 or more."""
    if not _is_number(value) or not value >= 0:
        raise InputError(f"`{name}` is a magnitude and must be 0 or more; got {value!r}.", setting=name)
    return float(value)


def check_flags(**given: Any) -> None:
    """Refuse values of switches that are neither True nor False: ``"no"`` would count as True."""
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_):
            raise InputError(f"`{name}` must be True or False; got {value!r}.", setting=name)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)
