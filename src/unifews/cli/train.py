"""`unifews train`: train a pruned model and compare its accuracy, operations and time with the unpruned one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unifews.cli import console
from unifews.cli.errors import configure_process
from unifews.cli.options import INPUT, TRAINING, AsJson, Ledger, PaperForm, Restart, configured, flag
from unifews.cli.run_cache import RunCache
from unifews.errors import FileFormatError, InputError, unknown_name

if TYPE_CHECKING:
    from unifews.core.config import Option
    from unifews.datasets.dataset import Dataset
    from unifews.training.job import TrainingJob
    from unifews.training.spec import TrainSpec

SEEDS = 5  # one seed has no spread
_SPACE = 1 << 20  # bytes that a ledger, its partial results and run files need at most

_COMMON = (
    *("model", "method", "edge_sparsity", "max_error", "weight_sparsity"),
    *("seeds", "split", "hops", "width", "epochs"),
)


def train_options() -> Iterator[Option]:
    """The settings of a training run. Defaults that depend on the model are not shown."""
    from unifews.core.config import options_of
    from unifews.training.spec import DecoupledSpec, LayeredSpec

    decoupled, layered = ({option.name: option for option in options_of(kind)} for kind in (DecoupledSpec, LayeredSpec))
    for name, option in (decoupled | layered).items():
        differs = name in decoupled and name in layered and decoupled[name].default != layered[name].default
        if name == "seeds":
            yield replace(option, default=SEEDS)
        elif name != "dataset":
            yield replace(option, default=None) if differs or option.part else option


def _options() -> Iterator[Option]:
    configure_process()
    return train_options()


@configured(_options, common=_COMMON)
def train(
    dataset: Annotated[
        str | None,
        typer.Argument(metavar="DATASET", help="Name (see unifews data list), folder or .npz file."),
    ] = None,
    run_file: Annotated[
        Path | None,
        flag(
            "--run-file", "-f", panel=INPUT, metavar="RUN.toml", help="Settings from a file; flags take precedence.", rare=True
        ),
    ] = None,
    embedding: Annotated[
        Path | None,
        flag("--embedding", panel=INPUT, metavar="P.npy", help="Train on the result of unifews propagate.", rare=True),
    ] = None,
    paper_form: PaperForm = False,
    baseline: Annotated[
        bool, flag("--baseline/--no-baseline", panel=TRAINING, help="Also train the unpruned model.", rare=True)
    ] = True,
    ledger: Ledger = Path("runs"),
    no_ledger: Annotated[bool, flag("--no-ledger", help="Do not store the runs.", rare=True)] = False,
    restart: Restart = False,
    save: Annotated[
        Path | None, flag("--save", metavar="DIR", help="Write the compressed model of the best seed, for unifews infer.")
    ] = None,
    log: Annotated[
        str | None, flag("--log", metavar="tensorboard", help="Write learning curves to DIR/tensorboard.", rare=True)
    ] = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Train a pruned model and the unpruned one; report accuracy, operations and time.

    Finished runs and seeds are stored in the ledger; after an interruption the same command resumes.
    """
    store = not no_ledger
    with console.workers() as workers:
        with workers.agreed():
            _check_log(log)
            if workers.group is not None or embedding is not None:
                _check_embedding(embedding, given, save)
            settings = _settings(dataset, run_file, given, paper_form)
            if save is not None:
                _check_save(save, _spec(settings))
            if store or log is not None:
                _check_ledger(ledger)
            source: str = settings["dataset"]
            job = _prepare(settings, embedding)
        trainer = None
        if workers.group is not None:
            from unifews.training.distributed import head_trainer

            trainer = head_trainer(workers.group, job)
        cache = RunCache(source, ledger, store, restart, log, embedding, trainer)
        records = [cache.record(job.with_spec(job.spec.unpruned()))] if baseline and job.spec.prunes else []
        records.append(cache.record(job, model=save is not None))
        if workers.is_first:
            _report(job.data, records, cache, None if save is None else _save(cache, job.data, save), as_json)


