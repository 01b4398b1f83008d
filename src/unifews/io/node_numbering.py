"""Node numbers for identifiers that may be more than fit memory: the runs of all pieces are merged, range by range.

A run holds the distinct identifiers of a chunk of edges in order. Pivots, from a sample, cut the order into ranges that fit
memory; of each range the identifiers of all runs are read, merged and appended to the file of identifiers, and their numbers go
into a file beside each run. Every file is read and written from its beginning to its end, once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.errors import InputError
from unifews.io.edge_lists import EdgeList
from unifews.io.edge_sources import Pieces, Run, write_run
from unifews.io.ids import INTEGERS, TEXT, as_text, encoded, merge
from unifews.resources import Memory, StageProgress, format_bytes
from unifews.storage import state_files
from unifews.storage.journal import Work

_OFTEN = 2.0  # seconds between notes of how far the merge has come
_PER_INTEGER = 64  # bytes of memory an identifier takes while its range is merged
_PER_TEXT = 320  # and one of text, beside its bytes
_SAMPLE = 100_000  # identifiers that pivots are taken from
_PIVOT = 64  # bytes of a pivot that is text


class Numbered:
    """The edges of pieces, between the numbers that their identifiers were given."""

    def __init__(self, work: Work, pieces: Pieces, runs: Sequence[Run]) -> None:
        self._pieces, self._folder, self._runs = pieces, work.folder / "pieces", runs
        self._state = work.get("numbered")
        self._dropped = 0
        self.weighted = pieces.weighted

    @property
    def num_nodes(self) -> int:
        """Distinct identifiers."""
        return int(self._state["size"])

    def __len__(self) -> int:
        return len(self._pieces)

    def read(self, chunk: int) -> EdgeList:
        source, target, weight = self._pieces.read(chunk)
        numbers = self.numbers(chunk)
        return EdgeList(numbers[source], numbers[target], weight)

    def numbers(self, chunk: int) -> NDArray[np.int64]:
        """The numbers of the identifiers of a run."""
        size, crc = self._runs[chunk].size, self._state["crc"][chunk]
        numbers: NDArray[np.int64] = state_files.read(self._folder / f"{chunk}.numbers", np.dtype(np.int64), 8 * size, crc)
        if self._state["text"] and not self._runs[chunk].text:  # the numbers are in the order of text, the piece is not
            integers = np.fromfile(self._folder / f"{chunk}.run", np.int64)
            _, (places,) = merge([as_text(integers)])
            numbers = numbers[places]
        return numbers

    def sample(self) -> None:
        return None

    def drop(self, chunks: int) -> None:
        self._pieces.drop(chunks)
        for chunk in range(self._dropped, chunks):
            for kind in ("run", "text", "numbers"):
                (self._folder / f"{chunk}.{kind}").unlink(missing_ok=True)
        self._dropped = chunks


def number(work: Work, pieces: Pieces, runs: Sequence[Run], memory: Memory, progress: StageProgress | None) -> Numbered:
    """Give the identifiers of all runs their numbers, and write them to `ids.npy` or `ids.txt` in the working folder.

    The first runs are those of the pieces; further ones may follow.
    """
    if not (work.get("numbered") or {}).get("finished"):
        _Merge(work, runs, memory).run(progress)
    return Numbered(work, pieces, runs)


class _Merge:
    """Runs on their way into one list."""

    def __init__(self, work: Work, runs: Sequence[Run], memory: Memory) -> None:
        self.work, self.memory, self.folder = work, memory, work.folder / "pieces"
        self.text = any(run.text for run in runs)
        self.files = [self._file(i, run) for i, run in enumerate(runs)]
        self.sizes = [run.size for run in runs]
        self.bytes = sum(file.stat().st_size for file in self.files)
        self.out = work.folder / (TEXT if self.text else INTEGERS)

    def _file(self, i: int, run: Run) -> Path:
        """The file of a run, checked; where others are text, of its identifiers as text."""
        file = self.folder / f"{i}.run"
        if not file.exists() or state_files.checksum(file) != run.crc:
            raise state_files.damaged(file)
        if run.text or not self.text:
            return file
        write_run(file.with_suffix(".text"), merge([as_text(np.fromfile(file, np.int64))])[0])
        return file.with_suffix(".text")

    def run(self, progress: StageProgress | None) -> None:
        state = self.work.get("numbered")
        if state is None:
            zeros = [0] * len(self.files)
            state = {
                "text": self.text, "share": self.memory.share, "pivots": self._pivots(), "ranges": 0,
                "size": 0, "bytes": 0, "ids": 0, "at": zeros, "offset": [*zeros], "crc": [*zeros],
            }  # fmt: skip
            self.work.keep(numbered=state)
        if state["share"] > 1.05 * self.memory.share:
            needed = (state["share"] - self.memory.share) * (self.memory.threads + 2) + self.memory.total
            raise InputError(
                f"the interrupted work in {self.work.folder} was planned for more than {format_bytes(self.memory.total)}. "
                f"Give {format_bytes(needed)}, or start afresh with again=True (--again)."
            )
        self._resume(state)
        pivots = [*map(self._pivot, state["pivots"]), None]
        noted = time.monotonic()
        for done in range(state["ranges"], len(pivots)):
            self._merge(pivots[done], state)
            state["ranges"] = done + 1
            if progress is not None:
                progress("numbering identifiers", done + 1, len(pivots))
            if time.monotonic() - noted > _OFTEN:
                self.work.keep(numbered=state)
                noted = time.monotonic()
        if not self.text:
            state_files.write_header(self.out, np.dtype(np.int64), (state["size"],), keep=True)
        self.work.keep(numbered={**state, "finished": True})

    def _merge(self, pivot: Any, state: dict[str, Any]) -> None:
        """Number the identifiers up to a pivot."""
        parts = [self._take(i, pivot, state) for i in range(len(self.files))]
        distinct, places = merge(parts)
        for i, numbers in enumerate(places):
            if len(numbers):
                numbers += state["size"]
                state["crc"][i] = state_files.append(self._numbers(i), numbers, state["crc"][i])
        data = np.frombuffer(encoded(distinct), np.uint8) if self.text else distinct
        if len(data):
            state["ids"] = state_files.append(self.out, data, state["ids"])
        state |= {"size": state["size"] + len(distinct), "bytes": state["bytes"] + data.nbytes}

    def _take(self, i: int, pivot: Any, state: dict[str, Any]) -> NDArray[Any]:
        """The identifiers of a run that come before the pivot and have not been taken."""
        start = state["at"][i]
        if start == self.sizes[i]:
            return np.empty(0, dtype=object if self.text else np.int64)
        if self.text:
            with self.files[i].open("rb") as file:
                file.seek(state["offset"][i])
                found = list(_before(file, pivot))
            state["offset"][i] += sum(map(len, found))
            part = np.array([line[:-1].decode() for line in found], dtype=object)
        else:
            run = np.memmap(self.files[i], np.int64, "r", shape=(self.sizes[i],))
            part = np.array(run[start : None if pivot is None else start + int(np.searchsorted(run[start:], pivot))])
        state["at"][i] = start + len(part)
        return part

    def _resume(self, state: dict[str, Any]) -> None:
        """The files as they were at the last note."""
        header = 0 if self.text else state_files.HEADER
        if not state["ranges"]:
            self.out.write_bytes(b"")
            if not self.text:
                state_files.write_header(self.out, np.dtype(np.int64), (0,))
        else:
            state_files.cut_back(self.out, header + state["bytes"])
            if state_files.checksum(self.out, header) != state["ids"]:
                raise state_files.damaged(self.out)
        for i, at in enumerate(state["at"]):
            state_files.cut_back(self._numbers(i), 8 * at)

    def _numbers(self, i: int) -> Path:
        return self.folder / f"{i}.numbers"

    def _pivots(self) -> list[Any]:
        """Where ranges begin but for the first, so that each takes about a share of the memory."""
        total = sum(self.sizes)
        takes = total * (_PER_TEXT if self.text else _PER_INTEGER) + (self.bytes if self.text else 0)
        parts = -(-takes // self.memory.share)
        if parts < 2:
            return []
        every = max(1, total // _SAMPLE)
        sample: list[Any] = []
        for i, file in enumerate(self.files):
            first = i * 7919 % every  # so that short runs are not all left out
            if self.text:
                with file.open("rb") as lines:
                    sample += [line[:-1][:_PIVOT] for line in islice(lines, first, None, every)]
            elif self.sizes[i]:
                sample += np.memmap(file, np.int64, "r", shape=(self.sizes[i],))[first::every].tolist()
        sample.sort()
        pivots = dict.fromkeys(sample[i * len(sample) // parts] for i in range(1, parts)) if sample else {}
        return [pivot.hex() if self.text else pivot for pivot in pivots]

    def _pivot(self, kept: Any) -> Any:
        return bytes.fromhex(kept) if self.text else kept


def _before(file: Any, pivot: bytes | None) -> Iterator[bytes]:
    for line in file:
        if pivot is not None and line[:-1] >= pivot:
            return
        yield line
