"""`propagate(..., max_error=ε)`: the plan, the run and its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from unifews.core.entry import Amounts
from unifews.core.schemes import SpectralFilter
from unifews.core.trace import Trace
from unifews.errors import InputError
from unifews.kernels import describe
from unifews.kernels.formats import FORMATS, row_format
from unifews.propagation.config import PropagationConfig
from unifews.propagation.features import FeatureMatrix
from unifews.propagation.lanczos import MOST_HOPS, Goal, NotReached, Outcome, lanczos
from unifews.propagation.operator import HopOperator
from unifews.resources import format_bytes
from unifews.storage.folder_format import Json

_SHORT = 3  # hops of a scheme for which fewer are hardly possible


@dataclass(frozen=True)
class ErrorPlan:
    """How a propagation reached its error: hops and row format of each tile of columns."""

    tolerance: float
    hops: tuple[int, ...]
    formats: tuple[str, ...]
    redone: int
    """Columns that were propagated again in a wider format."""
    bytes_moved: int
    """Rows that were gathered, read and written, over all hops."""

    def to_dict(self) -> Json:
        return {
            "tolerance": self.tolerance,
            "hops": list(self.hops),
            "formats": list(self.formats),
            "redone": self.redone,
            "bytes_moved": self.bytes_moved,
        }

    def __str__(self) -> str:
        kinds = " and ".join(name for name in FORMATS if name in self.formats)
        least, most = min(self.hops), max(self.hops)
        hops = f"{most}" if least == most else f"{least} to {most}"
        again = f", {self.redone} columns again in a wider format" if self.redone else ""
        return f"{hops} hops on rows of {kinds}{again}; {format_bytes(self.bytes_moved)} moved"


def check(amounts: Amounts, config: PropagationConfig, scheme: object) -> None:
    """Refuse options that a propagation by its error cannot have."""
    if amounts.max_error is None:
        if isinstance(scheme, SpectralFilter):
            raise InputError(
                f"{type(scheme).__name__} has no number of hops; say which error is allowed, such as max_error=0.05.",
                setting="max_error",
            )
        for name in ("degree", "precision"):
            if getattr(config, name) is not None:
                raise InputError(f"`{name}` is for propagation by its error; give max_error=0.05 too.", setting=name)
        return
    if amounts.max_error == 0:
        raise InputError("`max_error` is 0, and float32 rounds; leave it out for unpruned propagation.", setting="max_error")
    refused = {
        "every_hop": (config.every_hop, "has no embedding of each hop"),
        "inherit": (config.inherit, "removes no entries that later hops could leave out"),
        "entries": (config.entries != "block", "decides about no entries"),
        "rank": (config.rank is not None, "propagates all columns"),
        "focus": (config.focus is not None, "decides about no entries"),
        "deflate": (config.deflate is not None, "splits off the stationary part by itself"),
    }
    for name, (given, why) in refused.items():
        if given and not config.is_proven:
            raise InputError(f"max_error {why}; leave out `{name}`, or write edge_sparsity= instead of max_error=.", setting=name)


def is_wanted(op: HopOperator, amounts: Amounts, config: PropagationConfig) -> bool:
    """Whether the recurrence is the plan; else all hops are, whose error is 0, or those of a proven bound."""
    if amounts.max_error is None or config.is_proven:
        return False
    if isinstance(op.scheme, SpectralFilter):
        if not op.graph.is_symmetric:
            raise InputError(
                f"{type(op.scheme).__name__} needs an undirected graph; use graph.undirected(), or a polynomial such as Appnp()."
            )
        return True
    return config.degree is not None or (op.hops > _SHORT and op.graph.num_edges > 0 and op.graph.is_symmetric)


def by_error(
    op: HopOperator,
    features: FeatureMatrix,
    max_error: float,
    config: PropagationConfig,
    progress: Callable[[int, int], None] | None,
    began: float,
) -> tuple[Outcome, Trace, ErrorPlan] | None:
    """Propagate until the error is at most ε; None where so many hops are needed that the scheme's own are better."""
    formats = tuple(FORMATS.values()) if config.precision is None else (row_format(config.precision),)
    if config.degree is not None and config.degree > min(op.hops, MOST_HOPS):
        raise InputError(
            f"`degree` is {config.degree}, more than the {min(op.hops, MOST_HOPS)} hops there are; give fewer, or leave it out.",
            setting="degree",
        )
    try:
        outcome = lanczos(op, features, Goal(max_error, config.error_norm, config.degree, formats), progress)
    except NotReached as error:
        if isinstance(op.scheme, SpectralFilter):
            raise InputError(
                f"after {MOST_HOPS} hops the error is still {error.args[0]:.2g}, not {max_error:g}; allow a larger `max_error`.",
                setting="max_error",
            ) from None
        return None
    plan = _plan(op, outcome, max_error)
    planned = 0 if isinstance(op.scheme, SpectralFilter) else op.hops
    hops = outcome.hops(op.graph.num_edges, planned)
    error = outcome.error(config.error_norm)
    trace = Trace(
        tuple(hops),
        requested=f"max error {max_error:g}",
        kernel=describe(op.threads),
        setup_seconds=max(perf_counter() - began - sum(hop.seconds for hop in hops), 0.0),
        notes=(f"estimated error {error:.3g} of {max_error:g} allowed: {plan}",),
        estimated_error=error,
    )
    return outcome, trace, plan


def _plan(op: HopOperator, outcome: Outcome, max_error: float) -> ErrorPlan:
    n, m, moved = op.graph.num_nodes, op.graph.num_edges, 0
    for tile in outcome.tiles:
        row = tile.format.stride(tile.shape.blocks)
        own = tile.degree * (tile.degree + 1) // 2 + tile.degree + 1  # iterates read and written by the rows themselves
        moved += row * (tile.degree * m + n * own) + 8 * n * tile.shape.width
    return ErrorPlan(
        max_error,
        tuple(tile.degree for tile in outcome.tiles),
        tuple(tile.format.name for tile in outcome.tiles),
        sum(len(tile.redone) for tile in outcome.tiles),
        int(np.int64(moved)),
    )
