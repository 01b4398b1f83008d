"""Settings as plain Python numbers: two ways to write a value make one spec and one id. And features that are all numbers."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from unifews.core.checks import count, not_finite
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


def check_finite(name: str, x: Any) -> None:
    """The features of a dataset of this name, dense or scipy CSR, are numbers that float32 can hold."""
    bad, row = not_finite(x)
    if bad:
        raise InputError(
            f"the features of {name} hold {count(bad, 'NaN or infinite value')}, the first in row {row:,} (float32 ends at "
            f"3.4e38); replace them first, for example with np.nan_to_num(x)."
        )
