"""Checks at the door: what a caller gave becomes clean arrays, or an error that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.errors import GraphError, InputError, ShapeError

_CHUNK = 1 << 22  # values that are looked at at a time: features may be a map of a file larger than memory


def as_array(values: Any) -> NDArray[Any]:
    """A numpy array of numpy, torch or list. Torch is recognised by its methods, so that it need not be imported."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def as_integers(values: Any, name: str) -> NDArray[Any]:
    """An integer array; floats pass if they are whole numbers."""
    array = as_array(values)
    if array.dtype.kind in "iu":
        return array.astype(np.int64) if array.dtype == np.uint64 else array
    if array.size == 0:  # numpy gives an empty list the type float64
        return array.astype(np.int64)
    if array.dtype.kind != "f":
        raise InputError(f"`{name}` holds {array.dtype.name} values; node numbers are integers.")
    bad = ~(np.isfinite(array) & (array == np.floor(array)))
    if bad.any():
        place = np.unravel_index(int(bad.argmax()), array.shape)
        raise InputError(f"{name}{_place(place)} is {array[place]}; node numbers are integers.")
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
    raise ShapeError(f"`edge_index` has shape {list(edges.shape)}; it must be [2, m], sources above targets.{hint}")


def count_nodes(edges: NDArray[Any], num_nodes: int | None) -> int:
    """The number of nodes, after checking that every edge stays among them."""
    if num_nodes is None:
        if edges.size == 0:
            raise GraphError("a graph without edges needs num_nodes, since nothing else says how many nodes it has.")
        n = int(edges.max()) + 1
    elif isinstance(num_nodes, bool) or int(num_nodes) != num_nodes:
        raise InputError(f"num_nodes must be an integer; got {num_nodes!r}.")
    else:
        n = int(num_nodes)
        if n < 1:
            raise GraphError(f"a graph needs at least one node; got num_nodes={n}.")
    _check_range(edges, n, "edge_index")
    return n


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


def check_rows(indptr: NDArray[np.int64], indices: NDArray[Any]) -> int:
    """The number of nodes of sound compressed rows."""
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
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        row = int(falls.argmax())
        raise GraphError(f"`indptr` must not decrease, and indptr[{row + 1}] is less than indptr[{row}].")
    _check_range(indices, n, "indices")
    return n


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
