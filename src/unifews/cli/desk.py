"""Where runs are carried out and kept: what the ledger has is taken from it, the rest is trained."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unifews.cli import live, output
from unifews.cli.run import Interrupted

if TYPE_CHECKING:
    from unifews.datasets.dataset import Dataset
    from unifews.training.api import Watch
    from unifews.training.data_parallel import HeadTrainer
    from unifews.training.job import TrainingJob
    from unifews.training.ledger import Ledger
    from unifews.training.loop import Epoch
    from unifews.training.result import TrainResult
    from unifews.training.spec import TrainSpec


_MANY = 8  # lines that are named one by one


class Desk:
    """Trains on one dataset and keeps the records in a folder, with a run file beside them for each."""

    def __init__(
        self,
        data: Dataset,
        where: str,
        runs: Path,
        keep: bool,
        again: bool,
        log: str | None,
        embedding: Path | None = None,
        hands: HeadTrainer | None = None,
    ) -> None:
        """`runs`: the folder, or a .jsonl file in it; `where`: what the dataset was loaded by, a name or a path; `embedding`:
        what took the place of its features."""
        from unifews.training.ledger import Ledger

        path = runs if runs.suffix == ".jsonl" else runs / "ledger.jsonl"
        self.data, self.where, self.runs, self.again, self.log = data, where, path.parent, again, log
        self.embedding, self.hands = embedding, hands
        self.speaks = hands is None or hands.is_first
        self.book: Ledger | None = Ledger(path) if keep else None
        if self.book and self.speaks:
            report_skipped(self.book)
        self.files: list[Path] = []
        self.trained: TrainResult | None = None
        """The last run that was trained here, with its model."""

    def run(self, job: TrainingJob, *, model: bool = False) -> dict[str, Any]:
        """The record of a run: from the ledger if it is there, else from training. `model`: for its model, always trained."""
        spec, name, what, book = job.spec, job.id, "sparsified" if job.spec.prunes else "unpruned", self.book
        if book:
            found = None if self.again else book.find(name)
            if self.embedding is None:  # a run file would not lead to it
                self._keep(spec, name)
            if found is not None and not model:
                self._note(f"the {what} run {name} of {found['finished']} is in {book.path}; --again repeats it.")
                return found
            if found is not None:
                self._note(f"the {what} run {name} is in {book.path}, which holds no models; it is trained again for --save.")
                book = None
        again = self.again or model  # the best seed's model may be that of any seed
        if book and not again and (known := job.known_seeds(book)):
            have = f"{len(known)} of the {spec.seeds} seeds" if spec.seeds > 1 else "the seed"
            self._note(f"{book.path} has {have} of the {what} run {name} from another run; --again trains all.")
        try:
            with ExitStack() as stack:
                first = "starting" if spec.is_layered else "propagating"
                progress, watch = stack.enter_context(live.training(what, spec.seed, spec.seeds, first))
                if self.log and self.speaks:
                    from unifews.training.loop import TensorBoard

                    board = stack.enter_context(TensorBoard(self.runs / "tensorboard" / name, spec.seed))
                    watch = _both(watch, board)
                watch = watch if self.speaks else None
                busy = f"the {what} run {name} is being trained by another process; waiting for its record."
                return job.record(
                    book,
                    again=again,
                    progress=progress,
                    watch=watch,
                    workers=self.hands,
                    waiting=lambda: self._note(busy),
                    trained=self._remember,
                )
        except KeyboardInterrupt as error:
            if self.book is None:
                raise
            raise Interrupted(
                f"interrupted; what was finished is in {self.runs}, and the same command goes on from there."
            ) from error

    def _remember(self, run: TrainResult) -> None:
        self.trained = run

    def _note(self, sentence: str) -> None:
        if self.speaks:
            output.note(sentence)

    def _keep(self, spec: TrainSpec, name: str) -> None:
        """The settings as a run file, written first: whatever stops the run, what it was is known."""
        from unifews.datasets.registry import find
        from unifews.storage.atomic import atomic_file
        from unifews.training.spec import write_toml

        # A path should lead to the dataset from any folder.
        dataset = self.where if find(self.where) else str(Path(self.where).expanduser().resolve())
        self.runs.mkdir(parents=True, exist_ok=True)
        path = self.runs / f"{name}.toml"
        with atomic_file(path, overwrite=True) as file:
            file.write(write_toml(replace(spec, dataset=dataset)).encode())
        self.files.append(path)


def report_skipped(book: Ledger) -> None:
    """Report which lines of a ledger are skipped: a run that was kept should not be forgotten without a word."""
    skipped = book.skipped()
    for number, why in skipped[:_MANY]:
        output.note(f"line {number} of {book.path} {why}, so the run in it is not known any more; delete the line.")
    if len(skipped) > _MANY:
        output.note(f"{len(skipped) - _MANY:,} more lines of {book.path} are skipped.")


def _both(one: Watch | None, other: Watch) -> Watch:
    if one is None:
        return other

    def watch(number: int, epoch: Epoch) -> None:
        one(number, epoch)
        other(number, epoch)

    return watch
