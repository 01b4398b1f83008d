"""The authors' own C++ of Unifews, as it is: AGP's push with limits that are handed on from hop to hop.

It is not Algorithm 1 of the paper: small messages are sent by chance, rounded up (for APPNP not right on average), what is sent
at a hop limits the next by midpoints, so sets are not nested, and SGC is (I + D^-1 Ā)^L X whatever `r` is. `inherit=False` is
what the authors call AGP. Here to see where their numbers come from; `unifews` is the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unifews.errors import InputError
from unifews.methods.door import Job, Propagates
from unifews.methods.push import Floats, Plan, Rules, run
from unifews.methods.registry import method
from unifews.methods.settings import check_flag, check_number
from unifews.propagation.result import Propagated

_HALF = {"sgc": 6e-4, "appnp": 4.5e-6}  # remove about half of the products on Cora; the second is of the authors' scripts


@method(
    "unifews-push",
    prunes=("edges",),
    backbones=("sgc", "appnp"),
    paper="the C++ code of Liao et al., Unifews, ICML 2025",
)
@dataclass(frozen=True)
class UnifewsPush(Propagates):
    """Settings: `thr`, the threshold as a share of Σ|x|·d^r of a column over 1 - α; None: half of the products, about."""

    undirected: ClassVar[bool] = True
    unweighted: ClassVar[bool] = True
    thr: float | None = None
    inherit: bool = True

    def __post_init__(self) -> None:
        if self.thr is not None:
            check_number("thr", self.thr)
        check_flag("inherit", self.inherit)

    def run(self, job: Job) -> Propagated:
        """`threshold` is thr."""
        alpha = job.alpha or 0.0
        if alpha == 1:
            raise InputError("method 'unifews-push' divides by 1 - alpha; give an alpha below 1, or take method='agp'.")
        power = (job.diffusion.degree**job.diffusion.r / (1 - alpha)).astype(np.float32)[:, None]

        def mass(values: Floats) -> Floats:
            return np.abs(values) * power

        rules = Rules(job.alpha, skip=True, inherit=self.inherit, stop=True, unbiased=False)
        own = _HALF["sgc" if job.alpha is None else "appnp"] if self.thr is None else self.thr
        return run(job, Plan(self.card, rules, mass), own if job.threshold is None else job.threshold)
