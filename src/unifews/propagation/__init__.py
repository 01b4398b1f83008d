"""Decoupled propagation: many hops, one answer."""

from unifews.propagation.api import Propagated, propagate

__all__ = ["Propagated", "propagate"]
