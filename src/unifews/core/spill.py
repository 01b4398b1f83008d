"""Files that grow while something long is made, with checksums, and can be cut back to what was last noted."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from unifews.errors import FileFormatError

HEADER = 128  # bytes of a .npy header for a vector of any length


def append(file: Path, array: NDArray[Any], crc: int) -> int:
    """Append the bytes of an array; the checksum of the file's contents, `crc` before."""
    data = np.ascontiguousarray(array).view(np.uint8).data
    with file.open("ab") as out:
        out.write(data)
    return zlib.crc32(data, crc)


def read(file: Path, dtype: np.dtype[Any], size: int, crc: int) -> NDArray[Any]:
    """The contents of a file, as long as it was noted and with the checksum noted."""
    if not size:
        return np.empty(0, dtype=dtype)
    if not file.exists() or file.stat().st_size != size:
        raise damaged(file)
    array = np.fromfile(file, dtype)
    if zlib.crc32(array.view(np.uint8).data) != crc:
        raise damaged(file)
    return array


def checksum(file: Path, start: int = 0) -> int:
    """Of the contents from `start` on."""
    crc = 0
    with file.open("rb") as data:
        data.seek(start)
        while block := data.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


def cut_back(file: Path, size: int) -> None:
    """Take away what was written after the last note."""
    if not size:
        file.unlink(missing_ok=True)
    elif not file.exists() or file.stat().st_size < size:
        raise damaged(file)
    else:
        os.truncate(file, size)


def damaged(file: Path) -> FileFormatError:
    """The error for a file of the working folder that something else has written."""
    return FileFormatError(f"{file} is not as it was left by the interrupted call. Start afresh with again=True (--again).")


def write_header(file: Path, dtype: np.dtype[Any], length: int, *, keep: bool = False) -> None:
    """The header of a vector that follows; with `keep`, in the place of the one that is there."""
    with file.open("r+b" if keep else "wb") as out:
        npy.write_array_header_1_0(out, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)})
        assert out.tell() == HEADER
