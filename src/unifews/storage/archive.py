"""`.npz` archives of arrays: members are read in memory when asked for, checked by their CRC-32, bounded, never unpickled."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.errors import FileFormatError, MissingFileError
from unifews.storage.npy import read_header
from unifews.storage.reading import check_unpacked, reading

_CHUNK = 1 << 24
_END = struct.Struct("<4s6xH10x")  # the end of an archive: signature, …, number of members, …
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
    """As many members as the end of the archive says, which zipfile does not compare: a damaged length may hide some."""
    with path.open("rb") as raw:
        raw.seek(-_END.size - len(file.comment), 2)
        mark, count = _END.unpack(raw.read(_END.size))
    if mark != b"PK\x05\x06" or count not in (len(file.infolist()), 0xFFFF):  # 65,535: more than that
        raise zipfile.BadZipFile("its directory is damaged")


class Archive(Mapping[str, NDArray[Any]]):
    """The arrays of a `.npz` by name, each read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._members: dict[str, str] = {}
        with opened(path) as file:
            for info in file.infolist():
                name = info.filename.removesuffix(".npy")
                if name in self._members:
                    raise FileFormatError(f"{path} is damaged: it holds two arrays called {name[:80]!r}.")
                file.open(info).close()  # its place and name are as the archive's directory says
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
