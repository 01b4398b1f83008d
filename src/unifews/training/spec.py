"""What a training run is asked to do: everything that decides its result, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from unifews import __version__
from unifews.core.checks import check_sparsity, check_threshold
from unifews.core.schemes import Appnp, Scheme, Sgc
from unifews.datasets.dataset import Dataset, SplitKind
from unifews.errors import FileFormatError, InputError, MissingFileError, unknown_name
from unifews.methods import registry
from unifews.nn import models
from unifews.nn.config import LayerEntries, Share
from unifews.storage.reading import reading
from unifews.training.checks import real, whole
from unifews.training.fingerprint import fingerprint
from unifews.training.recipe import LINKS, Recipe, WeightPruning

DECOUPLED = ("appnp", "sgc", "mlp")
"""Models that propagate once, then train; the others, of the zoo, propagate in every layer."""
MODELS = (*DECOUPLED, *models.MODELS)
_SEEDS = 2**63  # what torch's generator takes
_WEIGHTS = "adr 22"  # by which rule layers share the weights that may stay
_SETTLE = "adr 23"  # `settle` is about weights, no longer about edges
_PATIENCE = "patience after recovery"  # when a training with a weight ramp may stop
_RAMP = 15  # epochs a layer over which weights of a head go: a deep one learns nothing more once they have gone

PAPER: dict[str, Any] = {"entries": "node", "basis": "input", "inherit": True, "weight_ramp": 1, "weight_feedback": False}
"""Settings of the paper's own form: whole rows, on the input axes, nested; weights pruned fully from the first epoch."""

ONCE = ("weight_reference", "hops", "r", "skip", "basis", "rank", "head", "standardise", "batch")
"""Settings of decoupled models only."""
LAYERED: dict[str, Any] = {"entries": "unit", "inherit": True}
"""Defaults of models that propagate in every layer, where they differ."""
OF_LAYERS = ("task", "budget", "absolute", "node_lock", "settle")
"""Settings of those models only, beside what each has of its own (`zoo.own_settings`)."""


def paper_form(model: str) -> dict[str, Any]:
    """`PAPER` for this model. In layers, the share is the mean over layers, in the second half of the epochs removed weights
    stay removed (edges are decided from scratch in every pass), and there are no axes to choose."""
    if model not in models.MODELS:
        return PAPER
    return {name: value for name, value in PAPER.items() if name not in ONCE} | {"budget": "layers", "settle": 0.5}


def long_ramp(layers: int) -> int:
    """Epochs over which weights go where nothing is learnt by heart before."""
    return _RAMP * max(layers, 2)


