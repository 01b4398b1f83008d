"""What a record of the ledger must hold, checked once when it is read: whoever reads records behind it can rely on that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from unifews.training.metrics import NAMES

Rule = tuple[str, Callable[[Any], bool]] | Mapping[str, Any] | list[Any]
"""What a value is, in words and as a test; or the rules of its keys, "?" after those that may be missing, "*" for any; or
that of its items."""

_DEPTH = 32  # of values in values
_LARGEST = 10**30  # of numbers that are computed with

_TEXT: Rule = "a text", lambda value: isinstance(value, str)
_NUMBER: Rule = "a number", lambda value: type(value) in (int, float) and abs(value) <= _LARGEST
_COUNT: Rule = "a number from 0", lambda value: type(value) in (int, float) and 0 <= value <= _LARGEST
_WHOLE: Rule = "a whole number", lambda value: type(value) is int
_NUMBER_OR_NONE: Rule = "a number or null", lambda value: value is None or type(value) in (int, float)
_PLAIN: Rule = "a text or a number", lambda value: isinstance(value, str | int | float)
_POINT: Rule = "a number or a text", lambda value: isinstance(value, str | int | float | None)
_SEEDS: Rule = "a list of seeds", lambda value: isinstance(value, list) and bool(value)
_METRIC: Rule = f"one of {', '.join(NAMES)}", lambda value: isinstance(value, str) and value in NAMES

_MADE = {
    "versions": {"*": _PLAIN},
    "machine": {"system": _PLAIN, "processor": _PLAIN, "cores": _PLAIN, "kernel": _PLAIN},
}
TRAINING: Rule = {
    "id": _TEXT,
    "finished": _TEXT,
    "metric": _METRIC,
    "spec": {
        "dataset": _TEXT, "model": _TEXT, "method": _TEXT, "seed": _WHOLE, "edge_sparsity": _NUMBER_OR_NONE,
        "edge_threshold": _NUMBER_OR_NONE, "weight_sparsity": _NUMBER_OR_NONE, "weight_threshold": _NUMBER_OR_NONE,
        "task?": _TEXT, "hops?": _WHOLE, "recipe?": {"epochs?": _NUMBER},
    },
    "dataset": {"name": _TEXT, "source": _TEXT, "nodes": _COUNT, "edges": _COUNT, "features": _COUNT, "classes": _COUNT},
    "scores": {"test": _NUMBER, "test_std": _NUMBER},
    "seeds": _SEEDS,
    "seconds": {"propagate": _NUMBER, "train": _NUMBER},
    "trace": {
        "macs": _COUNT, "dense_macs": _COUNT, "basis_macs": _COUNT, "transform_macs": _COUNT, "edge_sparsity": _NUMBER,
        "weight_sparsity": _NUMBER, "notes": [_TEXT],
    },
    **_MADE,
}  # fmt: skip
"""Of `Run.to_dict`, as far as it is read again."""
SEED: Rule = {"seed": _WHOLE, "test": _NUMBER}
"""Of each of its seeds."""
MEASUREMENT: Rule = {
    "id": _TEXT, "measurement": _TEXT, "values": {"*": _NUMBER_OR_NONE}, "curves": {"*": {"x": [_POINT], "y": [_POINT]}},
    "finished?": _TEXT, **{f"{name}?": rule for name, rule in _MADE.items()},
}  # fmt: skip
"""Of `unifews.experiments.measurements`."""
FINISHED: Rule = {
    "seed": _WHOLE, "train": _NUMBER, "val": _NUMBER, "test": _NUMBER, "epoch": _WHOLE, "epochs": _WHOLE, "seconds": _NUMBER,
    "kept": [_WHOLE], "trace?": ("a trace or null", lambda value: isinstance(value, dict | None)),
}  # fmt: skip
"""Of a seed of an unfinished run (`SeedResult`)."""


def is_training(record: Mapping[str, Any]) -> bool:
    """Whether a record is one of a training, complete or not; a ledger may hold others beside them."""
    return not {"spec", "scores", "seeds", "trace"}.isdisjoint(record)


def problem(record: Any) -> str | None:
    """Why something that JSON gave is no record, in words that go on after "line 3"; None for one that is."""
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
    """Where a value is not as its rule says."""
    if isinstance(rule, tuple):
        what, fits = rule
        return None if fits(value) else f"has {_said(value)} in `{place}`, which is {what}"
    if isinstance(rule, list):
        if not isinstance(value, list):
            return f"has {_said(value)} in `{place}`, which is a list"
        return next((found for item in value if (found := mismatch(item, rule[0], place))), None)
    if not isinstance(value, dict):
        return f"has {_said(value)} in `{place or 'it'}`, which has several values by name"
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


def _said(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def unreadable(values: Any) -> str | None:
    """What nothing that this library writes has: values nested without end, numbers that are none, halves of letters."""
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
