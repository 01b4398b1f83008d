"""`reproduce`: runs experiments and writes their tables and figures, each as soon as its last run is finished.

Where a dataset of an experiment is not available, a substitute is used, always named and never compared by accuracy:

arxiv       arxiv-sub, the same graph with other features: operation counts are comparable; otherwise as the next ones
products    a generated power-law graph at a fraction of its size, unless OGB's files are present (and at smoke scale)
papers100m  likewise (and at small scale)
gencat:α,σ  is generated from its name
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter

from unifews.core.checks import check_count
from unifews.datasets import registry
from unifews.datasets.dataset import About, Dataset
from unifews.datasets.folder import is_dataset, save_dataset
from unifews.datasets.gencat import gencat
from unifews.datasets.load import load_dataset
from unifews.datasets.ogb import find_ogb
from unifews.datasets.powerlaw import powerlaw
from unifews.datasets.registry import DataFolders
from unifews.errors import InputError, MissingFileError, UnifewsError, unknown_name
from unifews.experiments import definitions
from unifews.experiments.definitions import TRAIN, Experiment, Planned, Scale
from unifews.experiments.measurements import Measurement, kind_of
from unifews.experiments.results import CellResult, Comparable, ExperimentResult
from unifews.experiments.runner import Cell, Outcome, Progress, Status, run_cells, training_cells
from unifews.resources import format_bytes, installed
from unifews.training.ledger import Ledger

Written = Callable[[ExperimentResult, list[Path]], None]
"""Called when the files of an experiment are written."""


@dataclass
class _Run:
    """A planned run of an experiment, its dataset and its cell."""

    experiment: str
    planned: Planned
    found: SourceDataset | None = None
    why: str = ""
    cell: Cell | None = None

    def result(self, outcomes: Mapping[str, Outcome]) -> CellResult:
        outcome = outcomes.get(self.cell.id) if self.cell is not None else None
        why = str(outcome) if isinstance(outcome, UnifewsError) else self.why
        record = outcome if isinstance(outcome, dict) else None
        return CellResult(self.planned, record, why, *((self.found.label, self.found.comparable) if self.found else ()))


def reproduce(
    names: Sequence[str],
    scale: Scale = "smoke",
    *,
    ledger: Ledger,
    out: Path,
    datasets: Sequence[str] = (),
    jobs: int = 1,
    progress: Progress | None = None,
    wrote: Written | None = None,
) -> list[ExperimentResult]:
    """Run the experiments of these ids (default: all) at a scale and write their results to the folder `out`.

    `datasets`: run on these only. Recorded runs are not repeated, and runs that experiments share are done once. Rows of a
    dataset that is not available state the reason; if none is available, that is an error.
    """
    if scale not in definitions.SCALES:
        raise unknown_name("scale", scale, definitions.SCALES)
    jobs = check_count("jobs", jobs)
    ledger.check()
    _check_out(out)
    experiments = [definitions.find(name) for name in dict.fromkeys(names or definitions.ids())]
    runs = [_Run(each.id, planned) for each in experiments for planned in each.runs(scale)]
    if datasets:
        runs = _only(runs, datasets)
        experiments = [each for each in experiments if any(run.experiment == each.id for run in runs)]
    _find_datasets(runs, scale, ledger.path.parent / "data")
    _make_cells(runs)
    writer = _Writer(experiments, runs, scale, out, ledger, datasets, wrote)
    cells = _in_order(runs)
    known = {record["id"] for record in ledger.records()}
    outcomes: dict[str, Outcome] = {}
    for exclusive in (False, True):
        chosen = [cell for cell in cells if _is_exclusive(cell) == exclusive]
        watch = writer.watch(progress, len(outcomes), len(cells))
        later = 0.0 if exclusive else sum(cell.cost for cell in cells if _is_exclusive(cell) and cell.id not in known)
        found = run_cells(chosen, ledger, jobs=1 if exclusive else jobs, progress=watch, later=later)
        outcomes |= dict(zip((cell.id for cell in chosen), found, strict=True))
    return writer.finish(outcomes)


def _check_out(out: Path) -> None:
    """Fail early if the folder is not writable."""
    if out.exists() and not out.is_dir():
        raise InputError(f"results are written to a folder, and {out} is a file; give another name.")
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=out):
        pass


def _only(runs: Sequence[_Run], datasets: Sequence[str]) -> list[_Run]:
    """Runs on these datasets."""
    known = {run.planned.settings["dataset"] for run in runs}
    for name in datasets:
        if name not in known:
            raise unknown_name("dataset of these experiments at this scale", name, known)
    return [run for run in runs if run.planned.settings["dataset"] in datasets]


def _find_datasets(runs: Sequence[_Run], scale: Scale, folder: Path) -> None:
    known: dict[str, SourceDataset | MissingFileError] = {}
    for run in runs:
        name = run.planned.settings["dataset"]
        if name not in known:
            try:
                known[name] = find_dataset(name, scale, folder)
            except MissingFileError as error:
                known[name] = error
        found = known[name]
        run.found, run.why = (found, "") if isinstance(found, SourceDataset) else (None, str(found))
    if all(run.found is None for run in runs):
        raise MissingFileError(f"none of these experiments can be run: {runs[0].why}")


def _make_cells(runs: Sequence[_Run]) -> None:
    """The cell of every run that has a dataset, ordered by dataset: one dataset is cached at a time."""
    able = sorted(((run, run.found.source) for run in runs if run.found is not None), key=lambda pair: pair[1])
    settings = [(run, {**run.planned.settings, "dataset": source}) for run, source in able]
    trained = iter(training_cells([own for run, own in settings if run.planned.work == TRAIN]))
    for run, own in settings:
        run.cell = next(trained) if run.planned.work == TRAIN else Measurement.of(run.planned.work, own)


def _in_order(runs: Sequence[_Run]) -> list[Cell]:
    """Each cell once, by experiment and then by dataset."""
    order = {name: number for number, name in enumerate(dict.fromkeys(run.experiment for run in runs))}
    able = [(order[run.experiment], run.found.source, run.cell) for run in runs if run.found and run.cell]
    return list({cell.id: cell for _, _, cell in sorted(able, key=lambda item: item[:2])}.values())


def _is_exclusive(cell: Cell) -> bool:
    return isinstance(cell, Measurement) and kind_of(cell.name).exclusive


@dataclass
class _Writer:
    """Writes the files of an experiment once all its runs are in the ledger."""

    experiments: Sequence[Experiment]
    runs: Sequence[_Run]
    scale: Scale
    out: Path
    ledger: Ledger
    datasets: Sequence[str]
    wrote: Written | None
    results: dict[str, ExperimentResult] = field(default_factory=dict)
    _done = -1
    _read_at = -math.inf
    _read_seconds = 0.0

    def watch(self, progress: Progress | None, before: int, of: int) -> Progress:
        """`progress` with the runs of earlier calls added."""

        def update(status: Status) -> None:
            # Reading a long ledger takes a while: at most a twentieth of the time is spent on it.
            if status.done != self._done and perf_counter() - self._read_at > 20 * self._read_seconds:
                self._done = status.done
                self._write_complete()
            if progress is not None:
                progress(replace(status, done=status.done + before, of=of))

        return update

    def _write_complete(self) -> None:
        began = perf_counter()
        records: dict[str, Outcome] = {record["id"]: record for record in self.ledger.records()}
        self._read_at = perf_counter()
        self._read_seconds = self._read_at - began
        for experiment in self.experiments:
            ids = {run.cell.id for run in self._runs_of(experiment) if run.cell is not None}
            if experiment.id not in self.results and ids <= records.keys():
                self._write(experiment, records)

    def finish(self, outcomes: Mapping[str, Outcome]) -> list[ExperimentResult]:
        """All results; those that are not written yet are."""
        for experiment in self.experiments:
            if experiment.id not in self.results:
                self._write(experiment, outcomes)
        return [self.results[experiment.id] for experiment in self.experiments]

    def _runs_of(self, experiment: Experiment) -> list[_Run]:
        return [run for run in self.runs if run.experiment == experiment.id]

    def _write(self, experiment: Experiment, outcomes: Mapping[str, Outcome]) -> None:
        own = self._runs_of(experiment)
        results = [run.result(outcomes) for run in own]
        remarks = [run.found.note for run in own if run.found is not None and run.found.note]
        remarks += [f"not run: {result.why}" for result in results if result.why]
        result = ExperimentResult(experiment, self.scale, results, list(dict.fromkeys(remarks)), self.datasets)
        self.results[experiment.id] = result
        files = result.write(self.out)
        if self.wrote is not None:
            self.wrote(result, files)


# ------------------------------------------------------------------------------------------------------------------- datasets

_FRACTIONS: dict[str, dict[Scale, float]] = {
    "arxiv": {"smoke": 1 / 10, "small": 1.0, "paper": 1.0},
    "products": {"smoke": 1 / 400, "small": 1 / 20, "paper": 1.0},
    "papers100m": {"smoke": 1 / 10_000, "small": 1 / 400},
}
"""Of the actual numbers of nodes and edges; where a scale is missing, a substitute would not fit into memory."""

_MATRICES = 4  # features, two hops and their sum are in memory at the same time
_LARGE: dict[str, tuple[Scale, ...]] = {"products": ("small", "paper"), "papers100m": ("paper",)}
"""Never downloaded automatically, and used at these scales only, where OGB's files are present."""


