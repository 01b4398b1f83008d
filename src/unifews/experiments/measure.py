"""Measurements that are not trainings: functions of a dataset, found by name, carried out and kept like trainings.

    @measure("clock", cost=5.0)
    def clock(data: Dataset, *, sparsity: float, trials: int = 3) -> dict[str, Any]: ...

A measurement returns numbers by name, and curves as ``{"x": [...], "y": [...]}``. Its keywords are its settings.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from time import perf_counter
from typing import Any

from unifews import __version__, experiments
from unifews.datasets.dataset import Dataset
from unifews.errors import unknown_name
from unifews.experiments.cell import dataset_of, epoch_cost
from unifews.training.fingerprint import fingerprint
from unifews.training.ledger import Ledger
from unifews.training.result import FORMAT, machine, versions
from unifews.training.spec import TrainSpec

Values = dict[str, Any]
Function = Callable[..., Values]


@dataclass(frozen=True)
class Kind:
    """A measurement there is."""

    function: Function
    cost: float
    """How long one takes beside an epoch of training a decoupled model on the same dataset."""
    alone: bool
    """Whether nothing else may run beside it: it takes times."""


_KINDS: dict[str, Kind] = {}


def measure(name: str, *, cost: float = 20.0, alone: bool = False) -> Callable[[Function], Function]:
    """The decorated function measures what has this name; nothing else has to know of it."""

    def put(function: Function) -> Function:
        _KINDS[name] = Kind(function, cost, alone)
        return function

    return put


@cache
def _scan() -> None:
    for found in pkgutil.iter_modules(experiments.__path__):
        import_module(f"{experiments.__name__}.{found.name}")


def kind_of(name: str) -> Kind:
    _scan()
    if name not in _KINDS:
        raise unknown_name("measurement", name, _KINDS)
    return _KINDS[name]


@dataclass(frozen=True)
class Measurement:
    """One measurement on one dataset, as a cell of `run_cells`."""

    name: str
    settings: Mapping[str, Any]
    source: str | Dataset
    id: str
    what: str
    cost: float

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any]) -> Measurement:
        """Checked; `settings` name the dataset too."""
        kind, rest = kind_of(name), dict(settings)
        source = rest.pop("dataset")
        known = dict(list(inspect.signature(kind.function).parameters.items())[1:])
        for setting in rest:
            if setting not in known:
                raise unknown_name(f"setting of measurement {name!r}", setting, known)
        data = dataset_of(source)
        defaults = {setting: each.default for setting, each in known.items() if each.default is not each.empty}
        how = inspect.getsource(inspect.getmodule(kind.function) or kind.function)  # measured in another way, it is another
        text = json.dumps([name, defaults | rest, fingerprint(data), __version__, how], sort_keys=True)
        told = " ".join(f"{setting} {value}" for setting, value in rest.items())
        return cls(
            name, rest, source, hashlib.sha256(text.encode()).hexdigest()[:12], f"{data.name} {name} {told}".strip(),
            kind.cost * epoch_cost(data, TrainSpec.of({"dataset": data.name})),
        )  # fmt: skip

    def run(self, ledger: Ledger, tell: Callable[[float, str], None]) -> dict[str, Any]:
        """See `unifews.experiments.grid.Cell`."""
        data = dataset_of(self.source)
        tell(0.0, "measuring")
        began = perf_counter()
        found = kind_of(self.name).function(data, **self.settings)
        curves = {name: value for name, value in found.items() if isinstance(value, dict)}
        record = {
            "format": FORMAT,
            "id": self.id,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "measurement": self.name,
            "settings": {"dataset": data.name, **self.settings},
            "values": {name: value for name, value in found.items() if name not in curves},
            "curves": curves,
            "seconds": {"measure": perf_counter() - began},
            "versions": versions(),
            "machine": machine(),
        }
        ledger.append(record)
        return record
