"""Propagation schemes and their settings in plain words and numbers, as a file can hold them."""

from __future__ import annotations

from typing import Any

from unifews.core.schemes import Appnp, Polynomial, Scheme, Sgc
from unifews.errors import InputError

_SETTINGS = {
    "scheme",
    "hops",
    "r",
    "edge_sparsity",
    "threshold",
    "relative_threshold",
    "entries",
    "basis",
    "rank",
    "deflate",
    "inherit",
    "focus",
}


def is_propagation(said: Any) -> bool:
    """Whether these are arguments of `propagate` by name; what the numbers mean it checks itself."""
    if not isinstance(said, dict) or not set(said) <= _SETTINGS:
        return False
    plain = (bool, int, float, str, type(None))
    if not all(isinstance(value, plain) for name, value in said.items() if name != "scheme"):
        return False
    try:
        scheme_of(said.get("scheme"))
    except InputError:
        return False
    return True


def scheme_of(said: Any) -> str | Scheme:
    """A scheme from its name, or from its name and numbers as `scheme_words` gives them."""
    if isinstance(said, str):
        return said
    if not isinstance(said, dict):
        raise InputError(f"a propagation scheme is a name, or a name and numbers; got {str(said)[:40]!r}.")
    words = dict(said)
    kind = words.pop("name", None)
    try:
        if kind == "appnp":
            return Appnp(**words)
        if kind == "sgc":
            return Sgc(**words)
        if kind == "polynomial":
            return Polynomial(words.pop("coefficients"), **words)
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise InputError(f"no propagation scheme has {str(said)[:80]!r}.") from error
    raise InputError(f"no propagation scheme is called {str(kind)[:40]!r}; known: appnp, polynomial, sgc.")


def scheme_words(scheme: Any) -> Any:
    """A scheme in plain words and numbers."""
    if isinstance(scheme, str):
        return scheme
    if isinstance(scheme, Appnp):
        return {"name": "appnp", "alpha": scheme.alpha, "tail": scheme.tail, "skip": scheme.skip}
    if isinstance(scheme, Sgc):
        return {"name": "sgc", "skip": scheme.skip}
    if isinstance(scheme, Polynomial):
        return {"name": "polynomial", "coefficients": list(scheme.theta), "skip": scheme.skip}
    raise InputError(
        f"a {type(scheme).__name__} of your own cannot be written to a file; give a Polynomial of the same coefficients."
    )
