"""How features are propagated; how much is removed is an `Amounts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unifews.core.config import option, validate
from unifews.core.entry import Entries

BasisName = Literal["principal", "input"]
ErrorNorm = Literal["columns", "frobenius"]
Precision = Literal["int4", "int8", "bfloat16", "float32"]
BY_ERROR = ("max_error", "error_norm", "degree", "precision")
"""Settings of a propagation to an allowed error (docs/adr/0027)."""
REMOVED = {
    "deflate": "the stationary part is propagated exactly in the principal basis and not in the input basis (ADR 8)",
    "focus": "every scheme has its own; for another write a class such as `class Equal(Appnp): focus = 0.0` (ADR 7)",
}
"""Arguments of `propagate` in 0.2, and what is done instead."""


@dataclass(frozen=True)
class PropagationConfig:
    """The options of `propagate` that decide its result, apart from the scheme and from how much is removed."""

    entries: Entries = option(
        "block",
        "what one decision covers: of an edge 16 features (block), one (feature), all (node); a column (unit)",
        group="Pruning",
    )
    basis: BasisName = option(
        "principal",
        "basis in which edges are pruned: PCA (principal) or that of the features (input)",
        group="Pruning",
    )
    rank: int | None = option(
        None,
        "principal components to propagate; the others count as removed (default: chosen from the data)",
        ge=1,
        group="Pruning",
        metavar="K",
        needs="basis!=input",
    )
    inherit: bool = option(
        False,
        "entries removed at one hop or layer are removed at later ones too",
        group="Pruning",
        needs="edge_sparsity|edge_threshold|relative_threshold|max_error",
    )
    certify: bool | Literal["sampled"] = option(
        False,
        "also compute a proven upper bound on the error, or one measured in 16 random directions (sampled)",
        group="Pruning",
    )
    every_hop: bool = option(False, "also return the embedding after every hop", group="Output", rare=True)
    error_norm: ErrorNorm = option(
        "columns",
        "what max_error bounds: the root mean square of the columns' relative errors, or that of the whole matrix (frobenius)",
        group="Pruning",
        rare=True,
        needs="max_error",
    )
    degree: int | None = option(
        None, "exactly this many hops", ge=1, group="Pruning", metavar="M", rare=True, needs="max_error"
    )
    precision: Precision | None = option(
        None,
        "format in which rows are stored (default: with max_error the narrowest that is accurate enough, else float32)",
        group="Pruning",
        rare=True,
    )

    def __post_init__(self) -> None:
        validate(self)

    @property
    def is_proven(self) -> bool:
        """Whether a bound on the error is wanted that always holds."""
        return self.certify is True

    @property
    def is_sampled(self) -> bool:
        """Whether a bound by random directions is wanted."""
        return self.certify == "sampled"
