"""The known methods: those of this folder, found by scanning it, and those of installed packages.

A method is a frozen dataclass under ``@method(name, ...)`` that fulfils contracts of `unifews.methods.base`; its fields are its
settings. A package adds one by an entry point of the group ``unifews.methods`` that names such a class:

    [project.entry-points."unifews.methods"]
    mine = "my_package.mine:Mine"
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar

from unifews import methods
from unifews.core.config import from_text, split_text, to_text
from unifews.errors import InputError, unknown_name

GROUP = "unifews.methods"
Prunes = Literal["edges", "weights", "depth"]
Kind = TypeVar("Kind", bound=type[Any])

_OWN: dict[str, type[Any]] = {}
_LOCAL: dict[str, type[Any]] = {}  # defined outside this folder: in scripts and in installed packages


@dataclass(frozen=True)
class Card:
    """What is known of a method without running it."""

    name: str
    prunes: tuple[Prunes, ...]
    """``depth``: nodes stop taking part at different hops."""
    backbones: tuple[str, ...]
    """Models it works on; the first is the default of `train` where the usual default is not among them."""
    paper: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `train` that have another default with this method."""
    once: tuple[str, ...] = ()
    """Settings of `train` that only this method has where features are propagated once."""
    layers: tuple[str, ...] = ()
    """Settings of `train` that only this method has where layers propagate."""
    tasks: tuple[str, ...] = ("nodes",)
    thresholds: bool = False
    """Whether it takes thresholds where layers propagate."""
    unpruned: bool = False
    """Whether it can also run with nothing removed."""

    def check(self, model: str, *, weights: bool = False) -> None:
        """Refuse a model, or pruning its weights, where this method cannot do it, naming methods that can."""
        if model not in self.backbones:
            raise InputError(
                f"method {self.name!r} works on model={_either(self.backbones)}, not on {model!r}; for {model} take "
                f"method={_either(_able(lambda card: model in card.backbones))}."
            )
        if weights and "weights" not in self.prunes:
            raise InputError(
                f"method {self.name!r} removes no weights; leave weight_sparsity and weight_threshold out, or take "
                f"method={_either(_able(lambda card: model in card.backbones and 'weights' in card.prunes))}."
            )


def method(
    name: str, *, prunes: tuple[Prunes, ...], backbones: tuple[str, ...], paper: str, **more: Any
) -> Callable[[Kind], Kind]:
    """Register a frozen dataclass as the method `name`; goes above ``@dataclass``. Arguments: fields of `Card`."""

    def register(kind: Kind) -> Kind:
        if not is_dataclass(kind):
            raise InputError(
                f"@method({name!r}) belongs above @dataclass(frozen=True), and {kind.__name__} is not a dataclass."
            )
        setattr(kind, "card", Card(name, prunes, backbones, paper, **more))  # noqa: B010 - the class declares none
        if kind.__module__.startswith(f"{methods.__name__}."):
            _OWN[name] = kind
        else:
            from unifews.methods.contract import upgraded

            _LOCAL[name] = kind = upgraded(kind)
        return kind

    return register


def names() -> list[str]:
    """The names of all methods, whether or not they can be loaded."""
    return sorted({*_own(), *_offered(), *_LOCAL})


def find(name: str) -> type[Any]:
    """The class of a method."""
    own, offered = _own(), _offered()
    if name in own:
        if name in offered or name in _LOCAL:
            whose = _whose(offered[name]) if name in offered else _LOCAL[name].__module__
            raise InputError(f"method {name!r} is one of unifews, and {whose} has another of that name; rename that one.")
        return own[name]
    if name in offered:
        return _load(offered[name])
    if name not in _LOCAL:
        raise unknown_name("method", name, names())
    return _LOCAL[name]


def resolve(wanted: Any) -> Any:
    """A method from its name, from a text such as ``"ndls:epsilon=0.05"``, or from itself."""
    if not isinstance(wanted, str):
        if isinstance(getattr(wanted, "card", None), Card) and not isinstance(wanted, type):
            return wanted
        raise InputError(f"`method` is a name such as 'unifews' or 'ndls:epsilon=0.05', or a method itself; got {wanted!r}.")
    return from_text(find(split_text(wanted)[0]), wanted)


def text_of(wanted: Any, *, full: bool = False) -> str:
    """The canonical text of a method: its name and the settings that differ from the defaults, or all of them."""
    found = resolve(wanted)
    return to_text(found.card.name, found, full=full)


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a method and their defaults."""
    return {item.name: item.default for item in fields(find(name))}


def cards() -> tuple[list[Card], dict[str, str]]:
    """The cards of all methods, and by name why others cannot be loaded."""
    good, bad = [], {}
    for name in names():
        try:
            good.append(find(name).card)
        except InputError as error:
            bad[name] = str(error)
    return good, bad


@cache
def _own() -> dict[str, type[Any]]:
    """Those of this folder; importing a module registers its method."""
    for found in pkgutil.iter_modules(methods.__path__):
        import_module(f"{methods.__name__}.{found.name}")
    return _OWN


def _offered() -> dict[str, EntryPoint]:
    return _offered_on(tuple(sys.path))


@cache
def _offered_on(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Cached by path: reading the entry points of all installed packages is slow, and a grid of trainings does it often."""
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(point: EntryPoint) -> type[Any]:
    try:
        kind = point.load()
    except Exception as error:  # code of another package may fail in any way
        raise InputError(
            f"method {point.name!r} of {_whose(point)} cannot be loaded ({type(error).__name__}: {error}); fix or uninstall it."
        ) from error
    card = getattr(kind, "card", None)
    if not isinstance(card, Card) or card.name != point.name:
        raise InputError(
            f"{point.value} of {_whose(point)} is not a method {point.name!r}: it must name a class under "
            f"@method({point.name!r}, ...)."
        )
    return kind  # type: ignore[no-any-return]


def _whose(point: EntryPoint) -> str:
    return f"package {point.dist.name}" if point.dist is not None else f"entry point {point.value}"


def _able(can: Callable[[Card], bool]) -> tuple[str, ...]:
    return tuple(card.name for card in cards()[0] if can(card))


def _either(options: tuple[str, ...]) -> str:
    return " or ".join(map(repr, options)) or "none of the known methods"
