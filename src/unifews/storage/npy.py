"""`.npy` files: headers are parsed here and strictly, arrays opened as memory maps, written atomically, never pickled."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from math import prod
from os import PathLike
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from unifews.errors import FileFormatError, MissingFileError
from unifews.storage.atomic import atomic_file
from unifews.storage.reading import reading

_MAGIC = b"\x93NUMPY"
_LENGTHS = {(1, 0): 2, (2, 0): 4, (3, 0): 4}  # bytes of the header's length, by version
_LONGEST = 10_000  # characters of a header, as in numpy: a header of numbers or text has about a hundred
_DIMENSIONS = 32
_PLAIN = re.compile(r"[<>|=]?[biufSU][1-9][0-9]{0,8}")  # numbers and text
_OBJECTS = re.compile(r"[<>|=]?O[0-9]*")


class Header(NamedTuple):
    """What the header of a `.npy` file announces."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    length: int
    """Bytes of the header itself, before the data."""

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"the {self.dtype} array of shape {list(self.shape)} its header announces"


def open_array(path: str | PathLike[str]) -> NDArray[Any]:
    """The array in a `.npy` file as a read-only memory map: nothing is read until it is used.

    The file must be exactly as long as its header announces, so that a truncated file is an error here and not a bus error
    later. Numbers (bool, integers, floats) and text can be read.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}.")
    with path.open("rb") as file:
        header = read_header(file, str(path))
    surplus = path.stat().st_size - header.length - header.size
    if surplus:
        problem = f"is truncated: {-surplus:,} bytes are missing for" if surplus < 0 else f"has {surplus:,} bytes more than"
        raise FileFormatError(f"{path} {problem} {header}. Copy or write it again.")
    return map_array(path, header, header.length)


def map_array(path: Path, header: Header, start: int) -> NDArray[Any]:
    """The array of this header whose data begin at `start`, as a read-only memory map; an empty one has nothing to map."""
    order: Literal["C", "F"] = "F" if header.fortran else "C"
    with reading(path, "a .npy file"):
        if not header.size:
            return np.empty(header.shape, header.dtype, order)
        return np.memmap(path, header.dtype, "r", start, header.shape, order)


def whole_number(array: NDArray[Any], name: str) -> int:
    """The one whole number in an array, which messages call `name`."""
    if array.size != 1 or array.dtype.kind not in "iuf" or not np.isfinite(array).all() or array.item() % 1:
        raise FileFormatError(f"{name} is {array.dtype.name} {list(array.shape)}; it is one whole number.")
    return int(array.item())


def write_array(path: str | PathLike[str], array: NDArray[Any], *, overwrite: bool = False) -> None:
    """Write `array` as a `.npy` file that is either complete or absent."""
    with atomic_file(Path(path), overwrite=overwrite) as file:
        npy.write_array(file, np.asarray(array), allow_pickle=False)


def write_chunked(
    path: Path, array: NDArray[Any], dtype: str, step: int, progress: Callable[[int], None] = lambda rows: None
) -> None:
    """Write `array`, converted to `dtype` by `step` rows at a time, as a `.npy` file that is either complete or absent."""
    with atomic_file(path) as file:
        npy.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": array.shape})
        for start in range(0, len(array), step):
            file.write(np.ascontiguousarray(array[start : start + step], dtype=dtype).data)
            progress(min(start + step, len(array)))


def read_header(file: IO[bytes], name: str) -> Header:
    """The header at the beginning of `file`, which messages call `name`; `file` is left where the data begin."""
    begin = file.read(len(_MAGIC) + 2)
    version = (begin[-2], begin[-1]) if len(begin) == len(_MAGIC) + 2 else (0, 0)
    if begin[:-2] != _MAGIC or version not in _LENGTHS:
        raise _damaged(name, "it does not begin as one")
    field = file.read(_LENGTHS[version])
    length = int.from_bytes(field, "little")
    if len(field) != _LENGTHS[version] or length > _LONGEST:
        raise _damaged(name, f"a header of {length:,} characters")
    content = file.read(length)
    if len(content) != length:
        raise _damaged(name, "it ends within the header")
    shape, fortran, descr = _parsed(content.decode("utf-8" if version == (3, 0) else "latin1", "replace"), name)
    if isinstance(descr, str) and _OBJECTS.fullmatch(descr):
        raise FileFormatError(
            f"{name} holds pickled Python objects, which can run code and are never loaded. Save a numeric array."
        )
    if not isinstance(descr, str) or not _PLAIN.fullmatch(descr):
        raise FileFormatError(f"{name} holds values of type {str(descr)[:80]!r}; only real numbers and text can be read.")
    with reading(name, "a .npy file"):
        return Header(shape, fortran, np.dtype(descr), len(begin) + len(field) + length)


def _parsed(text: str, name: str) -> tuple[tuple[int, ...], bool, Any]:
    """Shape, order and type of a header {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}."""
    try:
        with warnings.catch_warnings():  # about unknown escape sequences
            warnings.simplefilter("ignore")
            found = ast.literal_eval(re.sub(r"(\d)L\b", r"\1", text).strip())  # Python 2 wrote 3L
        descr, fortran, shape = (found[key] for key in ("descr", "fortran_order", "shape"))
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError) as error:
        raise _damaged(name, "it cannot be parsed") from error
    if len(found) != 3 or type(fortran) is not bool:
        raise _damaged(name, "its keys are not descr, fortran_order and shape")
    plain = type(shape) is tuple and all(type(side) is int and 0 <= side < 2**63 for side in shape)
    if not plain or len(shape) > _DIMENSIONS:
        raise _damaged(name, f"shape {str(shape)[:80]}")
    return shape, fortran, descr


def _damaged(name: str, reason: str) -> FileFormatError:
    return FileFormatError(f"{name} is not a .npy file, or its header is damaged ({reason}). Write it with numpy.save.")
