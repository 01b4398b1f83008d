"""Arrays inside a `.npz` without reading the archive: mapped where they are stored plainly, else unpacked to a file once."""

from __future__ import annotations

import shutil
import struct
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from unifews.core.atomic import atomic_file
from unifews.core.npy import open_array
from unifews.errors import FileFormatError, MissingFileError

_LOCAL = struct.Struct("<4s22xHH")  # of the header before each member: signature, …, lengths of name and extra field
_CHUNK = 1 << 24


def members(path: Path) -> list[str]:
    """The names of the arrays in a `.npz`."""
    with _open(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def shape_of(path: Path, name: str) -> tuple[tuple[int, ...], int]:
    """The shape of an array in a `.npz`, and the bytes that unpacking it would take, 0 where it can be mapped."""
    with _open(path) as archive:
        info = archive.getinfo(f"{name}.npy")
        try:
            with archive.open(info) as member:
                shape = _header(member)[0]
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise _damaged(path, str(error)) from error
        return shape, 0 if info.compress_type == zipfile.ZIP_STORED else info.file_size


def open_member(path: Path, name: str, work: Path) -> NDArray[Any]:
    """The array `name` of the archive at `path`, read-only, as a memory map.

    numpy.savez stores members as they are, and those are mapped in place; a compressed one is unpacked to `work` by chunks
    the first time, and mapped from there.
    """
    with _open(path) as archive:
        try:
            info = archive.getinfo(f"{name}.npy")
        except KeyError as error:
            raise FileFormatError(f"{path} holds no array {name!r}; it has {', '.join(members(path)) or 'nothing'}.") from error
        if info.compress_type == zipfile.ZIP_STORED:
            return _mapped(path, name, info)
        unpacked = work / f"{name}-{info.CRC:08x}.npy"  # named by its checksum: another archive gets another file
        if not unpacked.is_file():
            try:
                with archive.open(info) as member, atomic_file(unpacked) as file:
                    shutil.copyfileobj(member, file, _CHUNK)
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise _damaged(path, str(error)) from error
        return open_array(unpacked)


def _open(path: Path) -> zipfile.ZipFile:
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}.")
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise _damaged(path, str(error)) from error


def _mapped(path: Path, name: str, info: zipfile.ZipInfo) -> NDArray[Any]:
    with path.open("rb") as file:
        file.seek(info.header_offset)
        local = file.read(_LOCAL.size)
        if len(local) < _LOCAL.size or local[:4] != b"PK\x03\x04":
            raise _damaged(path, f"the header of {name} is not where the archive says")
        _, name_length, extra_length = _LOCAL.unpack(local)
        file.seek(name_length + extra_length, 1)
        begin = file.tell()
        try:
            shape, fortran, dtype = _header(file)
        except (ValueError, EOFError) as error:
            raise _damaged(path, str(error)) from error
        start = file.tell()
    if dtype.hasobject:
        raise FileFormatError(
            f"{path} holds pickled Python objects in {name}, which can run code and are never loaded. Save a numeric array."
        )
    if start - begin + prod(shape) * dtype.itemsize != info.file_size or begin + info.file_size > path.stat().st_size:
        raise _damaged(path, f"{name} is not as long as its header says")
    if not prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    return read(file)


def _damaged(path: Path, reason: str) -> FileFormatError:
    return FileFormatError(f"{path} is truncated, half-downloaded or no .npz archive ({reason}). Get it again.")
