"""Settings as plain Python numbers: two ways to write a value make one spec and one id."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from unifews.errors import InputError


def whole(name: str, value: Any, least: int) -> int:
    """An integer, numpy's own included."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"`{name}` is a whole number of at least {least}; got {value!r}.")
    return int(value)


def real(name: str, value: Any, most: float = math.inf, *, including: bool = False) -> float:
    """A number from 0 to below `most`, or up to it."""
    plain = not isinstance(value, bool) and isinstance(value, Real)
    if not plain or not (0 <= value < most or (including and value == most)):
        end = "" if most == math.inf else f" to {'' if including else 'below '}{most:g}"
        raise InputError(f"`{name}` is a number from 0{end}; got {value!r}.")
    return float(value)
