"""What a report is made of: the runs of ledgers, and the tables and figures that `unifews reproduce` wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unifews.errors import FileFormatError, MissingFileError
from unifews.report import exhibit
from unifews.report.compare import Record
from unifews.report.exhibit import Exhibit
from unifews.training.ledger import Ledger, Skipped
from unifews.training.record import is_training


@dataclass(frozen=True)
class Material:
    records: list[Record]
    """Of every run the latest."""
    exhibits: list[Exhibit]
    """As the paper has them."""
    passed_over: Sequence[Path] = ()
    """JSON files of a folder that are something else."""
    ledgers: Sequence[Ledger] = ()
    """Where the records come from."""
    skipped: Sequence[tuple[Path, Skipped]] = ()
    """Their lines that hold no complete record."""

    def __str__(self) -> str:
        many = [(len(self.records), "run", "runs"), (len(self.exhibits), "table or figure", "tables and figures")]
        return " and ".join(f"{count:,} {one if count == 1 else more}" for count, one, more in many if count)


def gather(sources: Sequence[Path]) -> Material:
    """Everything in these files and folders; a folder may hold a ledger, exhibits, or both."""
    records: dict[str, Record] = {}
    exhibits, passed_over, ledgers = [], [], []
    skipped: list[tuple[Path, Skipped]] = []
    for source in sources:
        if not source.exists():
            raise MissingFileError(f"there is no {source}; give a ledger.jsonl, its folder, or a folder of unifews reproduce.")
        for path in _parts(source):
            if path.suffix == ".jsonl":
                book = Ledger(path)
                try:
                    found = book.records()
                except FileFormatError:
                    if not source.is_dir():
                        raise
                    passed_over.append(path)
                    continue
                ledgers.append(book)
                skipped += [(path, each) for each in book.skipped()]
                records |= {record["id"]: record for record in found if is_training(record)}
            elif source.is_dir() and not exhibit.is_exhibit(_json(path)):
                passed_over.append(path)
            else:
                exhibits.append(exhibit.read(path))
    exhibits.sort(key=lambda one: [*one.place] or [math.inf])
    return Material(list(records.values()), exhibits, passed_over, ledgers, skipped)


def _parts(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    found = [path for path in sorted(source.glob("*.json*")) if path.suffix in (".json", ".jsonl") and path.name[0] != "."]
    if not found:
        raise MissingFileError(f"{source} holds no ledger.jsonl and no .json of unifews reproduce; give another folder.")
    return found


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
