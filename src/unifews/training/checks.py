"""Settings as plain Python numbers: two ways to write a value make one spec and one id. And features that are all numbers."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from unifews.core.checks import count
from unifews.errors import InputError

_CHUNK = 1 << 22  # values that are looked at at a time: features may be a map of a file larger than memory


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
    starts = getattr(x, "indptr", None)
    values = x if starts is None else x.data
    step = max(1, _CHUNK // (x.shape[1] or 1)) if starts is None else _CHUNK
    bad, first = 0, -1
    for at in range(0, len(values), step):
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(np.asarray(values[at : at + step], dtype=np.float32))
        if first < 0 and wrong.any():
            first = at + int(np.argwhere(wrong)[0][0])
        bad += int(wrong.sum())
    if bad:
        row = first if starts is None else int(np.searchsorted(starts, first, side="right")) - 1
        raise InputError(
            f"the features of {name} hold {count(bad, 'NaN or infinite value')}, the first in row {row:,} (float32 ends at "
            f"3.4e38); replace them first, for example with np.nan_to_num(x)."
        )
