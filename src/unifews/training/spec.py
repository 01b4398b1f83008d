"""What a training run computes: every setting that decides its result, and nothing else.

`TrainSpec.of` builds a `DecoupledSpec` or a `LayeredSpec`, whichever the model needs; `to_dict` is the flat table of settings
that ledger records and run files hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from unifews import __version__
from unifews.core.config import (
    Option,
    Values,
    from_dict,
    option,
    options_of,
    project,
    same_option,
    split_text,
    validate,
)
from unifews.core.entry import Amounts, Entries
from unifews.core.schemes import Appnp, Scheme, Sgc
from unifews.datasets.dataset import Dataset, SplitKind
from unifews.errors import InputError, unknown_name
from unifews.methods import registry
from unifews.nn import models
from unifews.nn.config import Choice, LayerEntries, PruningConfig, Scope, Share
from unifews.propagation import tolerance
from unifews.propagation.config import BY_ERROR, ErrorNorm, Precision, PropagationConfig
from unifews.training.fingerprint import fingerprint
from unifews.training.recipe import LINKS, Recipe, WeightPruning

DECOUPLED = ("appnp", "sgc", "mlp")
"""Models that propagate once, then train; those of `unifews.nn.models` propagate in every layer."""
MODELS = (*DECOUPLED, *models.MODELS)
PAPER: Values = {"entries": "node", "basis": "input", "inherit": True, "weight_ramp": 1, "weight_feedback": False}
"""Settings of the paper's own form: whole edges, input features, nested; weights pruned fully from the first epoch."""

_SHARED = ("weight_ramp", "inherit", "hops", "alpha", "r", "skip", "entries", "basis")
"""Settings that `PAPER`, run files and loops over models set whether or not they have an effect; flags are refused."""
_SEED_LIMIT = 2**63  # of torch's generator
_RAMP_PER_LAYER = 15  # epochs per layer over which weights of a head are pruned: a deep one stops learning once it is sparse
# Rules that changed between versions: runs that depend on one have its name in their id, so that older records are not reused.
_WEIGHT_RULE = "adr 22"  # how layers share the weights that are kept
_SETTLE = "adr 23"  # `settle` concerns weights, no longer edges
_PATIENCE_RULE = "patience after recovery"  # when a training with a weight ramp may stop early


def long_ramp(layers: int) -> int:
    """Epochs over which weights of a head with so many layers are pruned."""
    return _RAMP_PER_LAYER * max(layers, 2)


