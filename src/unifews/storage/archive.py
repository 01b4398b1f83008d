"""`.npz` archives of arrays, never unpickled.

`Archive` reads members into memory when they are used, checks their CRC-32 and bounds their size; `open_member` maps a member,
unpacked to a file first where it is compressed.
"""

from __future__ import annotations

import shutil
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.errors import FileFormatError, MissingFileError
from unifews.storage.atomic import atomic_file
from unifews.storage.npy import map_array, open_array, read_header
from unifews.storage.reading import check_unpacked, reading

_CHUNK = 1 << 24
_END = struct.Struct("<4s6xH10x")  # the end of an archive: signature, …, number of members, …
_LOCAL = struct.Struct("<4s22xHH")  # the header before each member: signature, …, lengths of name and extra field
_ADVICE = "save its arrays with numpy.savez, uncompressed, or convert a list of edges with unifews data convert --memory"


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive at `path`; errors of reading it in this block are `FileFormatError`."""
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}.")
    if not zipfile.is_zipfile(path):
        raise FileFormatError(
            f"{path} is not a .npz archive, or it is truncated or half-downloaded. Get it again, or write it with numpy.savez."
        )
    with reading(path, "a .npz archive of numeric arrays"), zipfile.ZipFile(path) as file:
        _check_count(path, file)
        yield file


def _check_count(path: Path, file: zipfile.ZipFile) -> None:
    """Compare the number of members with the end of the archive, which zipfile does not: a damaged length may hide some."""
    with path.open("rb") as raw:
        raw.seek(-_END.size - len(file.comment), 2)
        mark, count = _END.unpack(raw.read(_END.size))
    if mark != b"PK\x05\x06" or count not in (len(file.infolist()), 0xFFFF):  # 65,535: more than that
        raise zipfile.BadZipFile("its directory is damaged")


class Archive(Mapping[str, NDArray[Any]]):
    """The arrays of a `.npz` by name, each read when it is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._members: dict[str, str] = {}
        with opened(path) as file:
            for info in file.infolist():
                name = info.filename.removesuffix(".npy")
                if name in self._members:
                    raise FileFormatError(f"{path} is damaged: it holds two arrays called {name[:80]!r}.")
                file.open(info).close()  # checks its position and name against the archive's directory
                self._members[name] = info.filename

    def __contains__(self, name: object) -> bool:  # Mapping's own would read the array
        return name in self._members

    def __getitem__(self, name: str) -> NDArray[Any]:
        member, called = self._members[name], f"{name} in {self.path}"
        with opened(self.path) as file, file.open(member) as content:
            info = file.getinfo(member)
            header = read_header(content, called)
            if header.length + header.size != info.file_size:
                raise FileFormatError(f"{called} is not as long as {header}. Get the file again.")
            check_unpacked(self.path, header.size, info.compress_size, name, _ADVICE)
            data = np.empty(header.size, np.uint8)
            at = 0
            while at < header.size:
                part = content.read(min(_CHUNK, header.size - at))
                if not part:
                    raise EOFError(f"{name} ends early")
                data[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
            content.read(1)  # at its end, zipfile compares the checksum
            return data.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def listed(self) -> str:
        """The names of its arrays, for messages."""
        return ", ".join(sorted(self._members))[:500] or "nothing"


# ------------------------------------------------------------------------------------------------------- mapped members


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
            raise FileFormatError(f"{path} holds no array {name!r}; it has {Archive(path).listed()}.") from error
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
            raise FileFormatError(
                f"{called} is not where the archive's directory has it, so the file is damaged. Download or write it again."
            )
        _, name_length, extra_length = _LOCAL.unpack(local)
        file.seek(name_length + extra_length, 1)
        begin = file.tell()
        header = read_header(file, called)
    if header.length + header.size != info.file_size or begin + info.file_size > path.stat().st_size:
        raise FileFormatError(f"{called} is not as long as {header}, so the file is damaged. Get it again.")
    return map_array(path, header, begin + header.length)
