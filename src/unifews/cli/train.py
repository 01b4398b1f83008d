"""`unifews train`: from a dataset to accuracy, operations and time, beside the unpruned model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unifews.cli import output
from unifews.cli.crew import crew
from unifews.cli.desk import Desk
from unifews.cli.run import own_process
from unifews.errors import InputError, MissingFileError, unknown_name

if TYPE_CHECKING:
    from unifews.datasets.dataset import Dataset
    from unifews.training.spec import TrainSpec

SEEDS = 5  # one seed has no spread
_SPACE = 1 << 20  # bytes a ledger, its partial results and run files need at most

_Fraction = typer.Option(metavar="S", help="Share of the edge products to remove, 0.9 for nine in ten.")


def train(
    dataset: Annotated[
        str | None,
        typer.Argument(
            metavar="DATASET",
            help="A known name (unifews data list), a dataset folder or .npz; unifews data convert makes one of your files.",
        ),
    ] = None,
    run_file: Annotated[
        Path | None,
        typer.Option("--run-file", "-f", metavar="RUN.toml", help="Settings; an option given here wins over the file."),
    ] = None,
    embedding: Annotated[
        Path | None,
        typer.Option(metavar="P.npy", help="Train on what unifews propagate wrote, not on what a model propagates now."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="appnp (unless given), sgc or mlp, propagated once; gcn, gat, sage, gcnii or gin, whose layers propagate.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME[:SETTINGS]", help="Who decides what goes, unifews unless given; see unifews methods."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="nodes|links", help="Classify nodes, or predict hidden edges (gcn and the like).")
    ] = None,
    edge_sparsity: Annotated[float | None, _Fraction] = None,
    edge_threshold: Annotated[float | None, typer.Option(metavar="D", help="Instead: remove messages below this.")] = None,
    weight_sparsity: Annotated[float | None, typer.Option(metavar="S", help="Share of the weights to remove.")] = None,
    weight_threshold: Annotated[
        float | None, typer.Option(metavar="T", help="Instead: remove weights whose products are below T times the mean.")
    ] = None,
    weight_reference: Annotated[
        str | None,
        typer.Option(metavar="unpruned|head", help="Of which weights it is a share, where a head on fewer axes is smaller."),
    ] = None,
    weight_ramp: Annotated[
        int | None,
        typer.Option(metavar="EPOCHS", help="Over how many epochs weights go; 15 a layer, or 3 and at least 12 in layers."),
    ] = None,
    paper_form: Annotated[
        bool, typer.Option("--paper-form", help="Prune as the paper does: whole edges on the input axes, nested.")
    ] = False,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Beside a pruned model, train the unpruned one: same seeds.")
    ] = True,
    seeds: Annotated[int | None, typer.Option(metavar="N", help=f"How many seeds, {SEEDS} unless given.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The first; it decides split, weights and batches.")] = None,
    split: Annotated[
        str | None, typer.Option(metavar="stratified|stored", help="50/25/25 by seed, or the dataset's own; as it is meant.")
    ] = None,
    hops: Annotated[int | None, typer.Option(metavar="L", help="Propagation steps, 20 unless given.")] = None,
    alpha: Annotated[float | None, typer.Option(metavar="A", help="APPNP, GCNII: share of its own that a node keeps.")] = None,
    r: Annotated[float | None, typer.Option("--r", metavar="R", help="T = D^-(1-r) (A + I) D^-r, 0.5 unless given.")] = None,
    skip: Annotated[
        str | None, typer.Option(metavar="KIND", help="Skip connection: diagonal unless given, identity, identity+loop, none.")
    ] = None,
    entries: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What one decision covers: of an edge a block of 16 features, one feature or all (node); in layers also a "
            "unit, one feature of all edges. block unless given, in layers unit.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="macs|layers", help="Layers: share of all MACs or weights, large ones giving most, or of each."),
    ] = None,
    absolute: Annotated[
        bool | None, typer.Option("--absolute/--relative", help="Layers: thresholds are magnitudes, or multiples of the mean.")
    ] = None,
    settle: Annotated[
        float | None,
        typer.Option(metavar="S", help="Layers: share of the epochs after which removed weights stay so; 1 unless given."),
    ] = None,
    node_lock: Annotated[
        bool | None, typer.Option("--node-lock/--no-node-lock", help="Layers: judge as the authors do; it flatters.")
    ] = None,
    heads: Annotated[int | None, typer.Option(metavar="N", help="GAT: heads of hidden layers, 8 unless given.")] = None,
    theta: Annotated[float | None, typer.Option(metavar="X", help="GCNII: how much a layer transforms, 0.5.")] = None,
    basis: Annotated[
        str | None,
        typer.Option(metavar="auto|principal|input", help="The axes that are pruned, chosen by features and target: auto."),
    ] = None,
    rank: Annotated[int | None, typer.Option(metavar="K", help="Leading axes to propagate, chosen unless given.")] = None,
    inherit: Annotated[
        bool | None, typer.Option("--inherit/--no-inherit", help="What is removed at a hop stays removed at later ones.")
    ] = None,
    width: Annotated[int | None, typer.Option(metavar="N", help="Hidden units of a layer.")] = None,
    layers: Annotated[int | None, typer.Option(metavar="N", help="Layers of the classifier, or of the model.")] = None,
    dropout: Annotated[float | None, typer.Option(metavar="P", help="Share of hidden units left out while training.")] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Nodes per step, where propagated once.")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Epochs at most.")] = None,
    patience: Annotated[
        int | None, typer.Option(metavar="N", help="Stop after so many epochs without a better validation score; 0: never.")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", metavar="X", help="Learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(metavar="X", help="Weight decay.")] = None,
    ledger: Annotated[
        Path, typer.Option(metavar="DIR", help="Where records and run files are kept; what is there is not trained again.")
    ] = Path("runs"),
    runs: Annotated[Path | None, typer.Option(metavar="DIR", hidden=True, help="The former name of --ledger.")] = None,
    no_ledger: Annotated[bool, typer.Option("--no-ledger", help="Keep no record of the run.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Repeat a run that the ledger has.")] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Freeze the model of the best seed and write it there; for unifews infer."),
    ] = None,
    log: Annotated[
        str | None, typer.Option(metavar="tensorboard", help="Write the curves of every seed to DIR/tensorboard.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records and the comparison as JSON.")] = False,
) -> None:  # fmt: skip
    """Train a sparsified model and the unpruned one beside it: accuracy, operations and time.

    What the ledger already has is not trained again, and finished seeds of an interrupted run are kept: the same command
    goes on where it stopped. Recipe options not given are those of unifews.training.recipe, one setting for all datasets.

    Where torchrun starts several workers, they share the rows of an embedding: torchrun --nproc-per-node=4 -m unifews train
    DATASET --embedding P.npy.
    """
    own_process()
    if runs is not None:
        output.note("--runs is deprecated and will go; write --ledger.")
        ledger = runs
    keep = not no_ledger
    given = {
        "model": model, "method": method, "edge_sparsity": edge_sparsity, "edge_threshold": edge_threshold,
        "weight_sparsity": weight_sparsity, "weight_reference": weight_reference, "weight_ramp": weight_ramp,
        "weight_threshold": weight_threshold, "seeds": seeds, "seed": seed, "split": split, "hops": hops, "alpha": alpha,
        "r": r, "skip": skip, "entries": entries, "basis": basis, "rank": rank, "inherit": inherit, "width": width,
        "layers": layers, "dropout": dropout, "batch": batch, "epochs": epochs, "patience": patience, "lr": lr,
        "weight_decay": weight_decay, "task": task, "budget": budget, "absolute": absolute, "node_lock": node_lock,
        "settle": settle, "heads": heads, "theta": theta,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    with crew() as workers:
        with workers.agreed():
            _check_log(log)
            if workers.group is not None or embedding is not None:
                _check_embedding(embedding, given, save)
            settings = _settings(dataset, run_file, given, paper_form)
            if save is not None:
                _check_save(save, _spec(settings))
            if keep or log is not None:
                _check_ledger(ledger)
            data = _load(settings["dataset"])
            where, settings["dataset"] = settings["dataset"], data.name
            if embedding is not None:
                from unifews.distributed.head import on_embedding

                data = on_embedding(data, embedding)
            else:  # before a run file is written; none leads to an embedding
                from unifews.training.checks import check_finite

                check_finite(data.name, data.x)
            from unifews.training.job import TrainingJob

            spec = _spec(settings)
            rank = getattr(spec, "rank", None)
            if rank is not None and rank > data.num_features:
                raise InputError(f"--rank {rank} is more than the {data.num_features:,} features of {data.name}.")
            job = TrainingJob.prepare(data, spec)
        hands = None
        if workers.group is not None:
            from unifews.distributed.head import many

            hands = many(workers.group, job)
        desk = Desk(data, where, ledger, keep, again, log, embedding, hands)
        records = [desk.run(job.with_spec(spec.unpruned()))] if baseline and spec.prunes else []
        records.append(desk.run(job, model=save is not None))
        if not workers.is_first:
            return
        saved = None if save is None else _save(desk, data, save)
        if as_json:
            output.print_json(_report(records, desk) | ({} if saved is None else {"model": saved}))
        else:
            _show(data, records, desk)
            if saved is not None:
                kept, whole = saved["weights_kept"], saved["weights"]
                what = f"the model of seed {saved['seed']}, {kept:,} of {whole:,} weights, {saved['bytes']:,} bytes"
                output.console().print(f"wrote {save}: {what}", soft_wrap=True, markup=False)


# ------------------------------------------------------------------------------------------------------------- settings


def _settings(dataset: str | None, run_file: Path | None, given: dict[str, Any], as_paper: bool) -> dict[str, Any]:
    """The run file's settings with those of the command line on top, checked before anything is loaded."""
    from unifews.training.spec import TrainSpec, paper_form, read_toml

    if dataset is not None and dataset.endswith(".toml"):
        raise InputError(f"{dataset} is a run file by its name; give it with --run-file {dataset}.")
    file = read_toml(run_file) if run_file is not None else {}
    if as_paper:
        model, method = ({**file, **given}.get(name, getattr(TrainSpec, name)) for name in ("model", "method"))
        if model == "mlp":
            raise InputError("--paper-form is about propagation, and an MLP does not propagate; leave it out.")
        if method != TrainSpec.method:
            raise InputError(f"--paper-form is a form of --method unifews; with --method {method} leave it out.")
        for name, value in paper_form(model).items():
            if given.setdefault(name, value) != value:
                raise InputError(
                    f"--paper-form means {name}={value}, but `{name}` asks for {given[name]}; leave out one of them."
                )
    settings: dict[str, Any] = {"seeds": SEEDS, **file}
    for one, other in (("edge_sparsity", "edge_threshold"), ("weight_sparsity", "weight_threshold")):
        if given.keys() & {one, other}:  # either replaces both of the file
            settings.pop(one, None)
            settings.pop(other, None)
    settings |= given
    if dataset is not None:
        settings["dataset"] = dataset
    if "dataset" not in settings:
        raise InputError(
            'no dataset is named; write unifews train cora, or add a line such as dataset = "cora" to the run file.'
        )
    _check_sense(_spec(settings), given, as_paper)
    return settings


