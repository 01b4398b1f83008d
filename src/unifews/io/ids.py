"""Identifiers of nodes, integers or text, and the node numbers 0 … n-1 that stand for them.

The identifiers of a graph are integers if all of them are: 64-bit, and in text written without a plus sign or leading zeros,
so that "007" and "7" are different. Otherwise all of them are text. Node numbers follow their order: integers ascending, text
by its UTF-8 bytes. So the numbers depend on the identifiers alone, and not on the order of the edges.

A graph or dataset folder holds them as `ids.npy` (int64) or `ids.txt` (UTF-8, a line each); entry i belongs to node i.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.errors import FileFormatError, InputError, MissingFileError
from unifews.io.edge_lists import EdgeList
from unifews.storage.npy import open_array

INTEGERS, TEXT = "ids.npy", "ids.txt"

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_EXACT = 2.0**53  # above, floats do not represent all integers


def as_ids(column: NDArray[Any] | Sequence[str], first: int, where: str) -> NDArray[Any]:
    """Identifiers as int64, or as text (objects of type str); `first` is the number of the first one, for messages."""
    values = np.asarray(column) if isinstance(column, np.ndarray) else np.array(column, dtype=object)
    kind = values.dtype.kind
    if kind in "iu":
        bad = values > np.iinfo(np.int64).max if values.dtype == np.uint64 else np.zeros(0, dtype=bool)
        reason = "integers are below 2^63; write larger ones as text"
    elif kind == "f":
        bad = ~(np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) <= _EXACT))
        reason = "identifiers are integers or text"
    elif kind in "OU":
        return _of_text(values, first, where)
    else:
        raise InputError(f"the identifiers of {where} are {values.dtype.name} values; identifiers are integers or text.")
    if bad.any():
        i = int(bad.argmax())
        raise InputError(f"row {first + i:,} of {where} has the identifier {values[i]}; {reason}.")
    return values.astype(np.int64, copy=False)


def _of_text(values: NDArray[Any], first: int, where: str) -> NDArray[Any]:
    texts = [value.strip() if isinstance(value, str) else value for value in values.tolist()]
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"row {first + i:,} of {where} has the identifier {text!r}; identifiers are integers or text.")
        if not text or "\n" in text or "\r" in text:
            what = "contains a line break" if text else "is empty"
            raise InputError(f"the identifier in row {first + i:,} of {where} {what}.")
    return typed(texts)


def typed(texts: Sequence[str]) -> NDArray[Any]:
    """Identifiers that were read as text: int64 if all of them are integers, else objects of type str."""
    if all(map(_INTEGER.fullmatch, texts)):
        numbers = list(map(int, texts))
        if not numbers or (min(numbers) >= -(2**63) and max(numbers) < 2**63):
            return np.array(numbers, dtype=np.int64)
    return np.array(texts, dtype=object)


def as_text(ids: NDArray[Any]) -> NDArray[Any]:
    """The same identifiers as text."""
    return ids if ids.dtype == object else np.array([str(value) for value in ids.tolist()], dtype=object)


def factorize(edges: EdgeList) -> tuple[NDArray[Any], EdgeList]:
    """The identifiers that occur in some edges, distinct and in order, and the edges between their places there."""
    source, target = edges.source, edges.target
    if (source.dtype == object) != (target.dtype == object):
        source, target = as_text(source), as_text(target)
    distinct, (places,) = merge([np.concatenate([source, target])])
    return distinct, EdgeList(places[: len(source)], places[len(source) :], edges.weight)


def merge(runs: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
    """The distinct identifiers of several arrays in order, and for each array the places of its identifiers among them."""
    if any(run.dtype == object for run in runs):
        runs = [as_text(run) for run in runs]
        listed = sorted(set().union(*runs))  # code points are ordered as UTF-8 bytes are
        place = dict(zip(listed, range(len(listed)), strict=True))
        distinct = np.array(listed, dtype=object)
        return distinct, [np.fromiter(map(place.__getitem__, run), np.int64, len(run)) for run in runs]
    distinct, places = np.unique(np.concatenate([*runs, np.empty(0, np.int64)]), return_inverse=True)
    return distinct, np.split(places.astype(np.int64, copy=False), np.cumsum([len(run) for run in runs])[:-1])


def encoded(texts: Iterable[str]) -> bytes:
    """Text identifiers, a line each."""
    return "".join(f"{text}\n" for text in texts).encode()


class IdMap:
    """Node numbers of identifiers, the inverse of `ids.npy` and `ids.txt`."""

    def __init__(self, ids: NDArray[Any]) -> None:
        self.ids = ids

    def numbers(self, column: NDArray[Any], where: str) -> NDArray[np.int64]:
        """Node numbers int64 [k] of identifiers [k], each of which must be one of the graph's."""
        given = as_ids(column, 0, where)
        if self.ids.dtype == object or given.dtype == object:  # integers as text: "007" is none of them
            found = np.fromiter((self._places.get(text, -1) for text in as_text(given)), np.int64, len(given))
        else:
            places = np.minimum(np.searchsorted(self.ids, given), len(self.ids) - 1)
            found = np.where(self.ids[places] == given, places, -1)
        if (found < 0).any():
            unknown = given[int((found < 0).argmax())]
            raise InputError(f"{where} names {unknown!s}, which is not the identifier of a node of this graph.")
        return found

    @cached_property
    def _places(self) -> dict[str, int]:
        return dict(zip(as_text(self.ids).tolist(), range(len(self.ids)), strict=True))


def read_ids(path: str | PathLike[str]) -> NDArray[Any]:
    """The identifiers of the nodes of a graph or dataset folder that was converted with `ids=True`, entry i that of node i.

    int64 [n], memory-mapped; or text, an array [n] of Python strings.
    """
    folder = Path(path)
    if (folder / INTEGERS).is_file():
        ids = open_array(folder / INTEGERS)
        if ids.ndim != 1 or ids.dtype != np.int64:
            raise FileFormatError(f"{folder / INTEGERS} holds {ids.dtype.name} {list(ids.shape)}; identifiers are int64 [n].")
        return ids
    if not (folder / TEXT).is_file():
        raise MissingFileError(f"{folder} holds no identifiers: it was not converted with ids=True, or it is no folder.")
    try:
        lines = (folder / TEXT).read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{folder / TEXT} is damaged: it is not UTF-8. Copy or convert it again.") from error
    if lines.pop():
        raise FileFormatError(f"{folder / TEXT} is truncated: its last line has no end. Copy or convert it again.")
    return np.array(lines, dtype=object)


def check_ids(folder: Path, num_nodes: int) -> bool:
    """Whether a folder holds identifiers; an error where they are not one for each node, distinct and in order."""
    if not any((folder / name).is_file() for name in (INTEGERS, TEXT)):
        return False
    ids = read_ids(folder)
    file = folder / (TEXT if ids.dtype == object else INTEGERS)
    if len(ids) != num_nodes:
        raise FileFormatError(f"{file} holds {len(ids):,} identifiers for {num_nodes:,} nodes. Copy or convert it again.")
    if not (ids[1:] > ids[:-1]).all():
        raise FileFormatError(f"{file} is damaged: its identifiers are not distinct and in order. Copy or convert it again.")
    return True
