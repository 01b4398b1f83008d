"""`reproduce`: carry out the runs of experiments and write their tables and figures, each as soon as its last run is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any

from unifews.errors import InputError, MissingFileError, UnifewsError, unknown_name
from unifews.experiments import definitions, sources
from unifews.experiments.cell import trainings
from unifews.experiments.definitions import TRAIN, Experiment, Planned, Scale
from unifews.experiments.grid import Cell, Progress, Status, run_cells
from unifews.experiments.measure import Measurement, kind_of
from unifews.experiments.outcome import Done, Outcome
from unifews.experiments.sources import Found
from unifews.training.checks import whole
from unifews.training.ledger import Ledger

Wrote = Callable[[Outcome, list[Path]], None]


@dataclass
class _Entry:
    """A run of an experiment on its way."""

    experiment: str
    planned: Planned
    found: Found | None = None
    why: str = ""
    cell: Cell | None = None

    def done(self, records: dict[str, Any]) -> Done:
        outcome = records.get(self.cell.id) if self.cell is not None else None
        why = str(outcome) if isinstance(outcome, UnifewsError) else self.why
        record = outcome if isinstance(outcome, dict) else None
        return Done(self.planned, record, why, *((self.found.label, self.found.comparable) if self.found else ()))


def reproduce(
    names: Sequence[str],
    scale: Scale = "smoke",
    *,
    ledger: Ledger,
    out: Path,
    datasets: Sequence[str] = (),
    jobs: int = 1,
    progress: Progress | None = None,
    wrote: Wrote | None = None,
) -> list[Outcome]:
    """The experiments of these ids (all of them where none is named) at a scale; what came of each, written to `out`.

    `datasets`: only runs on these. Runs that the ledger holds are not repeated, and those that several experiments share are
    done once. `wrote` is told when files of an experiment are written. Where a dataset cannot be had, its rows say so; if none
    can, that is an error.
    """
    if scale not in definitions.SCALES:
        raise unknown_name("scale", scale, definitions.SCALES)
    jobs = whole("jobs", jobs, 1)
    ledger.check()
    _check_out(out)
    experiments = [definitions.find(name) for name in dict.fromkeys(names or definitions.ids())]
    entries = [_Entry(each.id, planned) for each in experiments for planned in each.runs(scale)]
    if datasets:
        entries = _only(entries, datasets)
        experiments = [each for each in experiments if any(entry.experiment == each.id for entry in entries)]
    _find_data(entries, scale, ledger.path.parent / "data")
    _check_some(entries)
    _make_cells(entries)
    writer = _Writer(experiments, entries, scale, out, ledger, datasets, wrote)
    cells = _in_order(entries)
    known = {record["id"] for record in ledger.records()}
    records: dict[str, Any] = {}
    for alone in (False, True):
        turn = [cell for cell in cells if _alone(cell) == alone]
        watch = writer.watch(progress, len(records), len(cells))
        later = 0.0 if alone else sum(cell.cost for cell in cells if _alone(cell) and cell.id not in known)
        found = run_cells(turn, ledger, jobs=1 if alone else jobs, progress=watch, later=later)
        records |= dict(zip((cell.id for cell in turn), found, strict=True))
    return writer.finish(records)


def _only(entries: Sequence[_Entry], datasets: Sequence[str]) -> list[_Entry]:
    """Runs on these datasets."""
    known = {entry.planned.settings["dataset"] for entry in entries}
    for name in datasets:
        if name not in known:
            raise unknown_name("dataset of these experiments at this scale", name, known)
    return [entry for entry in entries if entry.planned.settings["dataset"] in datasets]


def _check_out(out: Path) -> None:
    """A folder that takes no files should come to light before hours of runs."""
    if out.exists() and not out.is_dir():
        raise InputError(f"tables go to a folder, and {out} is a file; give another name.")
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=out):
        pass


def _find_data(entries: Sequence[_Entry], scale: Scale, folder: Path) -> None:
    known: dict[str, Found | MissingFileError] = {}
    for entry in entries:
        name = entry.planned.settings["dataset"]
        if name not in known:
            try:
                known[name] = sources.find(name, scale, folder)
            except MissingFileError as error:
                known[name] = error
        found = known[name]
        entry.found, entry.why = (found, "") if isinstance(found, Found) else (None, str(found))


def _check_some(entries: Sequence[_Entry]) -> None:
    if all(entry.found is None for entry in entries):
        raise MissingFileError(f"none of these experiments can be run: {entries[0].why}")


def _make_cells(entries: Sequence[_Entry]) -> None:
    """Every run that can be, checked, those of one dataset after another: a process has one of them at hand."""
    able = [(entry, entry.found.source) for entry in entries if entry.found is not None]
    able.sort(key=lambda pair: pair[1])
    settings = [{**entry.planned.settings, "dataset": source} for entry, source in able]
    trained = iter(trainings([own for own, (entry, _) in zip(settings, able, strict=True) if entry.planned.work == TRAIN]))
    for own, (entry, _) in zip(settings, able, strict=True):
        entry.cell = next(trained) if entry.planned.work == TRAIN else Measurement.of(entry.planned.work, own)


def _in_order(entries: Sequence[_Entry]) -> list[Cell]:
    """Each cell once, experiment after experiment, in each of them dataset after dataset."""
    order = {name: number for number, name in enumerate(dict.fromkeys(entry.experiment for entry in entries))}
    able = [(order[entry.experiment], entry.found.source, entry.cell) for entry in entries if entry.found and entry.cell]
    return list({cell.id: cell for _, _, cell in sorted(able, key=lambda item: item[:2])}.values())


def _alone(cell: Cell) -> bool:
    return isinstance(cell, Measurement) and kind_of(cell.name).alone


class _Writer:
    """Writes the files of an experiment once all of its runs are in the ledger."""

    def __init__(
        self, experiments: Sequence[Experiment], entries: Sequence[_Entry], scale: Scale, out: Path, ledger: Ledger,
        datasets: Sequence[str], wrote: Wrote | None,
    ) -> None:  # fmt: skip
        self.experiments, self.entries, self.scale, self.out, self.ledger = experiments, entries, scale, out, ledger
        self.datasets, self.wrote = datasets, wrote
        self.outcomes: dict[str, Outcome] = {}
        self.seen, self.looked, self.took = -1, -math.inf, 0.0

    def watch(self, progress: Progress | None, before: int, of: int) -> Progress:
        """`progress`, with what was done by earlier calls counted in."""

        def told(status: Status) -> None:
            # Reading a long ledger takes a while: a twentieth of the time at most goes into it.
            if status.done != self.seen and perf_counter() - self.looked > 20 * self.took:
                self.seen = status.done
                self._look()
            if progress is not None:
                progress(replace(status, done=status.done + before, of=of))

        return told

    def _look(self) -> None:
        began = perf_counter()
        records = {record["id"]: record for record in self.ledger.records()}
        self.looked = perf_counter()
        self.took = self.looked - began
        for experiment in self.experiments:
            ids = {entry.cell.id for entry in self._own(experiment) if entry.cell is not None}
            if experiment.id not in self.outcomes and ids <= records.keys():
                self._write(experiment, records)

    def finish(self, records: dict[str, Any]) -> list[Outcome]:
        for experiment in self.experiments:
            if experiment.id not in self.outcomes:
                self._write(experiment, records)
        return [self.outcomes[experiment.id] for experiment in self.experiments]

    def _own(self, experiment: Experiment) -> list[_Entry]:
        return [entry for entry in self.entries if entry.experiment == experiment.id]

    def _write(self, experiment: Experiment, records: dict[str, Any]) -> None:
        own = self._own(experiment)
        runs = [entry.done(records) for entry in own]
        remarks = [entry.found.note for entry in own if entry.found is not None and entry.found.note]
        remarks += [f"not run: {run.why}" for run in runs if run.why]
        outcome = Outcome(experiment, self.scale, runs, list(dict.fromkeys(remarks)), self.datasets)
        self.outcomes[experiment.id] = outcome
        files = outcome.write(self.out)
        if self.wrote is not None:
            self.wrote(outcome, files)