def _spec(settings: dict[str, Any]) -> TrainSpec:
    from unifews.training.spec import TrainSpec

    return TrainSpec.of(settings)


def _check_sense(spec: TrainSpec, given: dict[str, Any], as_paper: bool) -> None:
    """An option that cannot matter is a misunderstanding."""
    if "alpha" in given and spec.model not in ("appnp", "gcnii"):
        raise InputError(f"--alpha belongs to --model appnp; {spec.model} has no such term.")
    if spec.model == "mlp":
        for name in ("hops", "r", "skip", "entries", "basis", "rank", "inherit"):
            if name in given:
                raise InputError(f"--{name} is about propagation, and an MLP does not propagate; take --model appnp or sgc.")
    if given.get("inherit") and not spec.prunes_edges:
        raise InputError("--inherit and --paper-form remove nothing by themselves; add --edge-sparsity or --edge-threshold.")
    if "weight_ramp" in given and not as_paper and not spec.pruning.sparsity:
        instead = "add --weight-sparsity" if spec.weight_threshold is None else "a threshold has none, leave it out"
        raise InputError(f"--weight-ramp is over how many epochs a share of the weights goes; {instead}.")
    if "rank" in given and given.get("basis") == "input":
        raise InputError("--rank counts principal axes; leave out --basis input, or --rank.")


