"""Runs of `unifews train`: taken from the ledger if it has them, else trained and stored there."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from unifews.cli import console
from unifews.cli.errors import resumable_runs

if TYPE_CHECKING:
    from unifews.datasets.dataset import Dataset
    from unifews.training.api import Watch
    from unifews.training.hands import Hands
    from unifews.training.ledger import Ledger
    from unifews.training.loop import Epoch
    from unifews.training.result import Run
    from unifews.training.spec import TrainSpec


class RunCache:
    """Trains on one dataset and stores the records in a folder, with a run file of the settings for each."""

    def __init__(
        self,
        data: Dataset,
        source: str,
        folder: Path,
        store: bool,
        restart: bool,
        log: str | None,
        embedding: Path | None = None,
        hands: Hands | None = None,
    ) -> None:
        """`folder`: or a .jsonl file in it; `source`: the name or path the dataset was loaded from; `embedding`: what
        replaced its features."""
        from unifews.training.ledger import Ledger

        path = folder if folder.suffix == ".jsonl" else folder / "ledger.jsonl"
        self.data, self.source, self.folder, self.restart, self.log = data, source, path.parent, restart, log
        self.embedding, self.hands = embedding, hands
        self.is_first = hands is None or hands.is_first
        self.ledger: Ledger | None = Ledger(path) if store else None
        if self.ledger and self.is_first:
            console.report_skipped(self.ledger)
        self.files: list[Path] = []
        """Run files that were written."""
        self.trained: Run | None = None
        """The last run that was trained here, with its model."""

    def run(self, spec: TrainSpec, *, model: bool = False) -> console.Json:
        """The record of a run, from the ledger or from training. `model`: train it in any case, for its model."""
        from unifews.training.api import splits_of

        splits_of(self.data, spec)
        what, name = "sparsified" if spec.prunes else "unpruned", spec.id(self.data)
        ledger = self.ledger
        if ledger:
            found = None if self.restart else ledger.find(name)
            if self.embedding is None:  # a run file does not name an embedding
                self._write_settings(spec, name)
            if found is not None and not model:
                self._note(f"the {what} run {name} of {found['finished']} is in {ledger.path}; --restart repeats it.")
                return found
            if found is not None:
                self._note(f"the {what} run {name} is in {ledger.path}, which stores no models; training again for --save.")
                ledger = None
        restart = self.restart or model  # the model of the best seed is needed, whichever seed that is

        def make() -> console.Json:
            if ledger and restart:
                ledger.drop_partial(name)
            return self._train(spec, name, what, ledger, restart)

        if ledger is None or self.hands is not None:  # workers train together: none may wait for another process
            return make()
        busy = f"the {what} run {name} is being trained by another process; waiting for its record."
        return ledger.once(name, make, again=restart, waiting=lambda: self._note(busy))

    def _train(self, spec: TrainSpec, name: str, what: str, ledger: Ledger | None, restart: bool) -> console.Json:
        from unifews.training.api import known_seeds, train
        from unifews.training.warm import warm_up, warm_up_layers

        known = []
        if ledger and not restart:
            known = known_seeds(ledger, spec, self.data)
            if known:
                have = f"{len(known)} of the {spec.seeds} seeds" if spec.seeds > 1 else "the seed"
                self._note(f"{ledger.path} has {have} of the {what} run {name} from another run; --restart trains all.")
        warm_up()
        if spec.is_layered:
            warm_up_layers()
        settings = spec.to_dict()
        settings.pop("dataset")
        with ExitStack() as stack:
            stack.enter_context(resumable_runs(self.folder) if self.ledger else nullcontext())
            first = "starting" if spec.is_layered else "propagating"
            progress, watch = stack.enter_context(console.training_progress(what, spec.seed, spec.seeds, first))
            if self.log and self.is_first:
                from unifews.training.log import TensorBoard

                board = stack.enter_context(TensorBoard(self.folder / "tensorboard" / name, spec.seed))
                watch = _both(watch, board)
            watch = watch if self.is_first else None
            self.trained = train(
                self.data, **settings, ledger=ledger, progress=progress, watch=watch, hands=self.hands, known=known
            )
            return self.trained.to_dict()

    def _note(self, message: str) -> None:
        if self.is_first:
            console.note(message)

    def _write_settings(self, spec: TrainSpec, name: str) -> None:
        """Write the run file, before training: whatever interrupts the run, its settings are known."""
        from unifews.datasets.registry import find
        from unifews.storage.atomic import atomic_file
        from unifews.training.spec import write_toml

        # An absolute path finds the dataset from any folder.
        dataset = self.source if find(self.source) else str(Path(self.source).expanduser().resolve())
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.toml"
        with atomic_file(path, overwrite=True) as file:
            file.write(write_toml(replace(spec, dataset=dataset)).encode())
        self.files.append(path)


def _both(one: Watch | None, other: Watch) -> Watch:
    if one is None:
        return other

    def watch(number: int, epoch: Epoch) -> None:
        one(number, epoch)
        other(number, epoch)

    return watch
