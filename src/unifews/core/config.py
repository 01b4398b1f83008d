"""One mechanism for every configuration: frozen dataclasses whose fields are made by `option`.

From such a class come its validation (`validate`), its plain values in records and files (`to_dict`, `from_dict`), its TOML
table (`to_toml`), its one-line text (`to_text`, `from_text`: ``"ndls:epsilon=0.05"``), and, through `options_of`, command-line
flags and the pages that document them.

    @dataclass(frozen=True)
    class Sampling:
        \"\"\"How neighbours are sampled.\"\"\"

        fanout: int = option(10, "neighbours drawn per node", ge=1)
        replace: bool = option(False, "draw with replacement")

        def __post_init__(self) -> None:
            validate(self)

A field of another dataclass type is a *part*: a table of its own in TOML (`Recipe` in a training spec).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from unifews.errors import InputError, unknown_name

Config = TypeVar("Config")
Values = dict[str, Any]
"""Plain values by name, as JSON and TOML hold them."""
_KEY = "unifews.option"
_CONDITION = re.compile(r"(\w+)(!?=|)([\w-]*)")
_BOOLEANS = {"true": True, "false": False, "yes": True, "no": False}


class Condition(NamedTuple):
    """One alternative of `Option.needs`: ``name`` (it has a value), ``name=value`` or ``name!=value``."""

    name: str
    sign: str
    value: str

    def holds(self, value: Any) -> bool:
        return (str(value) == self.value) == (self.sign == "=") if self.sign else bool(value)

    def __str__(self) -> str:
        return "".join(self) if self.sign else f"`{self.name}`"


@dataclass(frozen=True)
class Option:
    """One field of a configuration class."""

    name: str
    type: Any
    """The resolved annotation, for example ``float | None`` or ``Literal["block", "node"]``."""
    default: Any
    """`dataclasses.MISSING` where a value is required."""
    help: str = ""
    group: str = ""
    """Heading under which a command lists its flag."""
    choices: Sequence[Any] = ()
    """Allowed values; those of a `Literal` annotation if none are given."""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    metavar: str = ""
    rare: bool = False
    """Whether a command lists its flag among the advanced ones."""
    needs: str = ""
    """When this option has an effect: ``"edge_sparsity|edge_threshold"`` (one of them has a value), ``"entries=node"``,
    ``"model!=mlp & basis!=input"``. Checked by `validate`, and by `check_needs` for options given by name."""
    part: str = ""
    """The field that holds the configuration this option belongs to (`options_of`), and its TOML table: ``"recipe"``."""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further keywords of `option`, for the class that declares it."""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types a value may have, `None` left out: ``(float,)``, ``(bool, Literal["sampled"])``."""
        return tuple(kind for kind in _members(self.type) if kind is not NoneType)

    @property
    def conditions(self) -> list[list[Condition]]:
        """`needs`: conditions that must all be met, each by one of its alternatives."""
        return [[Condition(*found) for found in _CONDITION.findall(part)] for part in self.needs.split("&")]

    @property
    def is_optional(self) -> bool:
        """Whether `None` is a value."""
        return NoneType in _members(self.type) or self.default is None

    @property
    def is_flag(self) -> bool:
        """Whether its values are True and False only."""
        return self.kinds == (bool,)

    def convert(self, value: Any) -> Any:
        """The value as plain Python, checked; raises `InputError` with `setting`, the name of this option."""
        given = value = value.item() if isinstance(value, np.generic) else value
        if value is None and self.is_optional:
            return None
        for kind in self.kinds:
            if kind is float and type(value) in (int, float):
                value = _as_float(value)
            if _fits(value, kind) and not self._outside(value):
                if kind in (int, float, str) and self.choices and value not in self.choices:
                    break
                return value
        if self.choices and bool not in self.kinds:
            raise unknown_name(f"`{self.name}`", str(value), map(str, self.choices), setting=self.name)
        raise InputError(f"`{self.name}` must be {self.expected}; got {_short(given)}.{self._hint(given)}", setting=self.name)

    def parse(self, text: str) -> Any:
        """A value written as text, as in ``epsilon=0.05`` or on a command line."""
        if self.is_optional and text.lower() == "none":
            return None
        if bool in self.kinds and text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        for kind in (int, float):
            if kind in self.kinds:
                try:
                    return self.convert(kind(text))
                except ValueError as error:
                    if isinstance(error, InputError):
                        raise
        return self.convert(text)

    @property
    def expected(self) -> str:
        """What a value is, as it reads after "must be": ``an integer of at least 1``."""
        bounds = self._range()
        names = {int: f"an integer{bounds}", float: f"a number{bounds}", bool: "True or False", str: "a string"}
        kinds = [names.get(kind) or self._other(kind) for kind in self.kinds]
        return " or ".join(kinds)

    def _other(self, kind: Any) -> str:
        values = get_args(kind) if get_origin(kind) is Literal else ()
        return " or ".join(map(repr, values)) or f"a {getattr(kind, '__name__', kind)}"

    def _range(self) -> str:
        low = self.ge if self.ge is not None else self.gt
        high = self.le if self.le is not None else self.lt
        if high in (None, math.inf):
            return "" if low is None else f" of at least {low:g}" if self.ge is not None else f" above {low:g}"
        if low is None:
            return f" of at most {high:g}" if self.le is not None else f" below {high:g}"
        return f" in {'[' if self.ge is not None else '('}{low:g}, {high:g}{']' if self.le is not None else ')'}"

    def _outside(self, value: Any) -> bool:
        """Whether a number is beyond the bounds; infinity needs the explicit bound ``le=math.inf``."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (
            (self.ge is not None and not value >= self.ge)
            or (self.gt is not None and not value > self.gt)
            or (self.le is not None and not value <= self.le)
            or (self.lt is not None and not value < self.lt)
            or (isinstance(value, float) and not math.isfinite(value) and not (self.le == math.inf and value > 0))
        )

    def _hint(self, value: Any) -> str:
        percent = self.lt == 1 and type(value) in (int, float) and 1 < value < 100
        return f" For {value:g} percent write {self.name}={value / 100:g}." if percent else ""