def _check_embedding(embedding: Path | None, given: dict[str, Any], save: Path | None) -> None:
    """A head on an embedding, which sees no graph; workers train no other."""
    if embedding is None:
        raise InputError(
            "workers train a head on an embedding: write it with torchrun -m unifews propagate, and give it with --embedding "
            "P.npy."
        )
    if given.setdefault("model", "mlp") != "mlp":
        raise InputError(f"--embedding is what a model has propagated; leave out --model {given['model']}, or --embedding.")
    for name in ("edge_sparsity", "edge_threshold"):
        if name in given:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"--embedding is propagated already; leave out {option} here, and give it to unifews propagate.")
    if save is not None:
        raise InputError("--save writes models that propagate; with --embedding leave it out.")


def _check_log(log: str | None) -> None:
    if log is None:
        return
    if log != "tensorboard":
        raise unknown_name("log", log, ("tensorboard",))
    from unifews.training.log import writer

    writer()


def _check_ledger(ledger: Path) -> None:
    """A folder that cannot be written should come to light before the training."""
    folder = ledger.resolve().parent if ledger.suffix == ".jsonl" else ledger.resolve()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"cannot keep runs in {ledger}: {folder} is not a folder. Give --ledger another name, or --no-ledger.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"cannot keep runs in {ledger}: {folder} is write-protected. Give --ledger another name, or --no-ledger."
        )
    free = shutil.disk_usage(folder).free
    if free < _SPACE:
        raise InputError(
            f"cannot keep runs in {ledger}: its disk has {free:,} bytes left. Make room, or give --ledger another name."
        )


