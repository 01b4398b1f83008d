"""A folder that says what it is: a JSON file in it names its format and version. Graphs and datasets are such folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from unifews.errors import FileFormatError, MissingFileError


class Kind(NamedTuple):
    """One format of folder."""

    noun: str
    """What it holds: "graph"."""
    format: str
    version: int
    file: str
    """The JSON file in it."""
    writer: str
    """The function that writes such a folder."""

    def header(self) -> dict[str, Any]:
        """How the JSON file begins."""
        return {"format": self.format, "version": self.version}

    def describes(self, folder: Path) -> bool:
        """True for a folder whose JSON file says it is of this kind, whatever its state."""
        try:
            meta = json.loads((folder / self.file).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # nested too deeply
            return False
        return isinstance(meta, dict) and meta.get("format") == self.format

    def read(self, folder: Path) -> dict[str, Any]:
        """What the JSON file says, of a folder of this kind and version."""
        if not folder.is_dir():
            raise MissingFileError(f"there is no {self.noun} folder {folder}.")
        if not self.describes(folder):
            raise FileFormatError(
                f'{folder} is not a unifews {self.noun}: it has no {self.file} with "format": "{self.format}". '
                f"{self.writer} writes such a folder."
            )
        meta: dict[str, Any] = json.loads((folder / self.file).read_text(encoding="utf-8"))
        if meta.get("version") != self.version:
            raise FileFormatError(
                f"{folder} has format version {meta.get('version')!r}, and this release reads version {self.version}. "
                f"Upgrade unifews, or save the {self.noun} again."
            )
        return meta
