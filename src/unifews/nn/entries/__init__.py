"""What one decision of a layer covers, one module per kind; a module here adds a kind by `@entry_kind`.

A kind chooses which entries of a `unifews.nn.products.Product` are kept; it does not know how the product is computed. Kinds
have no state: decisions are stored in the buffers of the layer, so that they are saved, copied and restored with it.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from unifews.nn.entries.base import ENTRY_KINDS, EntryKind, entry_kind

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["ENTRY_KINDS", "EntryKind", "entry_kind"]
