"""One array as a model folder stores it: packed where that is smaller, and unpacked with no number believed."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifews.errors import InputError
from unifews.serving.program import Unsound
from unifews.serving.weights import Weight

_LARGEST = 2**62
_NUMBERS: dict[str, tuple[torch.dtype, type]] = {
    **{
        name: (getattr(torch, name), getattr(np, name))
        for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8")
    },
    "bfloat16": (torch.bfloat16, np.uint16),  # which numpy has no name for: its bits
}
"""Types of `numbers`: torch's, and that of what is stored."""

Arrays = dict[str, NDArray[Any]]
Packed = tuple[dict[str, Any], Arrays]
"""How an array is stored, in words, and the parts that are."""
Unpacked = TypeVar("Unpacked")


class Parts:
    """The stored parts of one array, each given once and checked."""

    def __init__(self, prefix: str, arrays: Arrays) -> None:
        self._prefix, self._arrays = prefix, arrays

    def take(self, part: str, kinds: tuple[type, ...], length: int | None = None) -> NDArray[Any]:
        found = self._arrays.pop(self._prefix + part, None)
        if found is None:
            raise Unsound(f"has no {part}")
        if found.dtype not in [np.dtype(kind) for kind in kinds]:
            raise Unsound(f"has {part} of type {found.dtype}")
        flat = found.reshape(-1)
        if length is not None and len(flat) != length:
            raise Unsound(f"has {len(flat):,} {part}, not {length:,}")
        return flat


def unpacked_all(
    said: dict[str, Any], prefix: str, arrays: Arrays, unpack: Callable[[Any, Parts], Unpacked]
) -> dict[str, Unpacked]:
    """Everything that is described by name, taken out of `arrays`; what is wrong with one is told with its name."""
    found = {}
    for name, how in said.items():
        try:
            found[name] = unpack(how, Parts(f"{prefix}{name}.", arrays))
        except Unsound as problem:
            raise Unsound(f"has a {name[:60]!r} that {problem}") from None
    return found


# ------------------------------------------------------------------------------------------------------------- packing


def packed(array: Tensor | Weight) -> Packed:
    """An array of a frozen model: a matrix in the smallest of three ways, flags as bits, growing numbers as differences."""
    if isinstance(array, Weight):
        ways = [as_mask(array), as_rows(array), ("dense", {"values": array.dense.numpy()})]
        way, parts = min(ways, key=lambda found: _bytes(found[1]))
        return {"as": way, "shape": list(array.shape)}, parts
    values = array.numpy()
    if array.dtype == torch.bool:
        return {"as": "flags", "shape": list(array.shape)}, {"bits": np.packbits(values)}
    if array.dtype == torch.int64:
        steps = np.diff(values, prepend=0)
        small = not len(steps) or int(steps.max()) < 2**32
        return {"as": "sorted", "shape": list(array.shape)}, {"steps": steps.astype(np.uint32) if small else steps}
    return {"as": "floats", "shape": list(array.shape)}, {"values": values}


def packed_exactly(tensor: Tensor) -> Packed:
    """A tensor of any type and of whatever values, to come back as it is; zeros are left out where that is smaller (and then
    lose their sign)."""
    tensor = tensor.detach().cpu().contiguous()
    shape = list(tensor.shape)
    if tensor.dtype == torch.bool or (tensor.dtype == torch.int64 and tensor.ndim == 1 and _grows(tensor)):
        return packed(tensor)
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _NUMBERS:
        raise InputError(f"it holds {name} numbers, which no model folder has; known: {', '.join(_NUMBERS)}")
    stored = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    numbers: Packed = {"as": "numbers", "type": name, "shape": shape}, {"values": stored.numpy().view(_NUMBERS[name][1])}
    if tensor.dtype == torch.float32 and tensor.ndim == 2 and tensor.numel() and bool(tensor.isfinite().all()):
        way, parts = as_mask(Weight.of(tensor))
        if _bytes(parts) < _bytes(numbers[1]):
            return {"as": way, "shape": shape}, parts
    return numbers


def _grows(numbers: Tensor) -> bool:
    """From 0 on, to what a sum of differences can hold."""
    return not len(numbers) or (0 <= int(numbers[0]) <= int(numbers[-1]) < _LARGEST and not bool((numbers.diff() < 0).any()))


def as_mask(weight: Weight) -> tuple[str, Arrays]:
    flags = np.zeros(weight.shape, np.bool_)
    flags[np.repeat(np.arange(weight.shape[0]), weight.counts), weight.packed.indices] = True
    return "mask", {"bits": np.packbits(flags), "values": weight.packed.values}