def option(
    default: Any,
    help: str,
    *,
    group: str = "",
    choices: Sequence[Any] = (),
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    metavar: str = "",
    rare: bool = False,
    needs: str = "",
    **extra: Any,
) -> Any:
    """A field of a configuration class; see `Option` for the arguments. ``default=MISSING`` makes it required."""
    about = dict(help=help, group=group, choices=choices, ge=ge, gt=gt, le=le, lt=lt, metavar=metavar, rare=rare, needs=needs)
    return dataclasses.field(default=default, metadata={_KEY: {**about, "extra": extra}})


def same_option(owner: type[Any], name: str, *, default: Any = ..., **changed: Any) -> Any:
    """The option of another configuration class, declared once there and used here too, with another default or heading."""
    found = next(item for item in fields(owner) if item.name == name)
    about = dict(found.metadata[_KEY])
    extra = about.pop("extra")
    return option(found.default if default is ... else default, **{**about, **extra, **changed})


def options_of(config: type[Any] | Any) -> Iterator[Option]:
    """The options of a configuration class or object, those of its parts in their place."""
    for found in _own_options(config if isinstance(config, type) else type(config)):
        if is_dataclass(found.type):
            yield from (dataclasses.replace(inner, part=inner.part or found.name) for inner in options_of(found.type))
        else:
            yield found


def _own_options(config: Any) -> tuple[Option, ...]:
    """One for each field of a class, parts among them."""
    return _find_options(config)


@lru_cache(maxsize=256)
def _find_options(config: Any) -> tuple[Option, ...]:
    hints = get_type_hints(config)
    found = []
    for item in fields(config):
        about = dict(item.metadata.get(_KEY, {}))
        literals = [value for kind in _members(hints[item.name]) if get_origin(kind) is Literal for value in get_args(kind)]
        about["choices"] = about.get("choices") or tuple(literals)
        found.append(Option(item.name, hints[item.name], _default_of(item), **about))
    return tuple(found)