@dataclass(frozen=True)
class TrainSpec:
    """Settings that every training has; `of` builds the class for a model."""

    dataset: str = option(MISSING, "name or path of the dataset", group="Input")
    model: str = option("appnp", "one of appnp, sgc, mlp; gcn, gat, sage, gcnii, gin", group="Model")
    method: str = option("unifews", "pruning method with its settings, see unifews methods", group="Pruning")
    edge_sparsity: float | None = same_option(Amounts, "edge_sparsity")
    edge_threshold: float | None = same_option(Amounts, "edge_threshold", le=None)  # all removed: nothing to learn from
    weight_sparsity: float | None = same_option(Amounts, "weight_sparsity")
    weight_threshold: float | None = same_option(Amounts, "weight_threshold", le=None)
    weight_ramp: int | None = option(
        None,
        "epochs over which weight sparsity ramps up (default: by model and layers)",
        ge=1,
        group="Pruning",
        metavar="EPOCHS",
        needs="weight_sparsity",
    )
    weight_feedback: bool = same_option(PruningConfig, "feedback")
    seeds: int = option(1, "number of random seeds", ge=1, group="Training", metavar="N")
    seed: int = option(42, "random seed; the first one of several", ge=0, group="Training")
    split: SplitKind | None = option(None, "50/25/25 by seed (stratified) or the dataset's own (stored)", group="Training")
    recipe: Recipe = field(default_factory=Recipe)

    is_layered: ClassVar[bool] = False
    """Whether the model propagates in every layer, not once before training."""
    unused_hyperparameters: ClassVar[tuple[str, ...]] = ()
    """Fields of `recipe` that this kind of training does not use."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", registry.text_of(self.method))
        validate(self, unneeded=_SHARED)
        if self.model not in (known := models.MODELS if self.is_layered else DECOUPLED):
            raise unknown_name("model", self.model, known, setting="model")
        if self.weight_ramp is None:
            object.__setattr__(self, "weight_ramp", self._default_ramp())
        if self.seed + self.seeds > _SEED_LIMIT:
            raise InputError(f"seeds must be below 2^63; got seed={self.seed}.", setting="seed")
        _ = self.amounts
        self.rule.card.check(self.model, weights=self.amounts.prunes_weights)
        self._check_combination()

    def _check_combination(self) -> None:
        """Refuse settings that contradict each other."""

    def _default_ramp(self) -> int:
        return long_ramp(self.recipe.layers)

    @cached_property
    def amounts(self) -> Amounts:
        """How much is removed; at most one number for edges and one for weights."""
        return project(Amounts, self)

    @property
    def predicts_links(self) -> bool:
        return False

    @property
    def rule(self) -> Any:
        """The method, with its settings."""
        return registry.resolve(self.method)

    @property
    def is_own(self) -> bool:
        """Whether this library's own method prunes."""
        return self.method == TrainSpec.method

    @property
    def prunes_edges(self) -> bool:
        return self.amounts.prunes_edges

    @property
    def prunes(self) -> bool:
        return self.prunes_edges or self.pruning.active or not self.rule.card.unpruned

    @property
    def pruning(self) -> WeightPruning:
        """The schedule of weight pruning."""
        assert self.weight_ramp is not None
        return WeightPruning(self.weight_sparsity, self.weight_threshold, self.weight_ramp, self.weight_feedback)

    def unpruned(self) -> TrainSpec:
        """The same run with nothing removed: all options of the group Pruning at their defaults."""
        plain = {found.name: found.default for found in options_of(self) if found.group == "Pruning" and not found.part}
        reset = {name: getattr(type(self), name) for name in self.rule.card.defaults}
        return replace(self, **plain | reset)

    def id(self, dataset: Dataset) -> str:
        """Twelve hex digits that change with any setting, the method's own too, with the data and with the version."""
        return self.id_of(fingerprint(dataset))

    def id_of(self, data_id: str) -> str:
        """The id of this run on data with this fingerprint."""
        settings = self.to_dict() | {"method": registry.text_of(self.method, full=True)}  # its defaults may change
        text = json.dumps([settings, data_id, __version__, *self._rules()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _rules(self) -> Iterator[str]:
        if self.weight_sparsity and self.recipe.patience:
            yield _PATIENCE_RULE

    def to_dict(self) -> Values:
        """The settings that this model and this method have, flat except for the table `recipe`."""
        settings = asdict(self)
        for name in self.unused_hyperparameters:
            del settings["recipe"][name]
        return {name: value for name, value in settings.items() if _has(type(self), name, self.model, self.method)}

    @classmethod
    def of(cls, settings: Values) -> TrainSpec:
        """From flat settings; hyperparameters of the recipe stand among the others or in a table of their own, `recipe`.

        Default of `model`: appnp, or the first model that the method works on.
        """
        settings = {name: value for name, value in settings.items() if name != "model" or value is not None}
        settings["method"], own = method_settings(settings.get("method", cls.method))
        for name, value in own.items():
            if settings.setdefault(name, value) != value:
                raise InputError(f"{name}={settings[name]} and method='unifews:{name}={value}' differ; give one of them.")
        rule = registry.resolve(settings["method"])
        settings["method"] = registry.text_of(rule)
        backbones = rule.card.backbones
        model = settings.setdefault("model", cls.model if cls.model in backbones else backbones[0])
        if model not in MODELS:
            raise unknown_name("model", str(model), MODELS, setting="model")
        rule.card.check(model, weights=False)
        kind = LayeredSpec if model in models.MODELS else DecoupledSpec
        recipe = settings.get("recipe", {})
        if not isinstance(recipe, Recipe | dict):
            raise InputError(f"`recipe` is a table of settings such as width and epochs; got {recipe!r}.", setting="recipe")
        _check_settings(kind, model, settings["method"], [*settings, *(recipe if isinstance(recipe, dict) else ())])
        if "dataset" not in settings:
            raise InputError('no dataset is named; add a line such as dataset = "cora".', setting="dataset")
        settings = {**rule.card.defaults, **settings}
        if isinstance(recipe, dict):
            settings["recipe"] = kind.hyperparameters(model, {**recipe, **settings}) | recipe
        return from_dict(kind, settings)

    @classmethod
    def hyperparameters(cls, model: str, settings: Values) -> Values:
        """Defaults of the recipe of this model, where they differ from `Recipe`."""
        return {}


@dataclass(frozen=True)
class DecoupledSpec(TrainSpec):
    """A model that propagates once: what is propagated, how it is pruned, and what a head is trained on."""

    weight_reference: Literal["unpruned", "head"] = option(
        "unpruned",
        "weight sparsity is a fraction of the weights of the unpruned model, or of the head",
        group="Pruning",
        rare=True,
    )
    hops: int = option(20, "number of propagation steps L", ge=1, group="Model", metavar="L", needs="model!=mlp")
    alpha: float = option(
        0.1, "APPNP: teleport probability; GCNII: initial residual", ge=0, le=1, group="Model", metavar="A", needs="model=appnp"
    )
    r: float = option(0.5, "exponent of T = D^-(1-r) (A + I) D^-r", ge=0, le=1, group="Model", metavar="R", needs="model!=mlp")
    skip: str | None = option(
        None,
        "skip connection: diagonal (default), identity, identity+loop or none",
        group="Model",
        metavar="KIND",
        rare=True,
        needs="model!=mlp",
    )
    entries: Entries = same_option(PropagationConfig, "entries", needs="model!=mlp")
    basis: Literal["auto", "principal", "input"] = same_option(PropagationConfig, "basis", default="auto", needs="model!=mlp")
    rank: int | None = same_option(PropagationConfig, "rank", needs="model!=mlp & basis!=input")
    inherit: bool = same_option(PropagationConfig, "inherit")
    max_error: float | None = same_option(Amounts, "max_error")
    error_norm: ErrorNorm = same_option(PropagationConfig, "error_norm")
    degree: int | None = same_option(PropagationConfig, "degree")
    precision: Precision | None = same_option(PropagationConfig, "precision", needs="max_error")
    head: Literal["auto", "embedding", "coordinates"] = option(
        "auto", "input of the head: the embedding or its principal components (coordinates)", group="Pruning", rare=True
    )
    standardise: Literal["common", "column"] = option(
        "common",
        "standardise the input of the head by one common scale, or every column by its own",
        group="Training",
        rare=True,
    )

    def _check_combination(self) -> None:
        if self.model == "mlp" and self.prunes_edges:
            raise InputError("an MLP sees no edges, so none can be pruned; take model='appnp' or 'sgc'.", setting="model")
        by_entries = self.prunes_edges and self.max_error is None
        if self.head == "coordinates" and (self.basis == "input" or not (by_entries or self.rank)):
            raise InputError(
                "head='coordinates' needs principal components: prune edges by edge_sparsity or give `rank`, without "
                "basis='input'.",
                setting="head",
            )
        scheme = self.scheme  # checks alpha and skip
        config = project(PropagationConfig, self, basis="principal")
        tolerance.check(self.amounts, config, scheme)
        tolerance.check_in_memory(self.amounts, config, "training")

    def to_dict(self) -> Values:
        """Without `max_error`, its options have no effect and are left out, so that earlier runs keep their id."""
        settings = super().to_dict()
        if self.max_error is None:
            settings = {name: value for name, value in settings.items() if name not in BY_ERROR}
        return settings

    @property
    def scheme(self) -> Scheme:
        """What is propagated. SGC is T^L X, unless another skip connection is given."""
        if self.model == "sgc":
            return Sgc(skip=self.skip or "diagonal")  # type: ignore[arg-type]
        return Appnp(alpha=self.alpha) if self.skip is None else Appnp(alpha=self.alpha, skip=self.skip)  # type: ignore[arg-type]


@dataclass(frozen=True)
class LayeredSpec(TrainSpec):
    """A model whose layers propagate, trained on the whole graph at once."""

    task: Literal["nodes", "links"] = option("nodes", "classify nodes, or predict held-out edges (links)", group="Model")
    entries: LayerEntries = same_option(PruningConfig, "entries")
    choice: Choice = same_option(
        PruningConfig, "choice", needs="edge_sparsity|edge_threshold & entries=unit|entries=node|entries=edge"
    )
    scope: Scope = same_option(PruningConfig, "scope", needs="edge_sparsity & entries=edge")
    inherit: bool = same_option(PruningConfig, "inherit", needs="edge_sparsity|edge_threshold")
    budget: Share = same_option(PruningConfig, "budget")
    absolute: bool = same_option(PruningConfig, "absolute")
    renormalize: bool = same_option(PruningConfig, "renormalize")
    node_lock: bool = option(
        False,
        "evaluate with edges into test nodes unpruned, as the authors do (optimistic)",
        group="Pruning",
        rare=True,
        needs="edge_sparsity|edge_threshold & entries=node & task=nodes",
    )
    settle: float = option(
        1.0,
        "fraction of the epochs after which removed weights stay removed (1: never)",
        ge=0,
        le=1,
        group="Pruning",
        rare=True,
    )
    heads: int = option(8, "attention heads of the hidden layers of GAT", ge=1, group="Model", metavar="N")
    alpha: float = same_option(DecoupledSpec, "alpha", needs="")
    theta: float = option(0.5, "strength of the identity mapping of GCNII", ge=0, group="Model", metavar="X")

    is_layered: ClassVar[bool] = True
    unused_hyperparameters: ClassVar[tuple[str, ...]] = ("batch",)

    def _check_combination(self) -> None:
        card = self.rule.card
        if not card.thresholds and (self.edge_threshold is not None or self.weight_threshold is not None):
            raise InputError(
                f"method {card.name!r} has no threshold in layers; give edge_sparsity or weight_sparsity, or take "
                f"method='unifews'."
            )
        if self.task not in card.tasks:
            raise InputError(f"method {card.name!r} classifies nodes; for task='links' take method='unifews'.", setting="task")
        if self.predicts_links and self.split is not None:
            raise InputError("task='links' splits the edges by seed; leave out `split`.", setting="split")

    def to_dict(self) -> Values:
        """Without the defaults of `choice` and `scope`, which earlier releases did not have: earlier runs keep their id."""
        defaults = {"choice": "largest", "scope": "auto"}
        return {name: value for name, value in super().to_dict().items() if (name, value) not in defaults.items()}

    def _default_ramp(self) -> int:
        ramp: int = models.hyperparameters_of(self.model, self.recipe.layers)["weight_ramp"]
        return ramp

    @property
    def predicts_links(self) -> bool:
        return self.task == "links"

    @property
    def pruning(self) -> WeightPruning:
        return replace(super().pruning, settle=self.settle)

    def _rules(self) -> Iterator[str]:
        mine = self.rule.card.layers
        if "budget" in mine and self.weight_sparsity and self.budget == "macs":
            yield _WEIGHT_RULE
        if "settle" in mine and self.prunes_edges and self.settle < 1:
            yield _SETTLE
        yield from super()._rules()

    @classmethod
    def hyperparameters(cls, model: str, settings: Values) -> Values:
        if settings.get("task") == "links":
            return LINKS
        layers = Recipe(layers=settings.get("layers", Recipe.layers)).layers
        return {name: value for name, value in models.hyperparameters_of(model, layers).items() if name in Recipe.names()}


def paper_form(model: str) -> Values:
    """`PAPER` for this model. In layers, the sparsity is the mean over layers and in the second half of the epochs removed
    weights stay removed (edges are decided from scratch in every pass); there is no basis to choose."""
    if model not in models.MODELS:
        return PAPER
    known = {found.name for found in options_of(LayeredSpec)}
    return {name: value for name, value in PAPER.items() if name in known} | {"budget": "layers", "settle": 0.5}


def method_settings(method: Any) -> tuple[Any, Values]:
    """``"unifews:max_error=0.05"`` as ``"unifews"`` and the settings of `train` that it names; another method as it is.

    The settings of this library's own method are those of `train`, so its class has none.
    """
    name, given = split_text(method) if isinstance(method, str) else (None, {})
    if name != TrainSpec.method:
        return method, {}
    card = registry.resolve(name).card
    once, layered = ({found.name: found for found in options_of(kind)} for kind in (DecoupledSpec, LayeredSpec))
    known = {setting: [kind[setting] for kind in (once, layered) if setting in kind] for setting in (*card.once, *card.layers)}
    for setting in given:
        if setting not in known:
            raise unknown_name(f"setting of {name!r}", setting, known)
    return name, {setting: _parsed(known[setting], value) for setting, value in given.items()}


def _parsed(options: list[Option], value: str) -> Any:
    """A value written as text that one of the kinds of models has; which of them, is checked with the model."""
    for one in options[:-1]:
        try:
            return one.parse(value)
        except InputError:
            continue
    return options[-1].parse(value)


# ------------------------------------------------------------------------------------------------- who has which setting


def _has(kind: type[TrainSpec], name: str, model: str, method: str) -> bool:
    """Whether a setting of this class has an effect on this model with this method."""
    owners = _owners(name) if kind.is_layered else ()
    if owners and model not in owners:
        return False
    cards = (registry.resolve(each).card for each in (TrainSpec.method, method))
    default, own = (card.layers if kind.is_layered else card.once for card in cards)
    return name not in default or name in own


def _owners(name: str) -> tuple[str, ...]:
    """The models that alone have a setting: it is a keyword of their builder."""
    return tuple(model for model in models.MODELS if name in models.own_settings(model))


def _check_settings(kind: type[TrainSpec], model: str, method: str, given: Iterable[str]) -> None:
    """Refuse unknown settings, and those that have no effect on this model or with this method."""
    decoupled, layered = ({found.name: found for found in options_of(each)} for each in (DecoupledSpec, LayeredSpec))
    own = layered if kind.is_layered else decoupled
    for name in given:
        if name == "recipe" or (name in own and name not in kind.unused_hyperparameters and _has(kind, name, model, method)):
            continue
        if name not in decoupled and name not in layered:
            raise unknown_name("setting", name, {*decoupled, *layered, "recipe"}, setting=name)
        raise InputError(_why_unused(kind, name, model, method, decoupled), setting=name)


def _why_unused(kind: type[TrainSpec], name: str, model: str, method: str, decoupled: dict[str, Option]) -> str:
    if name not in kind.unused_hyperparameters and hasattr(kind, name) and _has(kind, name, model, TrainSpec.method):
        return f"`{name}` belongs to method='unifews'; {method.partition(':')[0]} has no such setting."
    once = (each for part in decoupled[name].conditions for each in part) if name in decoupled else ()
    owners = (*_owners(name), *(each.value for each in once if each[:2] == ("model", "=")))
    if owners:
        return f"`{name}` belongs to model={' or '.join(map(repr, owners))}; {model} has no such setting."
    if not kind.is_layered:
        return f"`{name}` needs layers that propagate, and {model} has none; take model='gcn', or leave it out."
    if name in kind.unused_hyperparameters:
        return f"{model} is trained on the whole graph at once, so it has no `{name}`; leave it out."
    return (
        f"`{name}` concerns propagation once before training, and {model} propagates in every layer; leave it out, or take "
        f"model='appnp' or 'sgc'."
    )
