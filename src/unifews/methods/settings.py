"""Settings of methods: as text, `ndls:epsilon=0.05,own=0.2`, and as checked numbers."""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Integral, Real
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from unifews.errors import InputError, unknown_name

_WORDS = {"true": True, "false": False, "yes": True, "no": False}


def split_text(text: str) -> tuple[str, dict[str, str]]:
    """The name and the settings in `name:key=value,key=value`.

    >>> split_text("ndls:epsilon=0.05,own=0.2")
    ('ndls', {'epsilon': '0.05', 'own': '0.2'})
    """
    name, _, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(",") if part.strip()]
    for key, equals, value in pairs:
        if not equals or not key.strip() or not value.strip():
            raise InputError(f"a method's settings are written name:setting=value,setting=value; got {text!r}.")
    return name.strip(), {key.strip(): value.strip() for key, _, value in pairs}


def build(kind: type[Any], name: str, given: dict[str, str]) -> Any:
    """A method of this class with settings given as text."""
    hints = get_type_hints(kind)
    known = {item.name: hints[item.name] for item in fields(kind)}
    for setting in given:
        if not known:
            raise InputError(f"method {name!r} has no settings; got {setting}={given[setting]}.")
        if setting not in known:
            raise unknown_name(f"setting of method {name!r}", setting, known)
    return kind(**{setting: _value(setting, value, known[setting]) for setting, value in given.items()})


def as_text(name: str, method: Any, *, full: bool = False) -> str:
    """The text that `build` makes this method of: its name and what differs from the defaults, or all settings."""
    values = [(item, getattr(method, item.name)) for item in fields(method)]
    told = [f"{item.name}={_written(value)}" for item, value in values if full or value != item.default]
    return name + (":" if told else "") + ",".join(told)


def check_number(name: str, value: Any, least: float = 0.0, most: float = math.inf, *, above: bool = False) -> float:
    """A number from `least` (or above it) to `most`."""
    plain = isinstance(value, Real) and not isinstance(value, bool)
    if not plain or not (least < value if above else least <= value) or not value <= most or math.isinf(value):
        start = f"above {least:g}" if above else f"from {least:g}"
        raise InputError(f"`{name}` is a number {start}{'' if most == math.inf else f' to {most:g}'}; got {value!r}.")
    return float(value)


def check_count(name: str, value: Any, of: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"`{name}` is a whole number{of}, at least 1; got {value!r}.")


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InputError(f"`{name}` is true or false; got {value!r}.")


def _value(name: str, text: str, kind: Any) -> Any:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    if bool in kinds:
        if text.lower() not in _WORDS:
            raise InputError(f"`{name}` is true or false; got {text!r}.")
        return _WORDS[text.lower()]
    for each in (int, float):
        if each in kinds:
            try:
                return each(text)
            except ValueError:
                continue
    if str in kinds:
        return text
    raise InputError(f"`{name}` is a number; got {text!r}.")


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return repr(int(value) if isinstance(value, Integral) else value) if isinstance(value, Real) else str(value)
