"""Files of bare numbers, with checksums, that something long leaves on its way: whole ones, and ones that grow."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from unifews.errors import FileFormatError
from unifews.storage.atomic import naming

HEADER = 128  # bytes of a .npy header for a vector or a matrix of any length
_PIECE = 8 << 20  # bytes that are written and summed up at a time


def append(file: Path, array: NDArray[Any], crc: int) -> int:
    """Append the bytes of an array; the checksum of the file's contents, `crc` before."""
    data = np.ascontiguousarray(array).view(np.uint8).data
    with naming(file), file.open("ab") as out:
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
    if not file.exists():
        raise damaged(file)
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


def write_header(file: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, keep: bool = False) -> None:
    """The header of an array that follows; with `keep`, in the place of the one that is there."""
    with file.open("r+b" if keep else "wb") as out:
        npy.write_array_header_1_0(out, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
        assert out.tell() == HEADER


def save(file: Path, arrays: Sequence[NDArray[Any]]) -> int:
    """Write arrays one after the other, down to the disk; the checksum to note."""
    crc = 0
    with naming(file), file.open("wb") as out:
        for piece in pieces(arrays):
            out.write(piece.data)
            crc = zlib.crc32(piece.data, crc)
        out.flush()
        os.fsync(out.fileno())
    return crc


def load(file: Path, arrays: Sequence[NDArray[Any]], crc: int) -> None:
    """Read arrays in place, as they were when their checksum was noted."""
    if not file.exists() or file.stat().st_size != sum(array.nbytes for array in arrays):
        raise damaged(file)
    found = 0
    with file.open("rb") as data:
        for piece in pieces(arrays):
            data.readinto(piece.data)
            found = zlib.crc32(piece.data, found)
    if found != crc:
        raise damaged(file)


def rows(file: Path, first: int, last: int, width: int) -> NDArray[np.float32]:
    """Some rows of a file that holds nothing but float32 [n, width]."""
    if not file.exists():
        raise damaged(file)
    values = np.fromfile(file, np.float32, (last - first) * width, offset=4 * width * first)
    if len(values) != (last - first) * width:
        raise damaged(file)
    return values.reshape(-1, width)


def allocate(file: Path, size: int) -> None:
    """A new file of zeros that has its `size` bytes on the disk, so that a map of it can be written: pages of a map that find
    the disk full end the process by a signal, and here it is an error."""
    with naming(file), file.open("wb") as out:
        try:
            if size:
                os.posix_fallocate(out.fileno(), 0, size)
            return
        except AttributeError:  # macOS, Windows
            pass
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
        zeros = bytes(min(size, _PIECE))  # a file system that cannot reserve space
        for at in range(0, size, _PIECE):
            out.write(zeros[: size - at])
        out.flush()
        os.fsync(out.fileno())


def pieces(arrays: Sequence[NDArray[Any]]) -> Iterator[NDArray[np.uint8]]:
    """The bytes of contiguous arrays, some at a time."""
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), _PIECE):
            yield flat[at : at + _PIECE]
