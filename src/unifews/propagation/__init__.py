"""Decoupled propagation: many hops, one answer."""

from unifews.propagation.api import propagate
from unifews.propagation.result import Propagated

__all__ = ["Propagated", "propagate"]