@dataclass(frozen=True)
class SourceDataset:
    """A dataset of an experiment, or its substitute."""

    source: str
    """Argument of `load_dataset`."""
    label: str
    comparable: Comparable
    note: str = ""


def find_dataset(name: str, scale: Scale, folder: Path) -> SourceDataset:
    """The dataset of this name; generated ones are saved in `folder`. Raises `MissingFileError` where there is none."""
    if name.startswith("gencat:"):
        return _gencat(name, folder)
    record = registry.record_of(name)
    if record.name == "arxiv" and not _is_present("arxiv") and _is_present("arxiv-sub"):
        note = "arxiv-sub replaces arxiv: the same graph, labels and split with substitute features"
        return SourceDataset("arxiv-sub", "arxiv-sub", "cost", note)
    if record.name in _LARGE and not (scale in _LARGE[record.name] and _is_present(record.name)):
        return _generated(record, scale, folder)
    if record.name in _LARGE:
        _check_memory(record)
    try:
        load_dataset(record.name)
    except MissingFileError:
        if record.name not in _FRACTIONS:
            raise
        return _generated(record, scale, folder)
    return SourceDataset(record.name, record.name, "all")


def _is_present(name: str) -> bool:
    """Whether its files are on this machine."""
    record, folders = registry.RECORDS[name], DataFolders.of().folders
    if any((folder / f"{name}.npz").is_file() or is_dataset(folder / name) for folder in folders):
        return True
    return record.ogb is not None and find_ogb(record.ogb, folders) is not None