# ------------------------------------------------------------------------------------------------------------- settings


def _settings(dataset: str | None, run_file: Path | None, given: console.Json, as_paper: bool) -> console.Json:
    """The settings of the run file, replaced by those of the command line; checked before anything is loaded."""
    from unifews.core.config import check_needs
    from unifews.propagation.config import BY_ERROR
    from unifews.training.run_files import read_toml

    if dataset is not None and dataset.endswith(".toml"):
        raise InputError(f"{dataset} is a run file; give it with --run-file {dataset}.")
    try:
        file = read_toml(run_file) if run_file is not None else {}
    except InputError as error:  # about keys of the file, not about flags
        raise FileFormatError(str(error)) from error
    settings: console.Json = {"seeds": SEEDS, **file}
    for group in (("edge_sparsity", "edge_threshold", "max_error"), ("weight_sparsity", "weight_threshold")):
        if given.keys() & set(group):  # one of them replaces all of the file
            replaced = {*group, *(BY_ERROR if "max_error" in group and "max_error" not in given else ())}
            settings = {name: value for name, value in settings.items() if name not in replaced}
    settings |= given | (_paper_form(file | given, given) if as_paper else {})
    if dataset is not None:
        settings["dataset"] = dataset
    if "dataset" not in settings:
        raise InputError(
            'no dataset is given; write unifews train cora, or add a line such as dataset = "cora" to the run file.'
        )
    spec = _spec(settings)
    if as_paper and not spec.prunes_edges:
        raise InputError("--paper-form prunes nothing by itself; add --edge-sparsity or --edge-threshold.")
    check_needs(spec, given=given)
    return settings


def _paper_form(settings: console.Json, given: console.Json) -> console.Json:
    """What --paper-form stands for."""
    from unifews.training.spec import TrainSpec, paper_form

    model, method = (settings.get(name, getattr(TrainSpec, name)) for name in ("model", "method"))
    if model == "mlp":
        raise InputError("--paper-form prunes a propagation, and an MLP has none; leave it out.")
    if method != TrainSpec.method:
        raise InputError(f"--paper-form is a setting of --method unifews; leave it out with --method {method}.")
    if settings.get("max_error") is not None:
        raise InputError("--paper-form removes edges, and --max-error none; give --edge-sparsity instead.")
    for name, value in paper_form(model).items():
        if given.get(name, value) != value:
            raise InputError(f"--paper-form sets {name}={value}, but {name}={given[name]} is given; leave out one of them.")
    return paper_form(model)


def _spec(settings: console.Json) -> TrainSpec:
    from unifews.training.spec import TrainSpec

    return TrainSpec.of(settings)


def _check_embedding(embedding: Path | None, given: console.Json, save: Path | None) -> None:
    """Workers train a classifier on an embedding, without a graph, and nothing else."""
    if embedding is None:
        raise InputError(
            "several workers train a classifier on an embedding; compute it with torchrun -m unifews propagate, and add "
            "--embedding P.npy."
        )
    if given.setdefault("model", "mlp") != "mlp":
        raise InputError(f"--embedding is propagated already; leave out --model {given['model']}, or --embedding.")
    for name in ("edge_sparsity", "edge_threshold", "max_error"):
        if name in given:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"--embedding is propagated already; leave out {option}, and give it to unifews propagate.")
    if save is not None:
        raise InputError("--save writes models that propagate; leave it out with --embedding.")


def _check_log(log: str | None) -> None:
    if log is None:
        return
    if log != "tensorboard":
        raise unknown_name("log", log, ("tensorboard",))
    from unifews.training.loop import writer

    writer()


def _check_ledger(ledger: Path) -> None:
    """Fail early if the ledger cannot be written."""
    folder = ledger.resolve().parent if ledger.suffix == ".jsonl" else ledger.resolve()
    while not folder.exists():
        folder = folder.parent
    problem = ""
    if not folder.is_dir():
        problem = f"{folder} is not a folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = f"{folder} is write-protected"
    elif (free := shutil.disk_usage(folder).free) < _SPACE:
        problem = f"only {free:,} bytes are free on its disk"
    if problem:
        raise InputError(f"cannot store runs in {ledger}: {problem}. Choose another --ledger, or add --no-ledger.")


