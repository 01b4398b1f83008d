"""Arrays inside a `.npz` without reading the archive: mapped where they are stored plainly, else unpacked to a file once."""

from __future__ import annotations

import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from unifews.errors import FileFormatError
from unifews.storage.archive import opened
from unifews.storage.atomic import atomic_file
from unifews.storage.npy import map_array, open_array, read_header

_LOCAL = struct.Struct("<4s22xHH")  # of the header before each member: signature, …, lengths of name and extra field
_CHUNK = 1 << 24


def members(path: Path) -> list[str]:
    """The names of the arrays in a `.npz`."""
    with opened(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def shape_of(path: Path, name: str) -> tuple[tuple[int, ...], int]:
    """The shape of an array in a `.npz`, and the bytes that unpacking it would take, 0 where it can be mapped."""
    with opened(path) as archive, archive.open(f"{name}.npy") as member:
        info = archive.getinfo(f"{name}.npy")
        shape = read_header(member, f"{name} in {path}").shape
        return shape, 0 if info.compress_type == zipfile.ZIP_STORED else info.file_size


def open_member(path: Path, name: str, work: Path) -> NDArray[Any]:
    """The array `name` of the archive at `path`, read-only, as a memory map.

    numpy.savez stores members as they are, and those are mapped in place; a compressed one is unpacked to `work` by chunks
    the first time, and mapped from there.
    """
    with opened(path) as archive:
        try:
            info = archive.getinfo(f"{name}.npy")
        except KeyError as error:
            raise FileFormatError(f"{path} holds no array {name!r}; it has {', '.join(members(path)) or 'nothing'}.") from error
        if info.compress_type == zipfile.ZIP_STORED:
            return _mapped(path, name, info)
        unpacked = work / f"{name}-{info.CRC:08x}.npy"  # named by its checksum: another archive gets another file
        if not unpacked.is_file():
            with archive.open(info) as member, atomic_file(unpacked) as file:
                shutil.copyfileobj(member, file, _CHUNK)
        return open_array(unpacked)


def _mapped(path: Path, name: str, info: zipfile.ZipInfo) -> NDArray[Any]:
    called = f"{name} in {path}"
    with path.open("rb") as file:
        file.seek(info.header_offset)
        local = file.read(_LOCAL.size)
        if len(local) < _LOCAL.size or local[:4] != b"PK\x03\x04":
            raise FileFormatError(f"{called} is not where the archive says, so the file is damaged. Get it again.")
        _, name_length, extra_length = _LOCAL.unpack(local)
        file.seek(name_length + extra_length, 1)
        begin = file.tell()
        header = read_header(file, called)
    if header.length + header.size != info.file_size or begin + info.file_size > path.stat().st_size:
        raise FileFormatError(f"{called} is not as long as {header}, so the file is damaged. Get it again.")
    return map_array(path, header, begin + header.length)