@dataclass(frozen=True)
class TrainSpec:
    """The settings of `unifews.train`; see there for what each means.

    Defaults here are those of decoupled models; `of` knows each model's own.
    """

    dataset: str
    model: str = "appnp"
    method: str = "unifews"
    edge_sparsity: float | None = None
    edge_threshold: float | None = None
    weight_sparsity: float | None = None
    weight_threshold: float | None = None
    weight_reference: Literal["unpruned", "head"] = "unpruned"
    weight_ramp: int | None = None
    weight_feedback: bool = True
    seeds: int = 1
    seed: int = 42
    split: SplitKind | None = None
    hops: int = 20
    alpha: float = 0.1
    r: float = 0.5
    skip: str | None = None
    entries: LayerEntries = "block"
    basis: Literal["auto", "principal", "input"] = "auto"
    rank: int | None = None
    inherit: bool = False
    head: Literal["auto", "embedding", "coordinates"] = "auto"
    standardise: Literal["common", "column"] = "common"
    task: Literal["nodes", "links"] = "nodes"
    budget: Share = "macs"
    absolute: bool = False
    node_lock: bool = False
    settle: float = 1.0
    heads: int = 8
    theta: float = 0.5
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        self._check_names()
        if self.weight_ramp is None:
            layers = self.recipe.layers
            ramp = models.numbers_of(self.model, layers)["weight_ramp"] if self.is_layered else long_ramp(layers)
            object.__setattr__(self, "weight_ramp", ramp)
        self._check_numbers()
        self._check_shares()
        self._check_method()
        self._check_sense()
        self.pruning, self.scheme  # noqa: B018 - both check what they are made of

    def _check_names(self) -> None:
        _known("model", self.model, MODELS)
        object.__setattr__(self, "method", registry.text_of(self.method))
        _known("entries", self.entries, (*(["unit"] if self.is_layered else []), "block", "feature", "node"))
        _known("task", self.task, ("nodes", "links"))
        _known("budget", self.budget, ("macs", "layers"))
        _known("basis", self.basis, ("auto", "principal", "input"))
        _known("head input", self.head, ("auto", "embedding", "coordinates"))
        _known("weight reference", self.weight_reference, ("unpruned", "head"))
        _known("standardisation", self.standardise, ("common", "column"))
        if self.split is not None:
            _known("split", self.split, ("stratified", "stored"))

    def _check_numbers(self) -> None:
        for name, least in (("seeds", 1), ("seed", 0), ("hops", 1), ("weight_ramp", 1), ("heads", 1)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least))
        if self.seed + self.seeds > _SEEDS:
            raise InputError(f"seeds are numbers below 2^63; got seed={self.seed}.")
        for name in ("alpha", "r", "settle"):
            object.__setattr__(self, name, real(name, getattr(self, name), 1.0, including=True))
        object.__setattr__(self, "theta", real("theta", self.theta))
        if self.rank is not None:
            object.__setattr__(self, "rank", whole("rank", self.rank, 1))
        for name in ("inherit", "weight_feedback", "absolute", "node_lock"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"`{name}` is true or false; got {getattr(self, name)!r}.")

    def _check_shares(self) -> None:
        """What is to be removed of edges and of weights."""
        if self.edge_sparsity is not None and self.edge_threshold is not None:
            raise InputError("edge_sparsity and edge_threshold are ways to say the same thing; give one of them.")
        for what in ("edge", "weight"):
            share, delta = f"{what}_sparsity", f"{what}_threshold"
            if getattr(self, share) is not None:
                object.__setattr__(self, share, check_sparsity(share, getattr(self, share)))
            if getattr(self, delta) is not None:
                object.__setattr__(self, delta, check_threshold(delta, getattr(self, delta)))
            if getattr(self, delta) == math.inf:
                raise InputError(f"an infinite `{delta}` would remove everything; give a number.")

    def _check_method(self) -> None:
        """Whether the method can do on this model what it is asked for."""
        card = self.rule.card
        card.check(self.model, weights=bool(self.weight_sparsity) or bool(self.weight_threshold))
        thresholds = self.edge_threshold is not None or self.weight_threshold is not None
        if self.is_layered and thresholds and not card.thresholds:
            raise InputError(
                f"method {card.name!r} has no threshold in layers, it removes a fraction; give edge_sparsity or "
                f"weight_sparsity, or take method='unifews'."
            )
        if self.task not in card.tasks:
            raise InputError(f"method {card.name!r} classifies nodes; for task='links' take method='unifews'.")

    def _check_sense(self) -> None:
        """Settings that contradict each other."""
        if self.model == "mlp" and self.prunes_edges:
            raise InputError("an MLP sees no edges, so none can be pruned; take model='appnp' or 'sgc'.")
        if self.head == "coordinates" and (self.basis == "input" or not (self.prunes_edges or self.rank)):
            raise InputError("head='coordinates' needs principal axes: prune edges or give `rank`, without basis='input'.")
        if self.node_lock and not (self.prunes_edges and self.entries == "node" and self.task == "nodes"):
            raise InputError("node_lock leaves edges into judged nodes in place; it needs pruned edges, with entries='node'.")
        if self.task == "links" and self.split is not None:
            raise InputError("task='links' draws its own split of the edges by seed; leave `split` out.")

    @property
    def is_layered(self) -> bool:
        """Whether the model propagates in every layer, not once before training."""
        return self.model in models.MODELS

    @property
    def rule(self) -> Any:
        """The method, with its settings."""
        return registry.resolve(self.method)

    @property
    def is_own(self) -> bool:
        """Whether this library's own method decides."""
        return self.method == TrainSpec.method

    @property
    def prunes_edges(self) -> bool:
        return bool(self.edge_sparsity) or bool(self.edge_threshold)

    @property
    def prunes(self) -> bool:
        return self.prunes_edges or self.pruning.active or not self.rule.card.unpruned

    @property
    def pruning(self) -> WeightPruning:
        assert self.weight_ramp is not None
        settle = self.settle if self.is_layered else WeightPruning.settle
        return WeightPruning(self.weight_sparsity, self.weight_threshold, self.weight_ramp, self.weight_feedback, settle)

    @property
    def scheme(self) -> Scheme:
        """What is propagated. SGC is T^L X as everybody knows it, unless another skip connection is asked for."""
        if self.model == "sgc":
            return Sgc(skip=self.skip or "diagonal")  # type: ignore[arg-type]
        return Appnp(alpha=self.alpha) if self.skip is None else Appnp(alpha=self.alpha, skip=self.skip)  # type: ignore[arg-type]

    def unpruned(self) -> TrainSpec:
        """The same run with nothing removed."""
        how: dict[str, Any] = {"entries": TrainSpec.entries, "inherit": False} | (LAYERED if self.is_layered else {})
        how |= {"method": TrainSpec.method} | {name: getattr(TrainSpec, name) for name in self.rule.card.defaults}
        return replace(
            self, edge_sparsity=None, edge_threshold=None, weight_sparsity=None, weight_threshold=None, rank=None, head="auto",
            basis=TrainSpec.basis, weight_reference=TrainSpec.weight_reference, weight_ramp=TrainSpec.weight_ramp,
            weight_feedback=TrainSpec.weight_feedback, budget=TrainSpec.budget, absolute=False, node_lock=False,
            settle=TrainSpec.settle, **how,
        )  # fmt: skip

    def id(self, dataset: Dataset) -> str:
        """Twelve hex digits that change with any setting, the method's own too, with the data and with the version."""
        settings = self.to_dict() | {"method": registry.text_of(self.method, full=True)}  # its defaults may change
        shared = settings.get("budget") == "macs" and self.weight_sparsity
        rules = [_WEIGHTS] if shared else []  # a record of another rule is not this run
        rules += [_SETTLE] if settings.get("settle", 1) < 1 and self.prunes_edges else []
        rules += [_PATIENCE] if self.weight_sparsity and self.recipe.patience else []
        text = json.dumps([settings, fingerprint(dataset), __version__, *rules], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """The settings that this model and this method have."""
        settings = asdict(self)
        for name in foreign(self.model, self.method):
            (settings["recipe"] if name in Recipe.names() else settings).pop(name)
        return settings

    @classmethod
    def of(cls, settings: dict[str, Any]) -> TrainSpec:
        """From flat settings; those of the recipe stand among the others or in a table of their own, `recipe`."""
        settings = dict(settings)
        given = settings.pop("recipe", {})
        if not isinstance(given, Recipe | dict):
            raise InputError(f"`recipe` is a table of settings such as width and epochs; got {given!r}.")
        numbers = asdict(given) if isinstance(given, Recipe) else dict(given)
        own = {item.name for item in fields(cls)} - {"recipe"}
        for name in settings:
            _known("setting", name, own | set(Recipe.names()))
        for name in numbers:
            _known("setting of the recipe", name, Recipe.names())
        rule = registry.resolve(settings.get("method", cls.method))
        settings["method"] = registry.text_of(rule)
        model = settings.get("model")
        if model is None:
            model = settings["model"] = cls.model if cls.model in rule.card.backbones else rule.card.backbones[0]
        _known("model", model, MODELS)
        rule.card.check(model, weights=False)
        _check_own(model, settings["method"], [*settings, *(given if isinstance(given, dict) else ())])
        settings = {**rule.card.defaults, **settings}
        for name in [name for name in settings if name in Recipe.names()]:
            numbers[name] = settings.pop(name)
        if model in models.MODELS:
            settings = LAYERED | settings
            if not isinstance(given, Recipe):
                numbers = (LINKS if settings.get("task") == "links" else _of_nodes(model, numbers)) | numbers
        if "dataset" not in settings:
            raise InputError('no dataset is named; add a line such as dataset = "cora".')
        if not isinstance(settings["dataset"], str):
            raise InputError(f"`dataset` is a name or a path, in quotes; got {settings['dataset']!r}.")
        return cls(**settings, recipe=Recipe(**numbers))


def _of_nodes(model: str, numbers: dict[str, Any]) -> dict[str, Any]:
    """What the zoo says of the recipe of a model that classifies nodes."""
    own = models.numbers_of(model, whole("layers", numbers.get("layers", Recipe.layers), 1))
    return {name: value for name, value in own.items() if name in Recipe.names()}


def foreign(model: str, method: str = TrainSpec.method) -> list[str]:
    """Settings that this model, or this method on it, does not have."""
    own = [name for other in models.MODELS for name in models.own_settings(other)]
    cards = (registry.resolve(name).card for name in (TrainSpec.method, method))
    default, mine = (card.layers if model in models.MODELS else card.once for card in cards)
    others = [name for name in default if name not in mine]
    if model not in models.MODELS:
        return [*others, *OF_LAYERS, *(name for name in dict.fromkeys(own) if name != "alpha")]
    return [*others, *ONCE, *(name for name in dict.fromkeys(own) if name not in models.own_settings(model))]


def _check_own(model: str, method: str, given: list[str]) -> None:
    """A setting that cannot matter is a misunderstanding."""
    for name in given:
        if name not in foreign(model, method):
            continue
        if name not in foreign(model):
            raise InputError(f"`{name}` belongs to method='unifews'; {method.partition(':')[0]} has no such setting.")
        whose = [other for other in models.MODELS if name in models.own_settings(other)]
        whose += ["appnp"] if name == "alpha" else []
        if whose:
            raise InputError(f"`{name}` belongs to model={' or '.join(map(repr, whose))}; {model} has no such setting.")
        if model not in models.MODELS:
            raise InputError(f"`{name}` is about layers that propagate, and {model} has none; take model='gcn', or drop it.")
        if name == "batch":
            raise InputError(f"{model} is trained on the whole graph at once, so it has no `batch`; leave it out.")
        raise InputError(
            f"`{name}` is about propagating once before training, and {model} does so in every layer; leave it out, or take "
            f"model='appnp' or 'sgc'."
        )


def _known(kind: str, name: object, known: Any) -> None:
    if name not in known:
        raise unknown_name(kind, str(name), known)


# ---------------------------------------------------------------------------------------------------------------- TOML


def read_toml(path: str | PathLike[str]) -> dict[str, Any]:
    """The settings in a run file, each of them checked; it may leave out any, the dataset too."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no run file {path}.") from error
    try:
        settings = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError, a number of 5,000 digits
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")
        raise FileFormatError(f"{path} is no run file: {reason}. Write lines such as  edge_sparsity = 0.9.") from error
    try:
        with reading(path, "the settings of a run"):
            TrainSpec.of({"dataset": "", **settings})
    except InputError as error:
        raise InputError(f"in {path}, {error}") from error
    return settings


def write_toml(spec: TrainSpec) -> str:
    """A run file that repeats the run: every setting that has a value, the recipe in a table."""
    settings = spec.to_dict()
    recipe = settings.pop("recipe")
    lines = [f"{name} = {_toml(value)}" for name, value in settings.items() if value is not None]
    return "\n".join([*lines, "", "[recipe]", *(f"{name} = {_toml(value)}" for name, value in recipe.items())]) + "\n"


def _toml(value: str | float) -> str:
    """As in JSON, but for what TOML has no pairs of escapes for (characters past U+FFFF), and DEL, which it wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