def _check_save(folder: Path, spec: TrainSpec) -> None:
    """Fail early if the model cannot be written."""
    if spec.predicts_links:
        raise InputError("--save writes node classifiers; leave it out with --task links.")
    if not spec.is_own:
        raise InputError(f"--save writes models pruned by unifews; leave it out with --method {spec.method}.")
    console.check_output(folder, option="--save")


def _prepare(settings: console.Json, embedding: Path | None) -> TrainingJob:
    """Load the dataset, with the embedding for features if there is one, and check the run on it."""
    from unifews.core.checks import check_finite
    from unifews.datasets.load import load_dataset
    from unifews.training.job import TrainingJob

    with console.progress_bar(f"loading {settings['dataset']}") as progress:
        data = load_dataset(settings["dataset"], progress=progress)
    if embedding is not None:
        from unifews.training.distributed import on_embedding

        data = on_embedding(data, embedding)
    else:
        check_finite(data.name, data.x)
    return TrainingJob.prepare(data, _spec(settings | {"dataset": data.name}))


# --------------------------------------------------------------------------------------------------------------- report


def _save(cache: RunCache, data: Dataset, folder: Path) -> console.Json:
    """Compress the model just trained and write it; returns what was written."""
    from unifews.serving.compress import compress

    run = cache.trained
    assert run is not None and run.model is not None
    record = run.to_dict()
    best = max(record["seeds"], key=lambda seed: seed["val"])
    about = {name: record[name] for name in ("id", "finished", "spec", "dataset", "metric", "versions")}
    frozen = compress(run.model, data.x, data.graph, record={**about, "seed": best, "multilabel": data.is_multilabel})
    frozen.save(folder)
    kept, whole = frozen.weights
    size = sum(file.stat().st_size for file in folder.iterdir())
    return {"path": str(folder), "seed": best["seed"], "weights_kept": kept, "weights": whole, "bytes": size}


def _report(data: Dataset, records: list[console.Json], cache: RunCache, saved: console.Json | None, as_json: bool) -> None:
    if as_json:
        from unifews.report.runs import Gain

        report: console.Json = {
            "runs": records,
            "against_unpruned": Gain.of(records[1], records[0]).to_dict() if len(records) == 2 else None,
            "ledger": str(cache.ledger.path) if cache.ledger else None,
            "run_files": [str(path) for path in cache.files],
        }
        console.print_json(report | ({} if saved is None else {"model": saved}))
        return
    _print_records(data, records)
    if cache.ledger:
        settings = f"; settings in {' and '.join(map(str, cache.files))}" if cache.files else ""
        console.echo(f"stored in {cache.ledger.path}{settings}")
    if saved is not None:
        weights = f"{saved['weights_kept']:,} of {saved['weights']:,} weights"
        console.echo(f"wrote {saved['path']}: the model of seed {saved['seed']}, {weights}, {saved['bytes']:,} bytes")


def _print_records(data: Dataset, records: list[console.Json]) -> None:
    from unifews.core.checks import count
    from unifews.report.tables import legend, terminal_table

    spec = records[-1]["spec"]
    depth = f", {count(spec['hops'], 'hop')}" if "hops" in spec else f", {count(spec['recipe']['layers'], 'layer')}"
    task = ", links" if spec.get("task") == "links" else ""
    model = f"{spec['model'].upper()}{'' if spec['model'] == 'mlp' else depth}{task}"
    console.echo(f"{model}, {count(len(records[-1]['seeds']), 'seed')}: {data!r}")
    console.print_table(terminal_table(records))
    console.echo(*legend(records))
    console.echo(*(f"note: {note}" for note in dict.fromkeys(note for record in records for note in record["trace"]["notes"])))