def as_rows(weight: Weight) -> tuple[str, Arrays]:
    indices = _narrow(weight.packed.indices, weight.shape[1] - 1)
    return "rows", {"counts": _narrow(weight.counts), "indices": indices, "values": weight.packed.values}


def _narrow(numbers: NDArray[Any], most: int | None = None) -> NDArray[Any]:
    """The same in the smallest type that holds them."""
    most = int(numbers.max(initial=0)) if most is None else most
    kind = next(kind for kind in (np.uint8, np.uint16, np.uint32) if most <= np.iinfo(kind).max)
    return numbers.astype(kind)


def _bytes(parts: Arrays) -> int:
    return sum(part.nbytes for part in parts.values())


# ----------------------------------------------------------------------------------------------------------- unpacking


def unpacked(how: Any, parts: Parts) -> Tensor | Weight:
    """What `packed` was given."""
    way, shape, size = _said(how)
    if way == "floats":
        return torch.from_numpy(_finite(parts.take("values", (np.float32,), size)).reshape(shape).copy())
    if way == "flags":
        return _flags(parts, shape, size)
    if way == "sorted" and len(shape) == 1:
        steps = parts.take("steps", (np.uint32, np.int64), size)
        if (steps < 0).any() or float(steps.sum(dtype=np.float64)) >= _LARGEST:
            raise Unsound("does not grow as it should")
        return torch.from_numpy(steps.astype(np.int64).cumsum())
    if len(shape) != 2 or not size:
        raise Unsound("has no sound shape")
    if way == "mask":
        return _from_mask(parts, (shape[0], shape[1]))
    if way == "rows":
        return _from_rows(parts, (shape[0], shape[1]))
    if way == "dense":
        matrix = _finite(parts.take("values", (np.float32,), size)).reshape(shape)
        return Weight.of(torch.from_numpy(matrix.copy()))
    raise Unsound(f"is stored as {str(way)[:40]!r}, which this release does not know")


def unpacked_exactly(how: Any, parts: Parts) -> Tensor:
    """What `packed_exactly` was given. No way in it takes more than 32 times the bytes that are there."""
    way, shape, size = _said(how, dimensions=8)
    if way == "flags":
        return _flags(parts, shape, size)
    if way in ("sorted", "mask"):
        found = unpacked(how, parts)
        return found.dense if isinstance(found, Weight) else found
    known = _NUMBERS.get(how["type"]) if way == "numbers" and isinstance(how.get("type"), str) else None
    if known is None:
        raise Unsound(f"is stored as {str(way)[:40]!r}, which this release does not know")
    kind, stored = known
    values = parts.take("values", (stored,), size).reshape(shape)
    return torch.from_numpy(values.view(np.int16).copy()).view(kind) if stored is np.uint16 else torch.from_numpy(values.copy())


def _said(how: Any, dimensions: int = 2) -> tuple[Any, list[int], int]:
    """How an array is stored, its shape, and its numbers."""
    way, shape = (how.get("as"), how.get("shape")) if isinstance(how, dict) else (None, None)
    if (
        not isinstance(shape, list)
        or len(shape) > dimensions
        or not all(type(size) is int and 0 <= size < 2**31 for size in shape)
    ):
        raise Unsound("has no sound shape")
    return way, shape, prod(shape)


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
    return Weight.made(indptr, columns.astype(np.int32), values.copy(), shape)


def _from_rows(parts: Parts, shape: tuple[int, int]) -> Weight:
    whole = (np.uint8, np.uint16, np.uint32)
    counts = parts.take("counts", whole, shape[0]).astype(np.int64)
    if int(counts.max(initial=0)) > shape[1]:
        raise Unsound("has more weights in a row than there are inputs")
    indptr = np.concatenate([[0], counts.cumsum()])
    indices = parts.take("indices", whole, int(indptr[-1])).astype(np.int64)
    values = _finite(parts.take("values", (np.float32,), len(indices)))
    if len(indices) and int(indices.max()) >= shape[1]:
        raise Unsound(f"names input {int(indices.max()):,} of {shape[1]:,}")
    falls = indices[1:] <= indices[:-1]
    starts = indptr[1:-1]
    falls[starts[(starts > 0) & (starts < len(indices))] - 1] = False  # between rows
    if falls.any():
        raise Unsound("has inputs that are not in order")
    return Weight.made(indptr, indices.astype(np.int32), values.copy(), shape)


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    if not np.isfinite(values).all():
        raise Unsound("holds values that are not finite")
    return values