def _check_memory(record: registry.Record) -> None:
    """Fail early if the dataset does not fit into memory."""
    needed = 4 * (_MATRICES * record.nodes * record.features + record.edges)
    if needed > installed():
        raise MissingFileError(
            f"{record.name} takes about {format_bytes(needed)} of memory in an experiment, and this machine has "
            f"{format_bytes(installed())}; propagate it out of core with `unifews propagate --memory`, and train on the "
            "result with `unifews train --embedding`."
        )


def _generated(record: registry.Record, scale: Scale, folder: Path) -> SourceDataset:
    fraction = _FRACTIONS[record.name].get(scale)
    if fraction is None:
        raise MissingFileError(
            f"{record.name} is not on this machine, and a generated graph of its size does not fit into memory; put OGB's "
            f"files into the folder UNIFEWS_DATA, or use --scale small."
        )
    nodes, edges = round(fraction * record.nodes), round(fraction * record.edges)
    title = f"generated: {nodes:,} nodes, {edges:,} edges"
    name = f"{record.name}-generated-{nodes}"

    def make() -> Dataset:
        made = powerlaw(nodes, edges, num_features=record.features, num_classes=record.classes)
        about = About(f"powerlaw({nodes}, {edges}), in place of {record.name}", notes=(title,))
        return Dataset(name, made.graph, made.x, made.y, (), about)

    note = f"a generated power-law graph, {fraction:.3%} of its size, replaces {record.name}"
    note += " at this scale" if _is_present(record.name) else ", whose files are not here"
    return SourceDataset(_saved(folder / name, make), f"{record.name} ({title})", "none", note)


def _gencat(name: str, folder: Path) -> SourceDataset:
    try:
        alpha, sigma = (float(value) for value in name.removeprefix("gencat:").split(","))
    except ValueError as error:
        raise InputError(f"a GenCAT graph is named by α and σ, gencat:2.1,0.1; got {name!r}.") from error
    path = folder / f"gencat-{alpha:g}-{sigma:g}"
    return SourceDataset(_saved(path, lambda: gencat(alpha=alpha, sigma=sigma)), f"GenCAT({alpha:g}, {sigma:g})", "all")


def _saved(path: Path, make: Callable[[], Dataset]) -> str:
    """A generated dataset as a folder, created once: worker processes open it by its path."""
    if not is_dataset(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_dataset(make(), path)
    return str(path)
