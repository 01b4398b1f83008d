"""Every exception this package raises on purpose.

    UnifewsError
    ├── InputError            (ValueError)         a value that cannot work: hops < 1, NaN features, sparsity = 50
    │   ├── ShapeError                             arrays that do not fit together
    │   ├── GraphError                             nodes or edges that do not make a graph
    │   └── UnknownNameError  (KeyError)           no method, dataset or scheme of that name
    ├── FileFormatError       (ValueError)         a truncated, foreign or pickled file
    └── MissingFileError      (FileNotFoundError)  no file or folder at that path

A message is for the person who made the call: what was given, why it cannot work, what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UnifewsError(Exception):
    """Base of the tree: `except UnifewsError` catches whatever a user can cause."""


class InputError(UnifewsError, ValueError):
    """A value that cannot work. `setting` names the argument or option it was given for, where a single one is at fault."""

    def __init__(self, message: str = "", *, setting: str = "") -> None:
        super().__init__(message)
        self.setting = setting


class ShapeError(InputError):
    """Arrays whose shapes do not fit together."""


class GraphError(InputError):
    """Nodes or edges that do not make a graph."""


class UnknownNameError(InputError, KeyError):
    """A name that is not in the list of known ones; see `unknown_name`."""

    def __str__(self) -> str:
        # KeyError prints the repr of its argument; a message should print as it is.
        return str(self.args[0]) if self.args else ""


class FileFormatError(UnifewsError, ValueError):
    """A file that is truncated, of another format, or pickled."""


class MissingFileError(UnifewsError, FileNotFoundError):
    """No file or folder at the given path."""


def unknown_name(kind: str, name: str, known: Iterable[str], setting: str = "") -> UnknownNameError:
    """The error for a misspelt name, with the nearest known one. `setting`: the option that it was given for.

    >>> str(unknown_name("method", "dspr", ["unifews", "dspar"]))
    "no method named 'dspr'. Did you mean 'dspar'? Known: dspar, unifews."
    """
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UnknownNameError(f"no {kind} named {name!r}.{hint} Known: {', '.join(names) or 'none'}.", setting=setting)
