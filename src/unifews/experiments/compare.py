"""`compare`: several methods on one dataset and model, at the same edge sparsities, and the unpruned model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from tempfile import TemporaryDirectory
from typing import Any, get_args

from unifews.core.checks import check_sparsity
from unifews.datasets.dataset import Dataset
from unifews.errors import InputError, UnifewsError, unknown_name
from unifews.experiments.runner import Outcome, Progress, Record, run_cells
from unifews.methods import registry
from unifews.nn.config import Choice
from unifews.training.ledger import Ledger
from unifews.training.spec import DECOUPLED, MODELS, TrainSpec, method_settings
from unifews.training.spec import paper_form as settings_of_paper

SPARSITIES = (0.3, 0.5, 0.8, 0.9)
SEEDS = 3
PAPER_FORM = "unifews, paper's form"
BY_ERROR = "unifews:max_error=0.05"


@dataclass(frozen=True)
class Entry:
    """A method at an edge sparsity, and its outcome."""

    method: str
    edge_sparsity: float | None
    """As requested; None: determined by the method's own settings."""
    outcome: Outcome

    @property
    def record(self) -> Record | None:
        return None if isinstance(self.outcome, UnifewsError) else self.outcome

    def to_dict(self) -> Record:
        error = str(self.outcome) if isinstance(self.outcome, UnifewsError) else None
        return {"method": self.method, "edge_sparsity": self.edge_sparsity, "record": self.record, "error": error}


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`."""

    unpruned: Record
    entries: tuple[Entry, ...]
    """Sparsity by sparsity, in each the methods in the order given."""

    @property
    def records(self) -> list[Record]:
        """Records of all runs, the unpruned one first."""
        return [self.unpruned, *(entry.record for entry in self.entries if entry.record is not None)]

    def to_dict(self) -> Record:
        """Plain values for JSON."""
        return {"unpruned": self.unpruned, "compared": [entry.to_dict() for entry in self.entries]}

    def __str__(self) -> str:
        spec, scores = self.unpruned["spec"], self.unpruned["scores"]
        lines = [f"{spec['model']} on {spec['dataset']}, unpruned: {scores['test']:.1f} ± {scores['test_std']:.1f}"]
        for entry in self.entries:
            setting = "own settings" if entry.edge_sparsity is None else f"edges {entry.edge_sparsity:g}"
            text = str(entry.outcome)
            if entry.record is not None:
                scores, trace = entry.record["scores"], entry.record["trace"]
                text = f"{scores['test']:.1f} ± {scores['test_std']:.1f}, {trace['edge_sparsity']:.1%} of edge entries removed"
                error = trace.get("estimated_error")
                text += "" if error is None else f", estimated error {error:.2g}"
            lines.append(f"{entry.method}, {setting}: {text}")
        return "\n".join(lines)


def compare(
    dataset: Dataset | str | PathLike[str],
    model: str = "gcn",
    methods: str | Sequence[Any] = "all",
    *,
    edge_sparsity: float | Sequence[float] = SPARSITIES,
    weight_sparsity: float | None = None,
    paper_form: bool = False,
    controls: bool = False,
    seeds: int = SEEDS,
    ledger: Ledger | str | PathLike[str] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Train a model by several methods, each at several edge sparsities, and unpruned, with the same seeds.

    Args:
        dataset: a `Dataset`, or an argument of `load_dataset`.
        model: as in `train`.
        methods: names, optionally with settings (``"ndls:epsilon=0.05"``), or method objects; ``"all"``: every method that
            supports the model, for decoupled models also Unifews to an allowed error, ``"unifews:max_error=0.05"``.
        edge_sparsity: one or several values.
        weight_sparsity: weight sparsity of methods that prune weights.
        paper_form: also run Unifews in the paper's form: entire edges, nested.
        controls: also run Unifews with random and with the smallest entries, as many at the same cost, of models whose layers
            propagate; what is left of a difference to "unifews" is what its choice is worth.
        seeds: number of seeds.
        ledger: file (or folder) of records: recorded runs are not trained again, and an interrupted call continues.
        jobs: number of trainings at a time.
        progress: called with the `Status` whenever it changes.
        **settings: of `train`, the same for all.

    Baselines on decoupled models, which do not need an edge sparsity, are also run with their own settings. An allowed error
    (`max_error`) replaces the edge sparsity.
    All arguments are checked before the first training; if a method fails later, its error takes the place of its record.
    """
    if model not in MODELS:
        raise unknown_name("model", model, set(MODELS) - {"mlp"})  # an MLP has no edges
    base = {"model": model, "seeds": seeds, **settings}
    spec = TrainSpec.of({"dataset": "", **base}).unpruned()
    sparsities = _sparsities(edge_sparsity, weight_sparsity)
    lines = [(name, _own(name)) for name in _names(model, methods, bool(weight_sparsity))]
    if controls:
        lines += _controls(spec, [name for name, _ in lines])
    if paper_form:
        lines.append((PAPER_FORM, {"method": TrainSpec.method, **settings_of_paper(model)}))
    planned: list[tuple[str, float | None, Record]]
    planned = [(name, value, own) for value in sparsities for name, own in lines if "max_error" not in own]
    if not spec.is_layered:
        planned += [(name, None, own) for name, own in lines if "max_error" in own or own["method"] != TrainSpec.method]
    cells = [{**base, **own, "edge_sparsity": value, "weight_sparsity": weight_sparsity} for _, value, own in planned]
    with ExitStack() as stack:
        path = stack.enter_context(TemporaryDirectory()) if ledger is None else ledger
        records = path if isinstance(path, Ledger) else Ledger(path)
        everything = [{**cell, "dataset": dataset} for cell in (spec.to_dict(), *cells)]
        unpruned, *outcomes = run_cells(everything, records, jobs=jobs, progress=progress)
    if isinstance(unpruned, UnifewsError):
        raise unpruned
    found = tuple(Entry(name, value, outcome) for (name, value, _), outcome in zip(planned, outcomes, strict=True))
    failed = [entry.outcome for entry in found if isinstance(entry.outcome, UnifewsError)]
    if len(failed) == len(found):
        raise failed[0]
    return Comparison(unpruned, found)


def supported_methods(model: str, *, weights: bool) -> list[str]:
    """The methods that prune this model, and its weights if `weights`; Unifews first."""
    cards = [card for card in registry.cards()[0] if model in card.backbones and not (weights and "weights" not in card.prunes)]
    return sorted((card.name for card in cards), key=lambda name: (name != TrainSpec.method, name))


def _names(model: str, methods: str | Sequence[Any], weights: bool) -> list[str]:
    """Normalised names, each once; methods that do not support the model are refused."""
    if isinstance(methods, str):
        methods = _all_names(model, weights) if methods == "all" else split_names(methods)
    found = list(dict.fromkeys(_text(method) for method in methods))
    if not found:
        raise InputError("`methods` is empty; write 'all', or names such as 'unifews,random'.")
    for name in found:
        own = _own(name)
        registry.resolve(own["method"]).card.check(model, weights=weights)
        if len(own) > 1:
            TrainSpec.of({"dataset": "", "model": model, **({} if "max_error" in own else {"edge_sparsity": 0.5}), **own})
    return found


def _controls(spec: TrainSpec, names: list[str]) -> list[tuple[str, Record]]:
    """A random and a smallest choice for each kind of entries that Unifews is run with."""
    if not spec.is_layered:
        raise InputError(f"controls need a model whose layers propagate; {spec.model} propagates its features once.")
    ours = [name for name in names if _own(name)["method"] == TrainSpec.method and "choice" not in _own(name)]
    if not ours:
        raise InputError(f"controls are of {TrainSpec.method!r}, which is not among the methods; add it, or leave them out.")
    found = []
    for name in ours:
        for choice in get_args(Choice)[1:]:
            text = f"{name}{',' if ':' in name else ':'}choice={choice}"
            TrainSpec.of({"dataset": "", "model": spec.model, "edge_sparsity": 0.5, **_own(text)})
            found.append((text, _own(text)))
    return [(text, own) for text, own in found if text not in names]


def _all_names(model: str, weights: bool) -> list[str]:
    """Every method that supports the model; of ours, where features are propagated once, also the one to an allowed error."""
    first, *others = supported_methods(model, weights=weights)
    if model in DECOUPLED:
        return [first, *([BY_ERROR] if model != "mlp" else []), *others]
    return [first, *others]


def _text(method: Any) -> str:
    """The canonical text of a method; settings of Unifews are those of `train`, and kept as they are written."""
    return str(method) if isinstance(method, str) and method_settings(method)[1] else registry.text_of(method)


def _own(name: str) -> Record:
    """The settings of `train` that a method's text stands for."""
    method, settings = method_settings(name)
    return {"method": method, **settings}


def split_names(text: str) -> list[str]:
    """Names separated by commas; settings of a name may contain commas too.

    >>> split_names("unifews,ndls:epsilon=0.05,own=0.2,agp")
    ['unifews', 'ndls:epsilon=0.05,own=0.2', 'agp']
    """
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return names


def _sparsities(edge_sparsity: float | Sequence[float], weight_sparsity: float | None) -> list[float]:
    given = [edge_sparsity] if isinstance(edge_sparsity, float | int) else list(edge_sparsity)
    checked = list(dict.fromkeys(check_sparsity("edge_sparsity", value) for value in given))
    if not checked:
        raise InputError("`edge_sparsity` is empty; give one or several values, such as (0.5, 0.9).")
    if 0 in checked and not weight_sparsity:
        raise InputError("edge_sparsity=0 removes nothing, and the unpruned model is always included; leave it out.")
    return checked
