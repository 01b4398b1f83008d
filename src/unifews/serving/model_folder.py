"""Model folders: `config.json` describes the tensors in `model.safetensors`; docs/FORMAT.md is the specification.

A folder is written atomically. Nothing in it is executed: a reader checks every shape, offset, index and name before it is
used, and allocates no more memory than the bytes of the file justify.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from unifews import __version__
from unifews.errors import FileFormatError, InputError, MissingFileError
from unifews.nn.thinning import EdgeRule
from unifews.serving.packed_arrays import Arrays, Json, packed, unpacked, unpacked_all
from unifews.serving.program import InvalidModel, Program, Step, with_defaults
from unifews.storage.atomic import atomic_folder, steady
from unifews.storage.folder_format import FolderFormat

FROZEN = FolderFormat("model", "unifews-model", 1, "config.json", "FrozenModel.save", also_reads=(2,))
TRAINING = FolderFormat("model in training", "unifews-checkpoint", 1, "config.json", "uf.save", also_reads=(2,))
TENSORS = "model.safetensors"
_FIELDS = {
    FROZEN.format: ("requested", "features", "outputs", "weighted", "thinning", "steps"),
    TRAINING.format: (
        *("class", "built", "pruning", "requested", "phase", "convs", "feedback", "trains", "state", "optimizer"),
        "max_error",
    ),
}
_HEADER = ("format", "version", "library", "tensors", "training")
_DTYPES: dict[str, np.dtype[Any]] = {
    **{f"{kind[0].upper()}{bits}": np.dtype(f"{kind}{bits}") for kind in ("float", "int") for bits in (16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32)},
    "I8": np.dtype("int8"),
}
"""Types of safetensors that a model has."""


def as_path(name: str, value: Any) -> Path:
    """The path that is passed as the argument `name`."""
    if not isinstance(value, str | PathLike) or "\0" in str(value):
        raise InputError(f"`{name}` is {repr(value)[:60]}, which is not a path; give a str or a pathlib.Path.")
    return Path(value)


def write(kind: FolderFormat, folder: Path, config: Json, arrays: Arrays, *, overwrite: bool = False) -> None:
    """Write a model folder atomically. Only another model folder is ever replaced."""
    if folder.exists() and not (FROZEN.describes(folder) or TRAINING.describes(folder)):
        raise InputError(f"{folder} already exists and is not a unifews model, so it is not overwritten. Choose another name.")
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    tensors = {"file": TENSORS, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    config = {**kind.header(), "library": __version__, "tensors": tensors, **config}
    try:
        text = json.dumps(config, indent=1, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the training record cannot be written as JSON ({error}); use plain, finite values.") from error
    with atomic_folder(folder, overwrite=overwrite) as place:
        (place / TENSORS).write_bytes(data)
        (place / kind.file).write_text(text + "\n", encoding="utf-8")


def read(kind: FolderFormat, folder: Path) -> tuple[Json, Arrays]:
    """The content of config.json, and the tensors by name."""
    return steady(folder, lambda: _read(kind, folder))


def _read(kind: FolderFormat, folder: Path) -> tuple[Json, Arrays]:
    config = kind.read(folder)
    unknown = set(config) - {*_HEADER, *_FIELDS[kind.format]}
    if unknown:
        raise FileFormatError(
            f"{folder}/{kind.file} has {min(unknown)[:40]!r}, which this release does not know; read it with the release that "
            f"wrote it ({str(config.get('library'))[:20]}), or a later one."
        )
    if not isinstance(config.get("training"), dict | None):
        raise FileFormatError(f"{folder}/{kind.file} is damaged: `training` must be an object or null.")
    return config, _tensors(kind, folder, config.get("tensors"))


def damaged(kind: FolderFormat, folder: Path, problem: object) -> FileFormatError:
    """The error for an invalid config; `problem` continues "the model ..."."""
    return FileFormatError(f"{folder}/{kind.file}: the model {problem}; it is damaged. Copy or save it again.")


def _tensors(kind: FolderFormat, folder: Path, expected: Any) -> Arrays:
    path = folder / TENSORS
    if not path.is_file():
        raise MissingFileError(f"{folder} is incomplete: it has no {TENSORS}. Copy or save the model again.")
    if not isinstance(expected, dict) or expected.get("file") != TENSORS:
        raise FileFormatError(f"{folder}/{kind.file} is damaged: it does not describe {TENSORS}.")
    data = path.read_bytes()
    if expected.get("bytes") != len(data) or expected.get("sha256") != hashlib.sha256(data).hexdigest():
        raise FileFormatError(f"{path} is not the file that {kind.file} was written with: it is truncated or was changed.")
    try:
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except (SafetensorError, ValueError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise FileFormatError(f"{path} is not a safetensors file, or its header is damaged ({error}).") from error
    arrays: Arrays = {}
    for name, tensor in found:
        stored = _DTYPES.get(tensor["dtype"])
        if stored is None:
            raise FileFormatError(f"{path} holds {tensor['dtype']} numbers in {name[:40]!r}, which this format does not have.")
        if len(tensor["data"]) != prod(tensor["shape"]) * stored.itemsize:
            raise FileFormatError(f"{path} is damaged: {name[:40]!r} does not have the length of its shape.")
        arrays[name] = np.frombuffer(tensor["data"], dtype=stored).reshape(tensor["shape"])
    return arrays


# ------------------------------------------------------------------------------------------------------------------- programs


Loaded = tuple[Program, str, Json | None]


def write_program(folder: Path, program: Program, requested: str, record: Json | None, *, overwrite: bool = False) -> None:
    """Write a frozen model as a folder, atomically."""
    for step in program.steps:
        if step.op == "layer":
            raise InputError(
                f"{step.settings['layer'].path} is a {step.settings['layer'].kind}, which runs with its own code, and files "
                f"hold no code; save the model with uf.save(model, folder) and compress it where it is used."
            )
    arrays: Arrays = {}
    steps = [_step_config(number, step, arrays) for number, step in enumerate(program.steps, start=1)]
    sizes = dict(features=program.features, outputs=program.widths[-1])
    thinning = {} if program.thinning is None else {"thinning": asdict(program.thinning)}
    config = dict(requested=requested, **sizes, weighted=program.weighted, **thinning, steps=steps, training=record)
    write(FROZEN, folder, config, arrays, overwrite=overwrite)


def read_program(folder: Path) -> Loaded:
    """Read the folder of a frozen model."""
    if TRAINING.describes(folder):
        raise FileFormatError(
            f"{folder} holds a model in training (uf.save); to predict with it, freeze it first: "
            f"uf.compress(uf.load(folder), x, edge_index).save(...)."
        )
    config, arrays = read(FROZEN, folder)
    try:
        program = _program(config, arrays)
        if program.widths[-1] != config.get("outputs"):
            raise InvalidModel(f"returns {program.widths[-1]} columns, but `outputs` is {config.get('outputs')!r}")
        if arrays:
            raise InvalidModel(f"does not use {sorted(arrays)[0][:40]!r} of {TENSORS}")
    except InvalidModel as problem:
        raise damaged(FROZEN, folder, problem) from None
    requested = config.get("requested")
    if not isinstance(requested, str):
        raise FileFormatError(f"{folder}/{FROZEN.file} is damaged: `requested` must be a string.")
    return program, requested, config.get("training")


def _step_config(number: int, step: Step, into: Arrays) -> Json:
    config: Json = {"op": step.op, "of": list(step.inputs)}
    if step.settings:
        config["settings"] = dict(step.settings)
    described = {}
    for name, array in step.arrays.items():
        described[name], parts = packed(array)
        into.update({f"{number}.{name}.{part}": values for part, values in parts.items()})
    return {**config, "arrays": described} if described else config


def _program(config: Json, arrays: Arrays) -> Program:
    """The program; every array it uses is removed from `arrays`."""
    features, weighted, steps = config.get("features"), config.get("weighted"), config.get("steps")
    if type(features) is not int or not 1 <= features < 2**31 or type(weighted) is not bool or not isinstance(steps, list):
        raise InvalidModel("needs `features` of at least 1, `weighted` and `steps`")
    made = tuple(_step(number, config, arrays) for number, config in enumerate(steps, start=1))
    return Program(features, made, weighted, _thinning(config.get("thinning")))


def _thinning(stored: Any) -> EdgeRule | None:
    if stored is None:
        return None
    try:
        return EdgeRule(**stored)
    except (TypeError, ValueError, InputError):
        raise InvalidModel("has a `thinning` that is not a rule") from None


def _step(number: int, config: Any, arrays: Arrays) -> Step:
    if not isinstance(config, dict) or not set(config) <= {"op", "of", "settings", "arrays"}:
        raise InvalidModel(f"has a step {number} that is not a step")
    op, inputs, settings, described = config.get("op"), config.get("of"), config.get("settings", {}), config.get("arrays", {})
    if not (isinstance(op, str) and isinstance(inputs, list) and isinstance(settings, dict) and isinstance(described, dict)):
        raise InvalidModel(f"has a step {number} that is not a step")
    try:
        found = unpacked_all(described, f"{number}.", arrays, unpacked)
    except InvalidModel as problem:
        raise InvalidModel(f"step {number} {problem}") from None
    return Step(op, tuple(inputs), with_defaults(op, settings), found)
