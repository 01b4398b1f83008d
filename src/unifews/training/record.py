"""The format of ledger records, checked when they are read, so that code which uses them can rely on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from unifews.core.config import Values
from unifews.training.metrics import NAMES

Rule = tuple[str, Callable[[Any], bool]] | Mapping[str, Any] | list[Any]
"""A description of a value and its test; or the rules of its keys, "?" after those that may be missing, "*" for any; or the
rule of its items."""
Record = Values
"""A record as JSON holds it."""

_DEPTH = 32  # of nested values
_LARGEST = 10**30  # absolute value of numbers

_TEXT: Rule = "a text", lambda value: isinstance(value, str)
_NUMBER: Rule = "a number", lambda value: type(value) in (int, float) and abs(value) <= _LARGEST
_COUNT: Rule = "a number from 0", lambda value: type(value) in (int, float) and 0 <= value <= _LARGEST
_WHOLE: Rule = "a whole number", lambda value: type(value) is int
_NUMBER_OR_NONE: Rule = "a number or null", lambda value: value is None or type(value) in (int, float)
_PLAIN: Rule = "a text or a number", lambda value: isinstance(value, str | int | float)
_POINT: Rule = "a number or a text", lambda value: isinstance(value, str | int | float | None)
_SEEDS: Rule = "a list of seeds", lambda value: isinstance(value, list) and bool(value)
_METRIC: Rule = f"one of {', '.join(NAMES)}", lambda value: isinstance(value, str) and value in NAMES


def _all(names: str, rule: Rule) -> dict[str, Rule]:
    """The same rule for several keys."""
    return dict.fromkeys(names.split(), rule)


_MADE: dict[str, Rule] = {"versions": {"*": _PLAIN}, "machine": _all("system processor cores kernel", _PLAIN)}
_AMOUNTS = _all("edge_sparsity edge_threshold max_error? weight_sparsity weight_threshold", _NUMBER_OR_NONE)
TRAINING: Rule = {
    **_all("id finished", _TEXT),
    "metric": _METRIC,
    "spec": {
        **_all("dataset model method task?", _TEXT),
        **_AMOUNTS,
        **_all("seed hops?", _WHOLE),
        "recipe?": {"epochs?": _NUMBER},
    },
    "dataset": {**_all("name source", _TEXT), **_all("nodes edges features classes", _COUNT)},
    "scores": _all("test test_std", _NUMBER),
    "seeds": _SEEDS,
    "seconds": _all("propagate train", _NUMBER),
    "trace": {
        **_all("macs dense_macs basis_macs transform_macs", _COUNT),
        **_all("edge_sparsity weight_sparsity estimated_error?", _NUMBER),
        "notes": [_TEXT],
    },
    **_MADE,
}
"""The parts of a training record that are read again."""
SEED: Rule = {"seed": _WHOLE, "test": _NUMBER}
"""Each of its seeds."""
MEASUREMENT: Rule = {
    **_all("id measurement finished?", _TEXT),
    "values": {"*": _NUMBER_OR_NONE},
    "curves": {"*": {"x": [_POINT], "y": [_POINT]}},
    **{f"{name}?": rule for name, rule in _MADE.items()},
}
"""A measurement (`unifews.experiments.measurements`)."""
FINISHED: Rule = {
    **_all("seed epoch epochs", _WHOLE),
    **_all("train val test seconds", _NUMBER),
    "kept": [_WHOLE],
    "trace?": ("a trace or null", lambda value: isinstance(value, dict | None)),
}
"""A seed of an unfinished run (`SeedResult`)."""


def is_training(record: Mapping[str, Any]) -> bool:
    """Whether this is the record of a training, complete or not; a ledger also holds measurements."""
    return not {"spec", "scores", "seeds", "trace"}.isdisjoint(record)


def problem(record: Any) -> str | None:
    """Why a value is no record, as it reads after "line 3"; None if it is one."""
    if not isinstance(record, dict):
        return "is not the record of a run"
    if not isinstance(record.get("id"), str):
        return "is not the record of a run: it has no `id`"
    found = unreadable(record)
    if found is None and is_training(record):
        found = mismatch(record, TRAINING)
        for seed in record["seeds"] if found is None else ():
            found = found or mismatch(seed, SEED, "seeds")
    elif found is None and not {"measurement", "values", "curves"}.isdisjoint(record):
        found = mismatch(record, MEASUREMENT)
    return found


def mismatch(value: Any, rule: Rule, place: str = "") -> str | None:
    """How a value violates its rule; None if it does not."""
    if isinstance(rule, tuple):
        what, fits = rule
        return None if fits(value) else f"has {_short(value)} in `{place}`, which is {what}"
    if isinstance(rule, list):
        if not isinstance(value, list):
            return f"has {_short(value)} in `{place}`, which is a list"
        return next((found for item in value if (found := mismatch(item, rule[0], place))), None)
    if not isinstance(value, dict):
        return f"has {_short(value)} in `{place or 'it'}`, which has several values by name"
    for key, inner in rule.items():
        names = value if key == "*" else [key.rstrip("?")]
        for name in names:
            inside = f"{place}.{name}" if place else name
            if name in value:
                if found := mismatch(value[name], inner, inside):
                    return found
            elif not key.endswith("?"):
                return f"lacks `{inside}`"
    return None


def _short(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def unreadable(values: Any) -> str | None:
    """Values that this library never writes: deep nesting, NaN, infinity, huge integers, lone surrogates."""
    level: list[Any] = [values]
    for _ in range(_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += [*value, *value.values()]
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, float) and not math.isfinite(value):
                return f"has {value} where a number belongs"
            elif isinstance(value, int) and abs(value) > _LARGEST:
                return "has a number of too many digits"
            elif isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
                return "has a text that is no text (half of a surrogate pair)"
        if not inner:
            return None
        level = inner
    return "has values nested too deeply"
