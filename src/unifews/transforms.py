"""Transforms of PyG data, to be used alone or in `torch_geometric.transforms.Compose`.

    transform = Compose([Thin("unifews", sparsity=0.5), Propagate("ppr", max_error=0.05)])
    data = transform(data)

The data afterwards holds tensors only, so it can be stored as any other; what was removed and what it cost is in the
attribute `trace` of the transform.
"""

from __future__ import annotations

from typing import Any

from torch_geometric.transforms import BaseTransform

from unifews.core.graph import Graph
from unifews.core.schemes import Scheme, SpectralFilter
from unifews.core.trace import Trace
from unifews.errors import InputError
from unifews.methods.thin import thin
from unifews.propagation.api import propagate

__all__ = ["Propagate", "Thin"]


class Thin(BaseTransform):  # type: ignore[misc]
    """Remove edges of a `Data` or `HeteroData`; arguments as of `unifews.thin`.

    >>> Thin("unifews", sparsity=0.5)
    Thin('unifews', sparsity=0.5)
    """

    def __init__(self, method: Any = "unifews", *, use_x: bool = False, **options: Any) -> None:
        """`use_x`: let the method use the features `data.x`."""
        if options.get("sparsity") is None and options.get("keep") is None and "k" not in options and ":" not in str(method):
            raise InputError("give one of `sparsity` (a fraction to remove) and `keep` (a number of edges).")
        self.method, self.use_x, self.options = method, use_x, options

    def forward(self, data: Any) -> Any:
        x = _features(data, "x", "Thin(use_x=True)") if self.use_x else None
        return thin(data, self.method, x=x, **self.options)

    def __repr__(self) -> str:
        return _shown(self, self.method, self.options | ({"use_x": True} if self.use_x else {}))


class Propagate(BaseTransform):  # type: ignore[misc]
    """Propagate the features of a `Data`; arguments as of `unifews.propagate`.

    `data.x` becomes the embedding, as with `torch_geometric.transforms.GDC` followed by one dense product, without a dense
    matrix; with `out` it is stored beside it. With ``every_hop=True``, hop l becomes ``data.x1``, ``data.x2``, … as in
    `torch_geometric.transforms.SIGN`, and `data.x` stays.

    >>> Propagate("ppr", alpha=0.1, max_error=0.05)
    Propagate('ppr', alpha=0.1, max_error=0.05)
    """

    trace: Trace | None = None
    """Of the last data."""

    def __init__(
        self, scheme: str | Scheme | SpectralFilter = "appnp", *, features: str = "x", out: str = "x", **options: Any
    ) -> None:
        """`features`, `out`: names of attributes of the data. `alpha` and `time` may be given with a scheme by name."""
        self.scheme, self.features, self.out, self.options = scheme, features, out, options
        self._scheme, self._options = _scheme(scheme, options)

    def forward(self, data: Any) -> Any:
        x = _features(data, self.features, "Propagate")
        found = propagate(Graph.from_pyg(data), x, self._scheme, **self._options)
        self.trace = found.trace
        if self._options.get("every_hop"):
            for hop, values in enumerate(found.hop_embeddings):
                if hop:
                    data[f"{self.out}{hop}"] = values
        else:
            data[self.out] = found.embedding
        return data

    def __repr__(self) -> str:
        names = {name: getattr(self, name) for name in ("features", "out") if getattr(self, name) != "x"}
        return _shown(self, self.scheme, self.options | names)


def _scheme(scheme: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The scheme as an object where a parameter of it is among the options, and the other options."""
    from unifews.core.schemes import Appnp, HeatKernel, PersonalizedPageRank

    takes = {"appnp": (Appnp, "alpha"), "ppr": (PersonalizedPageRank, "alpha"), "heat": (HeatKernel, "time")}
    for name in ("alpha", "time"):
        if name not in options:
            continue
        if not isinstance(scheme, str) or scheme not in takes or takes[scheme][1] != name:
            able = " or ".join(repr(kind) for kind, (_, parameter) in takes.items() if parameter == name)
            raise InputError(f"`{name}` belongs to the scheme {able}; got the scheme {scheme!r}.", setting=name)
        rest = {key: value for key, value in options.items() if key != name}
        return takes[scheme][0](options[name]), rest
    return scheme, options


def _features(data: Any, name: str, what: str) -> Any:
    if hasattr(data, "edge_types"):
        raise InputError(f"{what} takes a Data with one kind of node; pass data.to_homogeneous() or select a relation.")
    values = getattr(data, name, None)
    if values is None:
        raise InputError(
            f"{what} needs features, and this {type(data).__name__} has no `{name}`; set data.{name} [n, f] first."
        )
    return values


def _shown(transform: Any, first: Any, options: dict[str, Any]) -> str:
    parts = [repr(first), *(f"{name}={value!r}" for name, value in options.items())]
    return f"{type(transform).__name__}({', '.join(parts)})"
