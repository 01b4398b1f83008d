"""Files of a working folder: raw arrays with checksums, written at once or appended to."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from unifews.errors import FileFormatError
from unifews.storage.atomic import naming

HEADER = 128  # bytes of a .npy header for a vector or a matrix of any length
_PIECE = 8 << 20  # bytes that are written and added to a checksum at a time


class AppendedFiles:
    """Files in a folder that are only appended to.

    `recorded` has the bytes and the checksum of each, without the header of a `.npy`, and belongs to what a journal records:
    what was written after the last record is removed by `restore`.
    """

    def __init__(self, folder: Path, recorded: dict[str, list[int]]) -> None:
        self.folder, self.recorded = folder, recorded

    def restore(self, names: Iterable[str], *, verify: bool = True) -> None:
        """The files as they were when they were recorded; `verify` compares their checksums, which reads them."""
        for name in names:
            file = self.folder / name
            if name not in self.recorded:
                file.unlink(missing_ok=True)
                continue
            (size, crc), header = self.recorded[name], HEADER if file.suffix == ".npy" else 0
            truncate(file, header + size)
            if verify and checksum(file, header) != crc:
                raise damaged(file)

    def create(self, name: str, dtype: Any = None, shape: tuple[int, ...] = ()) -> None:
        """A new file without contents; a `.npy` has its header, with the shape that it will have if that is known."""
        if dtype is None:
            (self.folder / name).write_bytes(b"")
        else:
            write_header(self.folder / name, np.dtype(dtype), shape)
        self.recorded[name] = [0, 0]

    def append(self, name: str, array: NDArray[Any]) -> None:
        size, crc = self.recorded.get(name, (0, 0))
        if array.nbytes:
            crc = append(self.folder / name, array, crc)
        self.recorded[name] = [size + array.nbytes, crc]

    def read(self, name: str, dtype: Any) -> NDArray[Any]:
        """All of a file without a header, its checksum compared."""
        size, crc = self.recorded.get(name, (0, 0))
        return read(self.folder / name, np.dtype(dtype), size, crc)


def append(file: Path, array: NDArray[Any], crc: int) -> int:
    """Append the bytes of an array; returns the checksum of the file, which was `crc` before."""
    data = np.ascontiguousarray(array).view(np.uint8).data
    with naming(file), file.open("ab") as out:
        out.write(data)
    return zlib.crc32(data, crc)


def read(file: Path, dtype: np.dtype[Any], size: int, crc: int) -> NDArray[Any]:
    """The contents of a file of this size and checksum."""
    if not size:
        return np.empty(0, dtype=dtype)
    if not file.exists() or file.stat().st_size != size:
        raise damaged(file)
    array = np.fromfile(file, dtype)
    if zlib.crc32(array.view(np.uint8).data) != crc:
        raise damaged(file)
    return array


def checksum(file: Path, start: int = 0) -> int:
    """The CRC-32 of the contents from byte `start` on."""
    if not file.exists():
        raise damaged(file)
    crc = 0
    with file.open("rb") as data:
        data.seek(start)
        while block := data.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


def truncate(file: Path, size: int) -> None:
    """Remove what was written after the last record; a file of size 0 is deleted."""
    if not size:
        file.unlink(missing_ok=True)
    elif not file.exists() or file.stat().st_size < size:
        raise damaged(file)
    else:
        os.truncate(file, size)


def damaged(file: Path) -> FileFormatError:
    """The error for a file of a working folder that has changed since it was recorded."""
    return FileFormatError(f"{file} has changed since the interrupted call. Start over with restart=True (--restart).")


def write_header(file: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, keep: bool = False) -> None:
    """Write the `.npy` header of an array that follows; with `keep`, replace the header of a file and keep its array."""
    with file.open("r+b" if keep else "wb") as out:
        npy.write_array_header_1_0(out, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
        assert out.tell() == HEADER


def save(file: Path, arrays: Sequence[NDArray[Any]]) -> int:
    """Write arrays one after the other and flush them to the disk; returns their checksum."""
    crc = 0
    with naming(file), file.open("wb") as out:
        for piece in pieces(arrays):
            out.write(piece.data)
            crc = zlib.crc32(piece.data, crc)
        out.flush()
        os.fsync(out.fileno())
    return crc


def load(file: Path, arrays: Sequence[NDArray[Any]], crc: int) -> None:
    """Read what `save` wrote into arrays of the same shapes, and compare its checksum."""
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
    """Rows `first` to `last` of a file that holds float32 [n, width]."""
    if not file.exists():
        raise damaged(file)
    values = np.fromfile(file, np.float32, (last - first) * width, offset=4 * width * first)
    if len(values) != (last - first) * width:
        raise damaged(file)
    return values.reshape(-1, width)


def allocate(file: Path, size: int) -> None:
    """A new file of zeros whose `size` bytes are reserved on the disk, so that a memory map of it can be written.

    Where a page of a map finds the disk full, a signal ends the process; here it is an error.
    """
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
    """The bytes of contiguous arrays, at most _PIECE at a time."""
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), _PIECE):
            yield flat[at : at + _PIECE]
