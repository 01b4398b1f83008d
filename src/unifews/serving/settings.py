"""Settings that a file gives: numbers, flags and names such as a model can have, or it is unsound."""

from __future__ import annotations

import math
from typing import Any

from unifews.serving.program import Unsound

WIDEST = 1 << 24


def sizes(words: dict[str, Any], tensors: int) -> dict[str, Any]:
    """The sizes that every model has, checked; `tensors` there are for it bound how many layers it has."""
    for name in ("inputs", "outputs", "width"):
        if type(words.get(name)) is not int or not 1 <= words[name] <= WIDEST:
            raise Unsound(f"cannot have {name} = {str(words.get(name))[:40]!r}")
    layers, dropout = words.get("layers"), words.get("dropout")
    if type(layers) is not int or not 1 <= layers <= tensors:
        raise Unsound(f"cannot have {str(layers)[:40]!r} layers with {tensors:,} tensors")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise Unsound(f"cannot have dropout = {str(dropout)[:40]!r}")
    return {name: words[name] for name in ("inputs", "outputs", "width", "layers", "dropout")}


def like(value: Any, default: Any, name: str) -> Any:
    """A number of the kind that a setting has by default."""
    fits = type(value) is int if isinstance(default, int) else type(value) in (int, float) and math.isfinite(value)
    if not fits or not abs(value) <= WIDEST:
        raise Unsound(f"cannot have {name} = {str(value)[:40]!r}")
    return value


def one_of(value: Any, choices: tuple[Any, ...], name: str) -> Any:
    """One of these values, and of its kind: 1 is not True."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise Unsound(f"cannot have {name} = {str(value)[:40]!r}")
    return value
