"""The report of `accelerate` on each message-passing layer of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AcceleratedLayer:
    """One message-passing layer of an accelerated model."""

    path: str
    """Path of the layer in the model."""
    kind: str
    """Its PyG class."""
    kernel: str | None
    """Its new class; None if it is unchanged."""
    reason: str = ""
    """Why it is unchanged."""


@dataclass(frozen=True)
class AccelerationReport:
    """The message-passing layers of an accelerated model, in the order they were defined: ``print(model.unifews_report)``."""

    layers: tuple[AcceleratedLayer, ...]

    @property
    def replaced(self) -> tuple[AcceleratedLayer, ...]:
        """Layers that run on the kernels of this library."""
        return tuple(layer for layer in self.layers if layer.kernel is not None)

    @property
    def unchanged(self) -> tuple[AcceleratedLayer, ...]:
        """Layers that are unchanged."""
        return tuple(layer for layer in self.layers if layer.kernel is None)

    def __str__(self) -> str:
        paths, kinds = (max(len(getattr(layer, name)) for layer in self.layers) for name in ("path", "kind"))
        lines = [f"{len(self.replaced)} of {len(self.layers)} message-passing layers run on unifews kernels"]
        for layer in self.layers:
            now = f"unifews kernel ({layer.kernel})" if layer.kernel else f"unchanged: {layer.reason}"
            lines.append(f"  {layer.path:<{paths}}  {layer.kind:<{kinds}}  {now}")
        return "\n".join(lines)
