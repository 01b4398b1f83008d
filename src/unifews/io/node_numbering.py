"""Node numbers for identifiers that may be more than fit memory: the runs of all chunks are merged, range by range.

A run holds the distinct identifiers of a chunk of edges in order. Pivots, from a sample, cut the order into ranges that fit
memory; of each range the identifiers of all runs are read, merged and appended to the file of identifiers, and their numbers
are appended to a file beside each run. Every file is read and written once, from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from unifews.io.edge_lists import EdgeList
from unifews.io.edge_sources import IdRun, ParsedEdges, write_run
from unifews.io.external_sort import EdgeSource, check_share
from unifews.io.ids import INTEGERS, TEXT, as_text, encoded, merge
from unifews.resources import Memory, StageProgress, report
from unifews.storage import state_files
from unifews.storage.journal import Journal
from unifews.storage.state_files import AppendedFiles

_PER_INTEGER = 64  # bytes of memory an identifier takes while its range is merged
_PER_TEXT = 320  # and one of text, beside its bytes
_SAMPLE = 100_000  # identifiers that pivots are taken from
_PIVOT = 64  # bytes of a pivot that is text


class _Numbering(TypedDict):
    """How far the merge has come."""

    text: bool
    share: int
    """Bytes of memory for a range."""
    pivots: list[Any]
    done: int
    """Ranges."""
    size: int
    """Identifiers numbered."""
    taken: list[int]
    """Identifiers taken of each run."""
    offset: list[int]
    """Bytes of them, where they are text."""
    files: dict[str, list[int]]


class NumberedEdges(EdgeSource):
    """Parsed edges, between the numbers that their identifiers were given."""

    def __init__(self, journal: Journal, edges: ParsedEdges, runs: Sequence[IdRun]) -> None:
        self._edges, self._folder, self._runs = edges, journal.folder / "pieces", runs
        self._state: _Numbering = journal.get("numbered")
        self._files = AppendedFiles(journal.folder, self._state["files"])
        self._dropped = 0
        self.weighted = edges.weighted

    @property
    def num_nodes(self) -> int:
        """Distinct identifiers."""
        return self._state["size"]

    def __len__(self) -> int:
        return len(self._edges)

    def read(self, chunk: int) -> EdgeList:
        source, target, weight = self._edges.read(chunk)
        numbers = self.numbers(chunk)
        return EdgeList(numbers[source], numbers[target], weight)

    def numbers(self, chunk: int) -> NDArray[np.int64]:
        """The numbers of the identifiers of a run."""
        numbers: NDArray[np.int64] = self._files.read(_numbers(chunk), np.int64)
        if self._state["text"] and not self._runs[chunk].text:  # the numbers are in the order of text, the run is not
            integers = np.fromfile(self._folder / f"{chunk}.run", np.int64)
            _, (places,) = merge([as_text(integers)])
            numbers = numbers[places]
        return numbers

    def drop(self, chunks: int) -> None:
        self._edges.drop(chunks)
        for chunk in range(self._dropped, chunks):
            for kind in ("run", "text", "numbers"):
                (self._folder / f"{chunk}.{kind}").unlink(missing_ok=True)
        self._dropped = chunks


def number(
    journal: Journal, edges: ParsedEdges, runs: Sequence[IdRun], memory: Memory, progress: StageProgress | None
) -> NumberedEdges:
    """Number the identifiers of all runs, and write them to `ids.npy` or `ids.txt` in the working folder.

    The first runs are those of the edges; further ones may follow.
    """
    if journal.get("ids") is None:
        _Merge(journal, runs, memory).run(progress)
    return NumberedEdges(journal, edges, runs)


def _numbers(run: int) -> str:
    return f"pieces/{run}.numbers"


class _Merge:
    """The merge of runs into one list."""

    def __init__(self, journal: Journal, runs: Sequence[IdRun], memory: Memory) -> None:
        self.journal, self.memory, self.folder = journal, memory, journal.folder / "pieces"
        self.text = any(run.text for run in runs)
        self.runs = [self._file(i, run) for i, run in enumerate(runs)]
        self.sizes = [run.size for run in runs]
        self.bytes = sum(file.stat().st_size for file in self.runs)
        self.out = TEXT if self.text else INTEGERS

    def _file(self, i: int, run: IdRun) -> Path:
        """The file of a run, checked; where others are text, a file of its identifiers as text."""
        file = self.folder / f"{i}.run"
        if not file.exists() or state_files.checksum(file) != run.crc:
            raise state_files.damaged(file)
        if run.text or not self.text:
            return file
        write_run(file.with_suffix(".text"), merge([as_text(np.fromfile(file, np.int64))])[0])
        return file.with_suffix(".text")

    def run(self, progress: StageProgress | None) -> None:
        state: _Numbering | None = self.journal.get("numbered")
        if state is None:
            taken, offset = [0] * len(self.runs), [0] * len(self.runs)
            state = {
                "text": self.text,
                "share": self.memory.share,
                "pivots": self._pivots(),
                "done": 0,
                "size": 0,
                "taken": taken,
                "offset": offset,
                "files": {},
            }
            self.journal.record(numbered=state)
        check_share(self.journal, state["share"], self.memory)
        self.files = AppendedFiles(self.journal.folder, state["files"])
        self.files.restore([self.out, *map(_numbers, range(len(self.runs)))])
        if self.out not in self.files.recorded:
            self.files.create(self.out, *(() if self.text else (np.int64, (0,))))
        pivots = [*(bytes.fromhex(pivot) if self.text else pivot for pivot in state["pivots"]), None]

        def append(pivot: Any) -> None:
            self._merge(pivot, state)
            state["done"] += 1
            report(progress, "numbering identifiers", state["done"], len(pivots))

        self.journal.append_resumably("numbered", state, pivots[state["done"] :], append)
        if not self.text:
            state_files.write_header(self.journal.folder / self.out, np.dtype(np.int64), (state["size"],), keep=True)
        self.journal.record(ids="numbered")

    def _merge(self, pivot: Any, state: _Numbering) -> None:
        """Number the identifiers up to a pivot."""
        distinct, places = merge([self._take(i, pivot, state) for i in range(len(self.runs))])
        for i, numbers in enumerate(places):
            numbers += state["size"]
            self.files.append(_numbers(i), numbers)
        self.files.append(self.out, np.frombuffer(encoded(distinct), np.uint8) if self.text else distinct)
        state["size"] += len(distinct)

    def _take(self, i: int, pivot: Any, state: _Numbering) -> NDArray[Any]:
        """The identifiers of a run that come before the pivot and have not been taken."""
        start = state["taken"][i]
        if start == self.sizes[i]:
            return np.empty(0, dtype=object if self.text else np.int64)
        if self.text:
            with self.runs[i].open("rb") as file:
                file.seek(state["offset"][i])
                found = list(takewhile(lambda line: pivot is None or line[:-1] < pivot, file))
            state["offset"][i] += sum(map(len, found))
            part = np.array([line[:-1].decode() for line in found], dtype=object)
        else:
            run = np.memmap(self.runs[i], np.int64, "r", shape=(self.sizes[i],))
            part = np.array(run[start : None if pivot is None else start + int(np.searchsorted(run[start:], pivot))])
        state["taken"][i] = start + len(part)
        return part

    def _pivots(self) -> list[Any]:
        """Where ranges begin but for the first, so that each takes about a share of the memory."""
        total = sum(self.sizes)
        takes = total * (_PER_TEXT if self.text else _PER_INTEGER) + (self.bytes if self.text else 0)
        parts = -(-takes // self.memory.share)
        if parts < 2:
            return []
        every = max(1, total // _SAMPLE)
        sample: list[Any] = []
        for i, file in enumerate(self.runs):
            first = i * 7919 % every  # so that short runs are not all left out
            if self.text:
                with file.open("rb") as lines:
                    sample += [line[:-1][:_PIVOT] for line in islice(lines, first, None, every)]
            elif self.sizes[i]:
                sample += np.memmap(file, np.int64, "r", shape=(self.sizes[i],))[first::every].tolist()
        sample.sort()
        pivots = dict.fromkeys(sample[i * len(sample) // parts] for i in range(1, parts)) if sample else {}
        return [pivot.hex() if self.text else pivot for pivot in pivots]
