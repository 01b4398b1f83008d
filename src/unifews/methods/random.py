"""Random: edges and weights go by chance, each set once before training: what any cleverer choice has to beat.

Differences from the authors' code: only edges between different nodes are drawn, so self-loops stay, and every weight matrix
loses the share asked for, by one mask for the whole run, where they draw a new one every epoch and, in the second half, the
complement of what is meant (right at .5 only).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unifews.methods.contract import Stage
from unifews.methods.registry import method
from unifews.methods.stages import Asked, Training, Trains, left


@method(
    "random",
    prunes=("edges", "weights"),
    backbones=("gcn", "gat", "sage", "gcnii", "gin"),
    paper="uniform sampling, the baseline of Liao et al., Unifews, ICML 2025",
)
@dataclass(frozen=True)
class Random(Trains):
    """No settings. All layers share one set of edges."""

    def stages(self, asked: Asked) -> Iterator[Stage]:
        """Shares are met to the entry."""
        import torch

        thinned, rng = asked.thinned(), asked.generator(5)
        for keep, share in ((thinned.keep, asked.edges), *((weight.keep, asked.weights) for weight in thinned.weights)):
            chosen = np.zeros(keep.numel(), dtype=np.bool_)
            chosen[rng.permutation(keep.numel())[: left(keep.numel(), share)]] = True
            keep.copy_(torch.from_numpy(chosen).view_as(keep))
        yield Training(thinned, asked.epochs)
