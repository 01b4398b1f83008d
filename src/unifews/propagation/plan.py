"""The plan of a propagation to an allowed error: what was chosen, what else was possible, and how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from unifews.errors import InputError
from unifews.resources import format_bytes

Method = Literal["lanczos", "chebyshev", "unpruned"]
METHODS: tuple[Method, ...] = ("unpruned", "chebyshev", "lanczos")
FORM = 1
"""Of a plan as a dict; others are refused."""


@dataclass(frozen=True)
class Step:
    """A tile: its columns, and how they were propagated."""

    column: int
    width: int
    format: str
    hops: int
    stops: tuple[int, ...] = ()
    """Of a Chebyshev polynomial, degrees before the last at which the error was looked at."""
    redone: tuple[int, ...] = ()
    """Columns of the tile that were propagated again in a wider format, counted from its first."""
    again: tuple[Step, ...] = ()
    """How; their columns are counted from the first of `redone`."""

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "again": [each.to_dict() for each in self.again]}

    @classmethod
    def of_dict(cls, kept: Mapping[str, Any]) -> Step:
        again = tuple(cls.of_dict(each) for each in kept["again"])
        return cls(**{**kept, "stops": tuple(kept["stops"]), "redone": tuple(kept["redone"]), "again": again})

    def moved(self, column: int) -> Step:
        """The same where columns are counted from `column`."""
        return replace(self, column=self.column - column)


@dataclass(frozen=True)
class Alternative:
    """A way to propagate, and what it is expected to take."""

    method: Method
    format: str
    hops: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.method} {_seconds(self.seconds)} ({self.hops} hops, {self.format})"


@dataclass(frozen=True)
class ErrorPlan:
    """How a propagation reached its error; `propagate(plan=...)` repeats it."""

    tolerance: float
    method: Method
    """Lanczos recurrences per column (docs/adr/0027), a Chebyshev polynomial (0016), or the hops of the scheme."""
    steps: tuple[Step, ...]
    """The tiles of columns, in order."""
    bytes_moved: int
    """Rows that were gathered, read and written, over all hops."""
    task: dict[str, Any]
    """What it is a plan for: numbers of nodes, edges and features, the scheme, and settings."""
    considered: tuple[Alternative, ...] = field(default=(), compare=False)
    """What was possible, with the seconds that the cost model expected."""
    seconds: float | None = field(default=None, compare=False)
    """What the run took."""
    costs: str = field(default="", compare=False)
    """Where the numbers of the cost model are from."""

    @property
    def hops(self) -> tuple[int, ...]:
        """Of each tile."""
        return tuple(step.hops for step in self.steps)

    @property
    def formats(self) -> tuple[str, ...]:
        """The row format of each tile."""
        return tuple(step.format for step in self.steps)

    @property
    def redone(self) -> int:
        """Columns that were propagated again in a wider format."""
        return sum(len(step.redone) for step in self.steps)

    @property
    def predicted_seconds(self) -> float | None:
        """Of the method that was chosen."""
        return next((each.seconds for each in self.considered if each.method == self.method), None)

    @property
    def unpruned_seconds(self) -> float | None:
        """Predicted; None where the scheme has no hops of its own, or nothing was predicted."""
        return next((each.seconds for each in self.considered if each.method == "unpruned"), None)

    def __str__(self) -> str:
        kinds = " and ".join(dict.fromkeys(self.formats))
        least, most = min(self.hops), max(self.hops)
        hops = f"{most}" if least == most else f"{least} to {most}"
        again = f", {self.redone} columns again in a wider format" if self.redone else ""
        name = {"lanczos": "", "chebyshev": " of a Chebyshev polynomial", "unpruned": ", unpruned"}[self.method]
        return f"{hops} hops{name} on rows of {kinds}{again}; {format_bytes(self.bytes_moved)} moved"

    @property
    def forecast(self) -> str:
        """What was expected, in one line; empty where nothing was."""
        if not self.considered:
            return ""
        return f"expected: {', '.join(map(str, self.considered))}; costs {self.costs}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `propagate(plan=...)` takes it."""
        return {
            "form": FORM,
            **vars(self),
            "steps": [step.to_dict() for step in self.steps],
            "considered": [vars(each) for each in self.considered],
            "hops": list(self.hops),
            "formats": list(self.formats),
            "redone": self.redone,
            "predicted_seconds": self.predicted_seconds,
            "unpruned_seconds": self.unpruned_seconds,
        }

    @classmethod
    def of_dict(cls, kept: Mapping[str, Any]) -> ErrorPlan:
        if kept.get("form") != FORM:
            raise InputError(
                f"`plan` has form {kept.get('form')!r}, and this version reads {FORM}; plan again.", setting="plan"
            )
        try:
            plan = cls(
                float(kept["tolerance"]),
                kept["method"],
                tuple(Step.of_dict(each) for each in kept["steps"]),
                int(kept["bytes_moved"]),
                dict(kept["task"]),
                tuple(Alternative(**each) for each in kept["considered"]),
                kept["seconds"],
                kept["costs"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"`plan` is damaged ({error}); give out.plan or out.plan.to_dict().", setting="plan") from error
        if plan.method not in METHODS or not plan.steps:
            raise InputError("`plan` is damaged; give out.plan or out.plan.to_dict().", setting="plan")
        return plan

    def check(self, task: Mapping[str, Any]) -> None:
        """Refuse a plan that was made for something else than `task`."""
        for name, value in task.items():
            if self.task.get(name) != value:
                raise InputError(
                    f"`plan` cannot be repeated here: it is for {name.replace('_', ' ')} {self.task.get(name)!r}, and this is "
                    f"{value!r}. Leave out `plan` to make another.",
                    setting="plan",
                )


def given(plan: Any) -> ErrorPlan:
    """The plan that a caller gives: `out.plan`, or that as a dict."""
    if isinstance(plan, ErrorPlan):
        return plan
    if isinstance(plan, Mapping):
        return ErrorPlan.of_dict(plan)
    raise InputError(f"`plan` is a {type(plan).__name__}; give out.plan or out.plan.to_dict().", setting="plan")


def _seconds(value: float) -> str:
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
