"""Runs of `unifews train`: taken from the ledger if it has them, else trained and stored there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from unifews.cli import console
from unifews.cli.errors import resumable_runs

if TYPE_CHECKING:
    from unifews.resources import Progress
    from unifews.training.api import Watch
    from unifews.training.data_parallel import HeadTrainer
    from unifews.training.job import TrainingJob
    from unifews.training.ledger import Ledger
    from unifews.training.loop import Epoch
    from unifews.training.result import TrainResult


class RunCache:
    """Trains runs and stores their records in a folder, with a run file of the settings for each."""

    def __init__(
        self,
        source: str,
        path: Path,
        store: bool,
        restart: bool,
        log: str | None,
        embedding: Path | None,
        trainer: HeadTrainer | None,
    ) -> None:
        """`source`: the name or path the dataset was loaded from; `path`: the folder, or a .jsonl file in it; `embedding`:
        what replaced the features."""
        from unifews.training.ledger import Ledger

        path = path if path.suffix == ".jsonl" else path / "ledger.jsonl"
        self.source, self.folder, self.restart, self.log = source, path.parent, restart, log
        self.embedding, self.trainer = embedding, trainer
        self.is_first = trainer is None or trainer.is_first
        self.ledger: Ledger | None = Ledger(path) if store else None
        if self.ledger and self.is_first:
            console.report_skipped(self.ledger)
        self.files: list[Path] = []
        """Run files that were written."""
        self.trained: TrainResult | None = None
        """The last run that was trained here, with its model."""

    def record(self, job: TrainingJob, *, model: bool = False) -> console.Json:
        """The record of a run, from the ledger or from training. `model`: train it in any case, for its model."""
        spec, name, ledger = job.spec, f"the {_kind(job)} run {job.id}", self.ledger
        if ledger:
            found = None if self.restart else ledger.find(job.id)
            if self.embedding is None:  # a run file does not name an embedding
                self._write_settings(job)
            if found is not None and not model:
                self._note(f"{name} of {found['finished']} is in {ledger.path}; --restart repeats it.")
                return found
            if found is not None:
                self._note(f"{name} is in {ledger.path}, which stores no models; training again for --save.")
                ledger = None
        restart = self.restart or model  # the model of the best seed is needed, whichever seed that is
        if ledger and not restart and (known := job.known_seeds(ledger)):
            have = f"{len(known)} of the {spec.seeds} seeds" if spec.seeds > 1 else "the seed"
            self._note(f"{ledger.path} has {have} of {name} from another run; --restart trains all.")
        with resumable_runs(self.folder) if self.ledger else nullcontext(), self._progress(job) as (progress, watch):
            return job.record(
                ledger,
                restart=restart,
                progress=progress,
                watch=watch if self.is_first else None,
                workers=self.trainer,
                waiting=lambda: self._note(f"{name} is being trained by another process; waiting for its record."),
                trained=self._remember,
            )

    @contextmanager
    def _progress(self, job: TrainingJob) -> Iterator[tuple[Progress | None, Watch]]:
        """The progress bar, and the log of learning curves if it is wanted."""
        spec, first = job.spec, "starting" if job.spec.is_layered else "propagating"
        with ExitStack() as stack:
            progress, watch = stack.enter_context(console.training_progress(_kind(job), spec.seed, spec.seeds, first))
            if self.log and self.is_first:
                from unifews.training.loop import TensorBoard

                board = stack.enter_context(TensorBoard(self.folder / "tensorboard" / job.id, spec.seed))
                watch = _both(watch, board)
            yield progress, watch

    def _remember(self, run: TrainResult) -> None:
        self.trained = run

    def _note(self, message: str) -> None:
        if self.is_first:
            console.note(message)

    def _write_settings(self, job: TrainingJob) -> None:
        """Write the run file, before training: whatever interrupts the run, its settings are known."""
        from unifews.datasets.registry import find
        from unifews.storage.atomic import atomic_file
        from unifews.training.run_files import write_toml

        # An absolute path finds the dataset from any folder.
        dataset = self.source if find(self.source) else str(Path(self.source).expanduser().resolve())
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{job.id}.toml"
        with atomic_file(path, overwrite=True) as file:
            file.write(write_toml(replace(job.spec, dataset=dataset)).encode())
        self.files.append(path)


def _kind(job: TrainingJob) -> str:
    return "sparsified" if job.spec.prunes else "unpruned"


def _both(one: Watch, other: Watch) -> Watch:
    def watch(number: int, epoch: Epoch) -> None:
        one(number, epoch)
        other(number, epoch)

    return watch
