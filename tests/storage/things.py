"""Folders of a kind of their own, in a module of their own: other processes import them from here."""

from __future__ import annotations

import json
from pathlib import Path

from unifews.storage.atomic import atomic_folder, steady
from unifews.storage.folder_format import FolderFormat

KIND = FolderFormat("thing", "unifews-thing", 1, "meta.json", "put")
FILES = 3


def put(folder, number, *, overwrite=True):
    """A folder whose files all hold its number."""
    with atomic_folder(Path(folder), overwrite=overwrite) as place:
        for i in range(FILES):
            (place / f"{i}").write_text(str(number))
        (place / KIND.file).write_text(json.dumps(KIND.header() | {"number": number}))


def got(folder):
    """The number of a folder; all of its files must be of one writer."""
    folder = Path(folder)
    number, files = steady(folder, lambda: (KIND.read(folder)["number"], {(folder / f"{i}").read_text() for i in range(FILES)}))
    assert files == {str(number)}
    return number
