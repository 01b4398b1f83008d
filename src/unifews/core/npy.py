"""`.npy` files: opened as memory maps after a look at the header, written atomically, never pickled."""

from __future__ import annotations

from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from unifews.core.atomic import atomic_file
from unifews.errors import FileFormatError, MissingFileError


def open_array(path: str | PathLike[str]) -> NDArray[Any]:
    """The array in a `.npy` file as a read-only memory map: nothing is read until it is used.

    The size the header promises is compared with the size of the file first, so that a truncated file is an error
    here and not a bus error later.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}.")
    shape, dtype, start = _header(path)
    if dtype.hasobject:
        raise FileFormatError(
            f"{path} holds pickled Python objects, which can run code and are never loaded. Save a numeric array."
        )
    missing = start + prod(shape) * dtype.itemsize - path.stat().st_size
    if missing > 0:
        raise FileFormatError(
            f"{path} is truncated: {missing:,} bytes are missing for the {dtype} array of shape {list(shape)} "
            f"its header announces. Copy or write it again."
        )
    # An empty array has no bytes to map.
    array: NDArray[Any] = np.load(path, mmap_mode="r" if prod(shape) else None, allow_pickle=False)
    return array


def write_array(path: str | PathLike[str], array: NDArray[Any], *, overwrite: bool = False) -> None:
    """Write `array` as a `.npy` file that is either complete or absent."""
    with atomic_file(Path(path), overwrite=overwrite) as file:
        npy.write_array(file, np.asarray(array), allow_pickle=False)


def _header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, dtype and offset of the data."""
    with path.open("rb") as file:
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read(file)
        except (ValueError, EOFError) as error:
            raise FileFormatError(f"{path} is not a .npy file, or its header is damaged. Write it with numpy.save.") from error
        return shape, dtype, file.tell()