def _check_save(folder: Path, spec: TrainSpec) -> None:
    """A model that cannot be written should come to light before the training."""
    if spec.predicts_links:
        raise InputError("--save writes models that classify nodes; with --task links leave it out.")
    if not spec.is_own:
        raise InputError(f"--save writes models that unifews has pruned; with --method {spec.method} leave it out.")
    if folder.exists():
        raise InputError(f"{folder} already exists; give --save another name.")
    if not folder.parent.is_dir():
        raise MissingFileError(f"cannot write {folder}: there is no folder {folder.parent}.")
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {folder}: the folder {folder.parent} is write-protected.")


def _save(desk: Desk, data: Dataset, folder: Path) -> dict[str, Any]:
    """Freeze the model just trained and write it; what was written."""
    from unifews.serving.compress import compress

    run = desk.trained
    assert run is not None and run.model is not None
    record = run.to_dict()
    best = max(record["seeds"], key=lambda seed: seed["val"])
    about = {name: record[name] for name in ("id", "finished", "spec", "dataset", "metric", "versions")}
    fast = compress(run.model, data.x, data.graph, record={**about, "seed": best, "multilabel": data.is_multilabel})
    fast.save(folder)
    kept, whole = fast.weights
    size = sum(file.stat().st_size for file in folder.iterdir())
    return {"path": str(folder), "seed": best["seed"], "weights_kept": kept, "weights": whole, "bytes": size}


def _load(name: str) -> Dataset:
    from unifews.datasets.load import load_dataset

    with output.stages(f"loading {name}") as progress:
        return load_dataset(name, progress=progress)


# -------------------------------------------------------------------------------------------------------------- showing


def _report(records: list[dict[str, Any]], desk: Desk) -> dict[str, Any]:
    from unifews.report.runs import Gain

    return {
        "runs": records,
        "against_unpruned": Gain.of(records[1], records[0]).to_dict() if len(records) == 2 else None,
        "ledger": str(desk.book.path) if desk.book else None,
        "run_files": [str(path) for path in desk.files],
    }


def _show(data: Dataset, records: list[dict[str, Any]], desk: Desk) -> None:
    from unifews.report.tables import legend, terminal_table

    table = terminal_table(records)
    console = output.console(table)
    spec = records[-1]["spec"]
    depth = "" if spec["model"] == "mlp" else f", {spec['hops']} hops" if "hops" in spec else f", {_layers(spec)}"
    seeds = len(records[-1]["seeds"])
    about = f"{spec['model'].upper()}{depth}, {seeds} {'seeds' if seeds > 1 else 'seed'}: {data!r}"
    console.print(about, soft_wrap=True, markup=False)
    console.print(table)
    console.print(*legend(records), sep="\n", soft_wrap=True)
    for note in dict.fromkeys(note for record in records for note in record["trace"]["notes"]):
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    if desk.book:
        settings = f"; settings in {' and '.join(map(str, desk.files))}" if desk.files else ""
        console.print(f"kept in {desk.book.path}{settings}", soft_wrap=True, markup=False)


def _layers(spec: dict[str, Any]) -> str:
    layers = spec["recipe"]["layers"]
    return f"{layers} {'layers' if layers > 1 else 'layer'}{', links' if spec['task'] == 'links' else ''}"
