"""One array as a model folder stores it: packed where that is smaller, and validated when unpacked."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifews.errors import InputError
from unifews.kernels.packed_weight import PackedWeight
from unifews.serving.products import Weight
from unifews.serving.program import InvalidModel

_MAX_SUM = 2**62
_DTYPES: dict[str, tuple[torch.dtype, type]] = {
    **{
        name: (getattr(torch, name), getattr(np, name))
        for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8")
    },
    "bfloat16": (torch.bfloat16, np.uint16),  # numpy has no such type: its bits are stored
}
"""Types of the layout "numbers": torch's type, and the stored numpy type."""

Arrays = dict[str, NDArray[Any]]
Json = dict[str, Any]
"""A JSON object: config.json, or a part of it."""
Packed = tuple[Json, Arrays]
"""The description of a stored array (layout, shape), and its parts by name."""
Unpacked = TypeVar("Unpacked")


class Parts:
    """The stored parts of one array; each is taken once and checked."""

    def __init__(self, prefix: str, arrays: Arrays) -> None:
        self._prefix, self._arrays = prefix, arrays

    def take(self, part: str, kinds: tuple[type, ...], length: int | None = None) -> NDArray[Any]:
        found = self._arrays.pop(self._prefix + part, None)
        if found is None:
            raise InvalidModel(f"has no {part}")
        if found.dtype not in [np.dtype(kind) for kind in kinds]:
            raise InvalidModel(f"has {part} of type {found.dtype}")
        flat = found.reshape(-1)
        if length is not None and len(flat) != length:
            raise InvalidModel(f"has {len(flat):,} {part}, not {length:,}")
        return flat


def unpacked_all(
    descriptions: Json, prefix: str, arrays: Arrays, unpack: Callable[[Any, Parts], Unpacked]
) -> dict[str, Unpacked]:
    """All described arrays by name, removed from `arrays`; an error names the array."""
    found = {}
    for name, description in descriptions.items():
        try:
            found[name] = unpack(description, Parts(f"{prefix}{name}.", arrays))
        except InvalidModel as problem:
            raise InvalidModel(f"has a {name[:60]!r} that {problem}") from None
    return found


# ------------------------------------------------------------------------------------------------------------- packing


def packed(array: Tensor | Weight) -> Packed:
    """Pack an array of a frozen model: a weight matrix in the smallest of three layouts, masks as bits, sorted integers as
    differences."""
    if isinstance(array, Weight):
        layouts = [as_mask(array), as_rows(array), ("dense", {"values": array.dense.numpy()})]
        layout, parts = min(layouts, key=lambda found: _bytes(found[1]))
        return {"as": layout, "shape": list(array.shape)}, parts
    values = array.numpy()
    if array.dtype == torch.bool:
        return {"as": "flags", "shape": list(array.shape)}, {"bits": np.packbits(values)}
    if array.dtype == torch.int64:
        steps = np.diff(values, prepend=0)
        small = not len(steps) or int(steps.max()) < 2**32
        return {"as": "sorted", "shape": list(array.shape)}, {"steps": steps.astype(np.uint32) if small else steps}
    return {"as": "floats", "shape": list(array.shape)}, {"values": values}


def packed_exactly(tensor: Tensor) -> Packed:
    """Pack a tensor of any type without loss; zeros are left out where that is smaller (negative zeros then lose their
    sign)."""
    tensor = tensor.detach().cpu().contiguous()
    shape = list(tensor.shape)
    if tensor.dtype == torch.bool or (tensor.dtype == torch.int64 and tensor.ndim == 1 and _is_sorted(tensor)):
        return packed(tensor)
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise InputError(f"its type {name} cannot be stored in a model folder; supported: {', '.join(_DTYPES)}")
    stored = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    numbers: Packed = {"as": "numbers", "type": name, "shape": shape}, {"values": stored.numpy().view(_DTYPES[name][1])}
    if tensor.dtype == torch.float32 and tensor.ndim == 2 and tensor.numel() and bool(tensor.isfinite().all()):
        layout, parts = as_mask(Weight.of(tensor))
        if _bytes(parts) < _bytes(numbers[1]):
            return {"as": layout, "shape": shape}, parts
    return numbers


def _is_sorted(numbers: Tensor) -> bool:
    """Whether the integers are sorted, not negative, and small enough for a sum of differences."""
    return not len(numbers) or (0 <= int(numbers[0]) <= int(numbers[-1]) < _MAX_SUM and not bool((numbers.diff() < 0).any()))


def as_mask(weight: Weight) -> tuple[str, Arrays]:
    flags = np.zeros(weight.shape, np.bool_)
    flags[np.repeat(np.arange(weight.shape[0]), weight.counts), weight.packed.indices] = True
    return "mask", {"bits": np.packbits(flags), "values": weight.packed.values}


def as_rows(weight: Weight) -> tuple[str, Arrays]:
    indices = _narrow(weight.packed.indices, weight.shape[1] - 1)
    return "rows", {"counts": _narrow(weight.counts), "indices": indices, "values": weight.packed.values}


