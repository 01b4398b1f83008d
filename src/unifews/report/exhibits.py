"""Reads the contents of a report: runs of ledgers, and the tables and figures that `unifews reproduce` wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unifews.errors import FileFormatError, MissingFileError, unknown_name
from unifews.experiments.results import Exhibit
from unifews.report.runs import Record
from unifews.training.ledger import Ledger, Skipped
from unifews.training.record import is_training, unreadable

Read = TypeVar("Read")


def read_exhibit(path: Path) -> Exhibit:
    """An exhibit from its file."""
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is neither a ledger nor a result of unifews reproduce: it is not JSON.") from error
    if found := unreadable(values):
        raise FileFormatError(f"{path} {found}; write it again with unifews reproduce.")
    if not is_exhibit(values):
        raise FileFormatError(f"{path} is not a figure or table of unifews reproduce: it has no id and kind.")
    try:
        return from_json(Exhibit, values)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def is_exhibit(values: object) -> bool:
    """Whether something read from JSON is an exhibit."""
    return isinstance(values, Mapping) and {"id", "kind"} <= values.keys()


def from_json(kind: type[Read], values: Mapping[str, Any]) -> Read:
    """An object of a dataclass from plain values, checked by the annotations of its fields; unknown keys are ignored."""
    hints = get_type_hints(kind)
    given = {name: _read(name, hint, values[name]) for name, hint in hints.items() if values.get(name) is not None}
    try:
        return kind(**given)
    except TypeError:
        missing = [name for name in hints if name not in given and not hasattr(kind, name)]
        raise FileFormatError(f"{kind.__name__.lower()} without `{'`, `'.join(missing)}`.") from None


def _read(name: str, kind: Any, value: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise FileFormatError(f"`{name}` has a {type(value).__name__} in place of a {kind.__name__.lower()}.")
        return from_json(kind, value)
    if get_origin(kind) is Sequence:
        if not isinstance(value, list):
            raise FileFormatError(f"`{name}` must be a list; got a {type(value).__name__}.")
        return [_read(name, get_args(kind)[0], item) for item in value]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise FileFormatError(str(unknown_name(f"`{name}`", str(value), get_args(kind))))
        return value
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if not isinstance(value, members) and not (float in members and type(value) is int):
        expected = " or ".join(
            {str: "text", float: "number", int: "integer", bool: "true or false"}.get(m, "null") for m in members
        )
        raise FileFormatError(f"`{name}` must be {expected}; got {str(value)[:40]!r}.")
    return value


# -------------------------------------------------------------------------------------------------------------- collecting


@dataclass(frozen=True)
class Material:
    """The contents of a report."""

    records: list[Record]
    """The latest of every run."""
    exhibits: list[Exhibit]
    """In the paper's order."""
    ignored: Sequence[Path] = ()
    """JSON files of a folder that are something else."""
    ledgers: Sequence[Ledger] = ()
    """Sources of the records."""
    skipped: Sequence[tuple[Path, Skipped]] = ()
    """Lines of ledgers without a complete record."""

    def __str__(self) -> str:
        counts = [(len(self.records), "run", "runs"), (len(self.exhibits), "table or figure", "tables and figures")]
        return " and ".join(f"{count:,} {one if count == 1 else more}" for count, one, more in counts if count)


def gather(sources: Sequence[Path]) -> Material:
    """The contents of files and folders; a folder may have a ledger, exhibits, or both."""
    records: dict[str, Record] = {}
    exhibits, ignored, ledgers = [], [], []
    skipped: list[tuple[Path, Skipped]] = []
    for source in sources:
        if not source.exists():
            raise MissingFileError(f"there is no {source}; give a ledger.jsonl, its folder, or a folder of unifews reproduce.")
        for path in _files(source):
            if path.suffix == ".jsonl":
                ledger = Ledger(path)
                try:
                    found = ledger.records()
                except FileFormatError:
                    if not source.is_dir():
                        raise
                    ignored.append(path)
                    continue
                ledgers.append(ledger)
                skipped += [(path, each) for each in ledger.skipped()]
                records |= {record["id"]: record for record in found if is_training(record)}
            elif source.is_dir() and not is_exhibit(_json(path)):
                ignored.append(path)
            else:
                exhibits.append(read_exhibit(path))
    exhibits.sort(key=lambda one: [*one.place] or [math.inf])
    return Material(list(records.values()), exhibits, ignored, ledgers, skipped)


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    found = [path for path in sorted(source.glob("*.json*")) if path.suffix in (".json", ".jsonl") and path.name[0] != "."]
    if not found:
        raise MissingFileError(f"{source} has no ledger.jsonl and no .json of unifews reproduce; give another folder.")
    return found


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
