"""A frozen model as a folder: `model.safetensors` and `config.json`; docs/FORMAT.md is the specification.

Nothing in it is run. A reader believes no number in it: every shape, offset, index and name is checked before it is used,
and nothing is allocated that the bytes of the file do not pay for.
"""

from __future__ import annotations

import hashlib
import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save
from torch import Tensor

from unifews import __version__
from unifews.core.atomic import atomic_folder
from unifews.core.described import Kind
from unifews.errors import FileFormatError, InputError, MissingFileError
from unifews.nn.frozen.program import Program, Step, Unsound
from unifews.nn.frozen.weights import Weight

KIND = Kind("model", "unifews-model", 1, "config.json", "FrozenModel.save")
TENSORS = "model.safetensors"
_TYPES = {"F32": np.float32, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "I64": np.int64}
_LARGEST = 2**62

Arrays = dict[str, NDArray[Any]]
Loaded = tuple[Program, str, dict[str, Any] | None]


def write(folder: Path, program: Program, requested: str, record: dict[str, Any] | None, *, overwrite: bool = False) -> None:
    """Write a model folder in one step: it is complete or absent. Only another model folder is ever replaced."""
    if folder.exists() and not KIND.describes(folder):
        raise InputError(f"{folder} already exists and is not a unifews model, so it is not overwritten. Choose another name.")
    arrays: Arrays = {}
    steps = [_step_words(number, step, arrays) for number, step in enumerate(program.steps, start=1)]
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    config = {
        **KIND.header(),
        "library": __version__,
        "requested": requested,
        "features": program.features,
        "outputs": program.widths[-1],
        "weighted": program.weighted,
        "tensors": {"file": TENSORS, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        "steps": steps,
        "training": record,
    }
    try:
        text = json.dumps(config, indent=1, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the training record cannot be written as JSON ({error}); keep to plain, finite values.") from error
    with atomic_folder(folder, overwrite=overwrite) as place:
        (place / TENSORS).write_bytes(data)
        (place / KIND.file).write_text(text + "\n", encoding="utf-8")


def read(folder: Path) -> Loaded:
    """What a model folder holds."""
    try:
        config = KIND.read(folder)
    except RecursionError as error:
        raise FileFormatError(f"{folder}/{KIND.file} is nested too deeply to be a model; save the model again.") from error
    arrays = _tensors(folder, config.get("tensors"))
    try:
        program = _program(config, arrays)
        if program.widths[-1] != config.get("outputs"):
            raise Unsound(f"gives {program.widths[-1]} columns, not the {config.get('outputs')!r} it announces")
        if arrays:
            raise Unsound(f"has no use for {sorted(arrays)[0][:40]!r} of {TENSORS}")
    except Unsound as problem:
        raise FileFormatError(f"{folder}/{KIND.file}: the model {problem}; it is damaged. Copy or save it again.") from None
    requested, record = config.get("requested"), config.get("training")
    if not isinstance(requested, str) or not isinstance(record, dict | None):
        raise FileFormatError(f"{folder}/{KIND.file} is damaged: `requested` is a text and `training` a record or null.")
    return program, requested, record


# ------------------------------------------------------------------------------------------------------------- writing


def _step_words(number: int, step: Step, into: Arrays) -> dict[str, Any]:
    words: dict[str, Any] = {"op": step.op, "of": list(step.inputs)}
    if step.settings:
        words["settings"] = dict(step.settings)
    described = {}
    for name, array in step.arrays.items():
        how, parts = _packed(array)
        described[name] = how
        into.update({f"{number}.{name}.{part}": values for part, values in parts.items()})
    return {**words, "arrays": described} if described else words


def _packed(array: Tensor | Weight) -> tuple[dict[str, Any], Arrays]:
    """How an array is stored, and the parts that are."""
    if isinstance(array, Weight):
        ways = [_as_mask(array), _as_rows(array), ("dense", {"values": array.dense.numpy()})]
        way, parts = min(ways, key=lambda found: sum(part.nbytes for part in found[1].values()))
        return {"as": way, "shape": list(array.shape)}, parts
    values = array.numpy()
    if array.dtype == torch.bool:
        return {"as": "flags", "shape": list(array.shape)}, {"bits": np.packbits(values)}
    if array.dtype == torch.int64:
        steps = np.diff(values, prepend=0)
        small = not len(steps) or int(steps.max()) < 2**32
        return {"as": "sorted", "shape": list(array.shape)}, {"steps": steps.astype(np.uint32) if small else steps}
    return {"as": "floats", "shape": list(array.shape)}, {"values": values}


def _as_mask(weight: Weight) -> tuple[str, Arrays]:
    flags = np.zeros(weight.shape, np.bool_)
    flags[np.repeat(np.arange(weight.shape[0]), weight.counts), weight.packed.indices] = True
    return "mask", {"bits": np.packbits(flags), "values": weight.packed.values}


def _as_rows(weight: Weight) -> tuple[str, Arrays]:
    indices = _narrow(weight.packed.indices, weight.shape[1] - 1)
    return "rows", {"counts": _narrow(weight.counts), "indices": indices, "values": weight.packed.values}


def _narrow(numbers: NDArray[Any], most: int | None = None) -> NDArray[Any]:
    """The same in the smallest type that holds them."""
    most = int(numbers.max(initial=0)) if most is None else most
    kind = next(kind for kind in (np.uint8, np.uint16, np.uint32) if most <= np.iinfo(kind).max)
    return numbers.astype(kind)


# ------------------------------------------------------------------------------------------------------------- reading


def _tensors(folder: Path, announced: Any) -> Arrays:
    path = folder / TENSORS
    if not path.is_file():
        raise MissingFileError(f"{folder} is incomplete: it has no {TENSORS}. Copy or save the model again.")
    if not isinstance(announced, dict) or announced.get("file") != TENSORS:
        raise FileFormatError(f"{folder}/{KIND.file} is damaged: it does not say what {TENSORS} holds.")
    data = path.read_bytes()
    if announced.get("bytes") != len(data) or announced.get("sha256") != hashlib.sha256(data).hexdigest():
        raise FileFormatError(f"{path} is not the file that {KIND.file} was written with: it is truncated or was changed.")
    try:
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except (SafetensorError, ValueError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise FileFormatError(f"{path} is not a safetensors file, or its header is damaged ({error}).") from error
    arrays: Arrays = {}
    for name, said in found:
        kind = _TYPES.get(said["dtype"])
        if kind is None:
            raise FileFormatError(f"{path} holds {said['dtype']} numbers in {name[:40]!r}, which no model of this format has.")
        if len(said["data"]) != prod(said["shape"]) * np.dtype(kind).itemsize:
            raise FileFormatError(f"{path} is damaged: {name[:40]!r} is not as long as its shape says.")
        arrays[name] = np.frombuffer(said["data"], dtype=kind).reshape(said["shape"])
    return arrays


def _program(config: dict[str, Any], arrays: Arrays) -> Program:
    """The program, with every array taken out of `arrays`."""
    features, weighted, steps = config.get("features"), config.get("weighted"), config.get("steps")
    if type(features) is not int or not 1 <= features < 2**31 or type(weighted) is not bool or not isinstance(steps, list):
        raise Unsound("needs `features` of at least 1, `weighted` and `steps`")
    return Program(features, tuple(_step(number, words, arrays) for number, words in enumerate(steps, start=1)), weighted)


def _step(number: int, words: Any, arrays: Arrays) -> Step:
    if not isinstance(words, dict) or not set(words) <= {"op", "of", "settings", "arrays"}:
        raise Unsound(f"has a step {number} that is no step")
    op, inputs, settings, described = words.get("op"), words.get("of"), words.get("settings", {}), words.get("arrays", {})
    shapes = isinstance(op, str) and isinstance(inputs, list) and isinstance(settings, dict) and isinstance(described, dict)
    if not shapes:
        raise Unsound(f"has a step {number} that is no step")
    unpacked = {}
    for name, how in described.items():
        try:
            unpacked[name] = _unpacked(how, _Parts(f"{number}.{name}.", arrays))
        except Unsound as problem:
            raise Unsound(f"step {number} has a {name[:40]!r} that {problem}") from None
    return Step(str(op), tuple(inputs), settings, unpacked)  # type: ignore[arg-type]


class _Parts:
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


def _unpacked(how: Any, parts: _Parts) -> Tensor | Weight:
    way, shape = (how.get("as"), how.get("shape")) if isinstance(how, dict) else (None, None)
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**31 for size in shape) or len(shape) > 2:
        raise Unsound("has no sound shape")
    size = prod(shape)
    if way == "floats":
        return torch.from_numpy(_finite(parts.take("values", (np.float32,), size)).reshape(shape).copy())
    if way == "flags":
        bits = parts.take("bits", (np.uint8,), -(-size // 8))
        return torch.from_numpy(np.unpackbits(bits, count=size).astype(np.bool_).reshape(shape))
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


def _from_mask(parts: _Parts, shape: tuple[int, int]) -> Weight:
    size = shape[0] * shape[1]
    bits = parts.take("bits", (np.uint8,), -(-size // 8))
    flags = np.unpackbits(bits, count=size).reshape(shape)
    rows, columns = flags.nonzero()
    values = _finite(parts.take("values", (np.float32,), len(columns)))
    indptr = np.concatenate([[0], np.bincount(rows, minlength=shape[0]).cumsum()]).astype(np.int64)
    return Weight.made(indptr, columns.astype(np.int32), values.copy(), shape)


def _from_rows(parts: _Parts, shape: tuple[int, int]) -> Weight:
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
