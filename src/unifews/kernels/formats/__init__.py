"""Row formats: values are summed in float32 and stored in fewer bytes.

A hop moves one row per edge, so its time is mostly the bytes of a row. Each format is a file with its oracle in NumPy; the
kernels of native/rows.cpp gather, combine and store rows in any of them.
"""

from __future__ import annotations

from unifews.errors import unknown_name
from unifews.kernels.formats.base import RowFormat, StoredRows
from unifews.kernels.formats.bfloat16 import Bfloat16
from unifews.kernels.formats.float32 import Float32
from unifews.kernels.formats.int4 import Int4
from unifews.kernels.formats.int8 import Int8

FORMATS: dict[str, RowFormat] = {each.name: each for each in (Int4(), Int8(), Bfloat16(), Float32())}
"""By name, the narrowest first."""
AUTOMATIC = tuple(each for each in FORMATS.values() if each.is_automatic)
"""Those that `max_error` chooses from."""

__all__ = ["AUTOMATIC", "FORMATS", "Bfloat16", "Float32", "Int4", "Int8", "RowFormat", "StoredRows", "row_format"]


def row_format(name: str) -> RowFormat:
    if name not in FORMATS:
        raise unknown_name("row format", name, list(FORMATS))
    return FORMATS[name]
