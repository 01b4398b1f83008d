"""A model folder: `config.json` says what the numbers in `model.safetensors` are; complete or absent, and checked when read."""

from __future__ import annotations

import hashlib
import json
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from unifews import __version__
from unifews.errors import FileFormatError, InputError, MissingFileError
from unifews.serving.packed_arrays import Arrays
from unifews.storage.atomic import atomic_folder, steady
from unifews.storage.folder_format import Kind

FROZEN = Kind("model", "unifews-model", 1, "config.json", "FrozenModel.save", also_reads=(2,))
TRAINING = Kind("model in training", "unifews-checkpoint", 1, "config.json", "uf.save", also_reads=(2,))
TENSORS = "model.safetensors"
_FIELDS = {
    FROZEN.format: ("requested", "features", "outputs", "weighted", "steps"),
    TRAINING.format: ("class", "built", "pruning", "requested", "phase", "convs", "feedback", "trains", "state", "optimizer"),
}
_HEADER = ("format", "version", "library", "tensors", "training")
_TYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U32": np.uint32, "U16": np.uint16, "U8": np.uint8,
}  # fmt: skip


def as_path(name: str, value: Any) -> Path:
    """The path that an argument of this name gives."""
    if not isinstance(value, str | PathLike) or "\0" in str(value):
        raise InputError(f"`{name}` is {repr(value)[:60]}, which is no path; give a text or a pathlib.Path.")
    return Path(value)


def write(kind: Kind, folder: Path, words: dict[str, Any], arrays: Arrays, *, overwrite: bool = False) -> None:
    """Write a model folder in one step: it is complete or absent. Only another model folder is ever replaced."""
    if folder.exists() and not (FROZEN.describes(folder) or TRAINING.describes(folder)):
        raise InputError(f"{folder} already exists and is not a unifews model, so it is not overwritten. Choose another name.")
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    about = {"file": TENSORS, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    config = {**kind.header(), "library": __version__, "tensors": about, **words}
    try:
        text = json.dumps(config, indent=1, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the training record cannot be written as JSON ({error}); keep to plain, finite values.") from error
    with atomic_folder(folder, overwrite=overwrite) as place:
        (place / TENSORS).write_bytes(data)
        (place / kind.file).write_text(text + "\n", encoding="utf-8")


def read(kind: Kind, folder: Path) -> tuple[dict[str, Any], Arrays]:
    """What its config says, and its tensors by name."""
    return steady(folder, lambda: _read(kind, folder))


def _read(kind: Kind, folder: Path) -> tuple[dict[str, Any], Arrays]:
    config = kind.read(folder)
    unknown = set(config) - {*_HEADER, *_FIELDS[kind.format]}
    if unknown:
        raise FileFormatError(
            f"{folder}/{kind.file} has {min(unknown)[:40]!r}, which this release does not know; read it with the release that "
            f"wrote it ({str(config.get('library'))[:20]}), or a later one."
        )
    if not isinstance(config.get("training"), dict | None):
        raise FileFormatError(f"{folder}/{kind.file} is damaged: `training` is a record or null.")
    return config, _tensors(kind, folder, config.get("tensors"))


def damaged(kind: Kind, folder: Path, problem: object) -> FileFormatError:
    """The error for a config whose words do not make a model."""
    return FileFormatError(f"{folder}/{kind.file}: the model {problem}; it is damaged. Copy or save it again.")


def _tensors(kind: Kind, folder: Path, announced: Any) -> Arrays:
    path = folder / TENSORS
    if not path.is_file():
        raise MissingFileError(f"{folder} is incomplete: it has no {TENSORS}. Copy or save the model again.")
    if not isinstance(announced, dict) or announced.get("file") != TENSORS:
        raise FileFormatError(f"{folder}/{kind.file} is damaged: it does not say what {TENSORS} holds.")
    data = path.read_bytes()
    if announced.get("bytes") != len(data) or announced.get("sha256") != hashlib.sha256(data).hexdigest():
        raise FileFormatError(f"{path} is not the file that {kind.file} was written with: it is truncated or was changed.")
    try:
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except (SafetensorError, ValueError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise FileFormatError(f"{path} is not a safetensors file, or its header is damaged ({error}).") from error
    arrays: Arrays = {}
    for name, said in found:
        stored = _TYPES.get(said["dtype"])
        if stored is None:
            raise FileFormatError(f"{path} holds {said['dtype']} numbers in {name[:40]!r}, which no model of this format has.")
        if len(said["data"]) != prod(said["shape"]) * np.dtype(stored).itemsize:
            raise FileFormatError(f"{path} is damaged: {name[:40]!r} is not as long as its shape says.")
        arrays[name] = np.frombuffer(said["data"], dtype=stored).reshape(said["shape"])
    return arrays
