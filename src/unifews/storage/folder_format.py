"""Folders with a JSON file that names their format and version: graphs, datasets, models, working folders."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from unifews.errors import FileFormatError, MissingFileError
from unifews.storage.atomic import moved_aside, restore

Json = dict[str, Any]  # an object of a JSON file
CHECKSUM = "sha256"  # the key of the checksum of all other entries of a JSON file


def checksum_of(meta: Json) -> str:
    """The checksum of the content of a JSON object, whatever its layout."""
    return sha256(json.dumps({key: meta[key] for key in meta if key != CHECKSUM}, sort_keys=True).encode()).hexdigest()


class FolderFormat(NamedTuple):
    """A format of folder, and how its JSON file is read and written."""

    noun: str
    """What it holds: "graph"."""
    format: str
    version: int
    file: str
    """The JSON file in it."""
    writer: str
    """The function that writes such a folder."""
    also_reads: tuple[int, ...] = ()
    """Other versions that are read: they have fields that may be missing, and none that this release does not know."""

    def header(self) -> Json:
        """The first entries of the JSON file."""
        return {"format": self.format, "version": self.version}

    def write(self, folder: Path, meta: Json) -> None:
        """Write the JSON file, with a checksum of its own content."""
        whole = {**self.header(), **meta}
        text = json.dumps({**whole, CHECKSUM: checksum_of(whole)}, indent=2, ensure_ascii=False)
        (folder / self.file).write_text(text + "\n", encoding="utf-8")

    def describes(self, folder: Path) -> bool:
        """Whether the JSON file of a folder names this format, whatever the state of the folder."""
        return self._meta(folder) is not None

    def read(self, folder: Path) -> Json:
        """The content of the JSON file of a folder of this format and version."""
        meta = self._meta(folder)
        if meta is None and not folder.is_dir():
            kept = moved_aside(folder)
            found = f" Its last complete copy is {kept[0]}: rename that to {folder.name}." if kept else ""
            if folder.exists():
                raise FileFormatError(f"{folder} is a file; expected a {self.noun} folder, which {self.writer} writes.")
            raise MissingFileError(f"there is no {self.noun} folder {folder}.{found}")
        if meta is None:
            raise FileFormatError(
                f'{folder} is not a unifews {self.noun}: it has no {self.file} with "format": "{self.format}". '
                f"{self.writer} writes such a folder."
            )
        versions = sorted({self.version, *self.also_reads})
        if meta.get("version") not in versions:
            raise FileFormatError(
                f"{folder} has format version {meta.get('version')!r}, and this release reads version "
                f"{' and '.join(map(str, versions))}. "
                f"Upgrade unifews, or save the {self.noun} again."
            )
        return meta

    def check(self, folder: Path, meta: Json) -> None:
        """Compare what `read` returned with its own checksum; files of early releases have none."""
        if CHECKSUM in meta and meta[CHECKSUM] != checksum_of(meta):
            raise FileFormatError(
                f"{folder}/{self.file} has changed since it was written: its checksum differs. Copy or save the {self.noun} "
                f'again; if you have edited it, remove its "{CHECKSUM}".'
            )

    def _meta(self, folder: Path) -> Json | None:
        """The JSON file of a folder of this format; None if it is of another."""
        for attempt in range(2):  # the folder may be replaced by another between finding it and opening its file
            try:
                meta = json.loads((folder / self.file).read_text(encoding="utf-8"))
            except FileNotFoundError:
                if attempt or not restore(folder):
                    return None
                continue
            except (OSError, ValueError, RecursionError):  # nested too deeply
                return None
            return meta if isinstance(meta, dict) and meta.get("format") == self.format else None
        return None