def _default_of(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def validate(config: Any, *, unneeded: Collection[str] = ()) -> None:
    """Check every field and make its value plain Python (numpy scalars too); called from ``__post_init__``.

    Raises `InputError`, or `UnknownNameError` for a value that is none of the choices; ``error.setting`` names the field.
    A value other than the default that has no effect (`Option.needs`) is refused, unless the field is one of `unneeded`.
    """
    own = _own_options(type(config))
    for found in own:
        object.__setattr__(config, found.name, found.convert(getattr(config, found.name)))
    changed = (found.name for found in own if getattr(config, found.name) != found.default)
    check_needs(config, given=(name for name in changed if name not in unneeded))


def check_needs(*configs: Any, given: Iterable[str]) -> None:
    """Refuse options, of those given by name, that have no effect (`Option.needs`) beside the values of these configurations.

    Conditions on options that none of the configurations has are ignored; an option that is False asks for nothing.
    """
    options = {found.name: found for config in configs for found in _own_options(type(config))}
    values = {name: getattr(config, name) for config in configs for name in options if hasattr(config, name)}
    for name in (name for name in given if values.get(name, False) is not False):
        for either in options[name].conditions:
            known = [each for each in either if each.name in values]
            if not known or any(each.holds(values[each.name]) for each in known):
                continue
            other, needed = known[0], " or ".join(str(each) for each in known if each.sign != "!=")
            why = f"with {other.name}={values[other.name]}; leave it out" if other.sign else f"without {needed}; add it"
            instead = f", or write {needed}" * bool(needed) if other.sign else ", or leave it out"
            raise InputError(f"`{name}` has no effect {why}{instead}.", setting=name)


@contextmanager
def reported_as(**names: str) -> Iterator[None]:
    """Errors about these settings name them as the caller's own arguments: ``reported_as(edge_threshold="threshold")``."""
    try:
        yield
    except InputError as error:
        message = str(error)
        for setting, name in names.items():
            message = re.sub(rf"\b{setting}\b", name, message)
            error.setting = name if error.setting == setting else error.setting
        error.args = (message,)
        raise


# ------------------------------------------------------------------------------------------------------- plain values


def from_dict(config: type[Config], values: Mapping[str, Any], *, kind: str = "setting") -> Config:
    """An object of this class: missing fields take their defaults, unknown ones are refused with the nearest known name.

    Options of a part stand in its table, or among the others, where they take precedence. `kind`: what a message calls a key.
    """
    own = {found.name: found for found in _own_options(config)}
    inner = {found.name: found.part for found in options_of(config) if found.part and found.name not in own}
    direct: Values = {}
    parts: dict[str, Values] = {}
    for name, value in values.items():
        if name in own and is_dataclass(own[name].type) and isinstance(value, Mapping):
            parts[name] = {**value, **parts.get(name, {})}
        elif name in own:
            direct[name] = value
        elif name in inner:
            parts.setdefault(inner[name], {})[name] = value
        else:
            raise unknown_name(kind, name, [*own, *inner], setting=name)
    for name, table in parts.items():
        made = direct.get(name)
        table = table if made is None else to_dict(made) | table
        direct[name] = from_dict(own[name].type, table, kind=f"{kind} of `{name}`")
    for found in own.values():
        if found.default is MISSING and found.name not in direct:
            raise InputError(f"`{found.name}` is missing; it must be {found.expected}.", setting=found.name)
    return config(**direct)


def to_dict(config: Any) -> Values:
    """Plain values by field, parts as dictionaries."""
    return dataclasses.asdict(config)


def project(config: type[Config], source: Any, **given: Any) -> Config:
    """An object of this class with the values that `source` has under the same names, and those `given`."""
    names = [item.name for item in fields(config)]  # type: ignore[arg-type]
    return config(**{**{name: getattr(source, name) for name in names if hasattr(source, name)}, **given})


def to_toml(values: Any) -> str:
    """A TOML file of a configuration, or of plain values: those that are not None, then a table for each part."""
    values = values if isinstance(values, Mapping) else to_dict(values)
    tables = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    text = "".join(f"{name} = {_toml(value)}\n" for name, value in values.items() if value is not None and name not in tables)
    return text + "".join(f"\n[{name}]\n{to_toml(table)}" for name, table in tables.items())


def _toml(value: Any) -> str:
    """As in JSON, except characters past U+FFFF, for which TOML has no surrogate pairs, and DEL, which it wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---------------------------------------------------------------------------------------------------------------- text


def split_text(text: str) -> tuple[str, dict[str, str]]:
    """The name and the settings in ``name:key=value,key=value``.

    >>> split_text("ndls:epsilon=0.05,own=0.2")
    ('ndls', {'epsilon': '0.05', 'own': '0.2'})
    """
    name, _, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(",") if part.strip()]
    for key, equals, value in pairs:
        if not equals or not key.strip() or not value.strip():
            raise InputError(f"settings are written name:setting=value,setting=value; got {text!r}.")
    return name.strip(), {key.strip(): value.strip() for key, _, value in pairs}


def from_text(config: type[Config], text: str) -> Config:
    """An object of this class from ``name:key=value,key=value``; the name is used in messages only."""
    name, given = split_text(text)
    known = {found.name: found for found in _own_options(config)}
    for setting, value in given.items():
        if not known:
            raise InputError(f"{name!r} has no settings; got {setting}={value}.")
        if setting not in known:
            raise unknown_name(f"setting of {name!r}", setting, known)
    try:
        return config(**{setting: known[setting].parse(value) for setting, value in given.items()})
    except InputError as error:
        error.args = (f"in {text!r}, {error}",)
        raise


def to_text(name: str, config: Any, *, full: bool = False) -> str:
    """The text that `from_text` makes this object of: the name and what differs from the defaults, or all options."""
    values = [(found, getattr(config, found.name)) for found in _own_options(type(config))]
    written = [f"{found.name}={_written(value)}" for found, value in values if full or value != found.default]
    return name + (":" if written else "") + ",".join(written)


def _written(value: Any) -> str:
    value = value.item() if isinstance(value, np.generic) else value
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


# --------------------------------------------------------------------------------------------------------------- types


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(kind))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) if isinstance(kind, type) else True  # a generic alias or a protocol: taken as it is


def _as_float(value: int | float) -> int | float:
    try:
        return float(value)
    except OverflowError:  # an integer of more digits than a float has: refused as it is
        return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