def _narrow(numbers: NDArray[Any], most: int | None = None) -> NDArray[Any]:
    """The same values in the smallest unsigned integer type."""
    most = int(numbers.max(initial=0)) if most is None else most
    kind = next(kind for kind in (np.uint8, np.uint16, np.uint32) if most <= np.iinfo(kind).max)
    return numbers.astype(kind)


def _bytes(parts: Arrays) -> int:
    return sum(part.nbytes for part in parts.values())


# ----------------------------------------------------------------------------------------------------------- unpacking


def unpacked(description: Any, parts: Parts) -> Tensor | Weight:
    """The inverse of `packed`."""
    layout, shape, size = _layout_of(description)
    if layout == "floats":
        return torch.from_numpy(_finite(parts.take("values", (np.float32,), size)).reshape(shape).copy())
    if layout == "flags":
        return _flags(parts, shape, size)
    if layout == "sorted" and len(shape) == 1:
        steps = parts.take("steps", (np.uint32, np.int64), size)
        if (steps < 0).any() or float(steps.sum(dtype=np.float64)) >= _MAX_SUM:
            raise InvalidModel("is not sorted")
        return torch.from_numpy(steps.astype(np.int64).cumsum())
    if len(shape) != 2 or not size:
        raise InvalidModel("has an invalid shape")
    if layout == "mask":
        return _from_mask(parts, (shape[0], shape[1]))
    if layout == "rows":
        return _from_rows(parts, (shape[0], shape[1]))
    if layout == "dense":
        matrix = _finite(parts.take("values", (np.float32,), size)).reshape(shape)
        return Weight.of(torch.from_numpy(matrix.copy()))
    raise InvalidModel(f"is stored as {str(layout)[:40]!r}, which this release does not know")


def unpacked_exactly(description: Any, parts: Parts) -> Tensor:
    """The inverse of `packed_exactly`. No layout expands to more than 32 times its stored bytes."""
    layout, shape, size = _layout_of(description, dimensions=8)
    if layout == "flags":
        return _flags(parts, shape, size)
    if layout in ("sorted", "mask"):
        found = unpacked(description, parts)
        return found.dense if isinstance(found, Weight) else found
    known = _DTYPES.get(description["type"]) if layout == "numbers" and isinstance(description.get("type"), str) else None
    if known is None:
        raise InvalidModel(f"is stored as {str(layout)[:40]!r}, which this release does not know")
    kind, stored = known
    values = parts.take("values", (stored,), size).reshape(shape)
    return torch.from_numpy(values.view(np.int16).copy()).view(kind) if stored is np.uint16 else torch.from_numpy(values.copy())


def _layout_of(description: Any, dimensions: int = 2) -> tuple[Any, list[int], int]:
    """The layout, shape and number of values that a description has."""
    layout, shape = (description.get("as"), description.get("shape")) if isinstance(description, dict) else (None, None)
    if (
        not isinstance(shape, list)
        or len(shape) > dimensions
        or not all(type(size) is int and 0 <= size < 2**31 for size in shape)
    ):
        raise InvalidModel("has an invalid shape")
    return layout, shape, prod(shape)


def _flags(parts: Parts, shape: list[int], size: int) -> Tensor:
    bits = parts.take("bits", (np.uint8,), -(-size // 8))
    return torch.from_numpy(np.unpackbits(bits, count=size).astype(np.bool_).reshape(shape))


def _from_mask(parts: Parts, shape: tuple[int, int]) -> Weight:
    size = shape[0] * shape[1]
    bits = parts.take("bits", (np.uint8,), -(-size // 8))
    flags = np.unpackbits(bits, count=size).reshape(shape)
    rows, columns = flags.nonzero()
    values = _finite(parts.take("values", (np.float32,), len(columns)))
    indptr = np.concatenate([[0], np.bincount(rows, minlength=shape[0]).cumsum()]).astype(np.int64)
    return Weight(PackedWeight(indptr, columns.astype(np.int32), values.copy(), shape))


def _from_rows(parts: Parts, shape: tuple[int, int]) -> Weight:
    whole = (np.uint8, np.uint16, np.uint32)
    counts = parts.take("counts", whole, shape[0]).astype(np.int64)
    if int(counts.max(initial=0)) > shape[1]:
        raise InvalidModel("has more weights in a row than inputs")
    indptr = np.concatenate([[0], counts.cumsum()])
    indices = parts.take("indices", whole, int(indptr[-1])).astype(np.int64)
    values = _finite(parts.take("values", (np.float32,), len(indices)))
    if len(indices) and int(indices.max()) >= shape[1]:
        raise InvalidModel(f"names input {int(indices.max()):,} of {shape[1]:,}")
    decreases = indices[1:] <= indices[:-1]
    starts = indptr[1:-1]
    decreases[starts[(starts > 0) & (starts < len(indices))] - 1] = False  # between rows
    if decreases.any():
        raise InvalidModel("has unsorted inputs")
    return Weight(PackedWeight(indptr, indices.astype(np.int32), values.copy(), shape))


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    if not np.isfinite(values).all():
        raise InvalidModel("has values that are not finite")
    return values
