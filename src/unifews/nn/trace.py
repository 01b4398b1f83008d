"""The trace of a model of message-passing layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unifews.core.trace import Column, HopTrace, LayerTrace, Trace


@dataclass(frozen=True)
class ConvTrace(HopTrace):
    """One call of one message-passing layer. Self-loops are not counted."""

    name: str = ""
    """Path of the layer in the model."""
    kind: str = ""
    edges: int = 0
    """Edges between different nodes, including those that an earlier layer removed."""
    edges_kept: int = 0
    """Edges with at least one product."""
    width: int = 0
    """Columns of the unpruned product."""
    score_macs: int = 0
    """Multiply-adds of attention scores, which are not part of the product with the messages."""
    notes: tuple[str, ...] = ()

    def of_graph(self, edges: int) -> ConvTrace:
        """Of a layer that was called with some of the edges of a graph: its cost relative to all of them."""
        unpruned = edges * self.width
        return replace(self, entries=unpruned, dense_macs=unpruned, edges=edges)


@dataclass(frozen=True)
class ModelTrace(Trace):
    """Kept products of one forward pass of a model. `hops` are its message-passing layers in the order they ran."""

    @property
    def edge_sparsity(self) -> float:
        """Fraction of the propagation's multiply-adds removed, over all layers."""
        return 1 - self.macs / self.dense_macs if self.dense_macs else 0.0

    @property
    def mean_edge_sparsity(self) -> float:
        """The paper's measure: the mean over layers of the fraction removed in each."""
        return sum(hop.sparsity for hop in self.hops) / len(self.hops) if self.hops else 0.0

    @property
    def score_macs(self) -> int:
        return sum(hop.score_macs for hop in self.hops if isinstance(hop, ConvTrace))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ModelTrace:
        """From a mapping of its fields, as from `dataclasses.asdict` or a file."""
        hops = tuple(ConvTrace(**hop | {"notes": tuple(hop["notes"])}) for hop in values["hops"])
        layers = tuple(LayerTrace(**layer) for layer in values["layers"])
        return cls(**dict(values) | {"hops": hops, "layers": layers, "notes": tuple(values["notes"])})

    def to_dict(self) -> dict[str, Any]:
        extra = [
            {
                "name": hop.name,
                "kind": hop.kind,
                "edges": hop.edges,
                "edges_kept": hop.edges_kept,
                "width": hop.width,
                "score_macs": hop.score_macs,
            }
            for hop in self.hops
            if isinstance(hop, ConvTrace)
        ]
        record = super().to_dict()
        record["mean_edge_sparsity"] = self.mean_edge_sparsity
        record["hops"] = [hop | more for hop, more in zip(record["hops"], extra, strict=True)]
        return record

    def columns(self) -> Iterator[Column]:
        yield Column(-24, "layer", lambda hop: f"{hop.name} {hop.kind}")
        yield Column(12, "edges", lambda hop: f"{hop.edges:,}")
        yield Column(12, "kept", lambda hop: f"{hop.edges_kept:,}")
        yield Column(6, "width", lambda hop: f"{hop.width:,}")
        yield Column(16, "MACs", lambda hop: f"{hop.macs:,}")
        yield Column(8, "removed", lambda hop: f"{hop.sparsity:.1%}")

    def summary(self) -> Iterator[str]:
        removed = f"{self.edge_sparsity:.1%} removed ({self.mean_edge_sparsity:.1%} by the mean over layers)"
        yield f"propagation: {self.macs:,} of {self.dense_macs:,} MACs, {removed}"
        if self.score_macs:
            yield f"attention scores: {self.score_macs:,} MACs, counted separately"
        yield from super().summary()
        if self.layers:
            removed = f"{self.weight_sparsity:.1%} of weights removed"
            yield f"transformation: {self.transform_macs:,} of {self.dense_transform_macs:,} MACs, {removed}"
