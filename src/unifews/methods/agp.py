"""AGP: messages below a threshold are sent by chance, rounded up to it, so that they are right on average.

Every node's residue is pushed to its neighbours in order of degree (`push`). The threshold of a column is rmax times the sum
of its values, of each sign by itself. SGC pushes P/d^r, APPNP adds a residue that is too small to be sent to the output.
One difference from the authors' code: they round to δ·d(v)^-(1-r) where δ·d(u)^-r (APPNP) or δ·d(v)^-r (SGC) is right on
average, which is the same for SGC at r = ½ only; ``compat=True`` does as they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unifews.methods.door import Job, Propagates
from unifews.methods.push import Plan, Rules, run
from unifews.methods.registry import method
from unifews.methods.settings import check_flag, check_number
from unifews.propagation.result import Propagated


@method(
    "agp",
    prunes=("edges",),
    backbones=("sgc", "appnp"),
    paper="Wang et al., Approximate Graph Propagation, KDD 2021",
)
@dataclass(frozen=True)
class Agp(Propagates):
    """Settings: `rmax`, the threshold as a share of a column's sum (the authors take 1e-7 to 1e-10)."""

    undirected: ClassVar[bool] = True
    unweighted: ClassVar[bool] = True
    rmax: float = 1e-7
    compat: bool = False

    def __post_init__(self) -> None:
        check_number("rmax", self.rmax)
        check_flag("compat", self.compat)

    def run(self, job: Job) -> Propagated:
        """`threshold` is rmax."""
        test = 1.0 if job.alpha is None else 1 - job.alpha
        rules = Rules(job.alpha, stop=True, unbiased=not self.compat, test=test)
        plan = Plan(self.card, rules, np.abs, scaled=job.alpha is None)
        return run(job, plan, self.rmax if job.threshold is None else job.threshold)
