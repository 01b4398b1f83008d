"""A frozen model as a folder: its steps in words, its arrays as tensors; docs/FORMAT.md is the specification.

Nothing in it is run. A reader believes no number in it: every shape, offset, index and name is checked before it is used,
and nothing is allocated that the bytes of the file do not pay for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unifews.errors import FileFormatError, InputError
from unifews.serving import model_folder as folders
from unifews.serving.model_folder import FROZEN, TENSORS, TRAINING
from unifews.serving.packed_arrays import Arrays, packed, unpacked, unpacked_all
from unifews.serving.program import Program, Step, Unsound, with_defaults

Loaded = tuple[Program, str, dict[str, Any] | None]


def write(folder: Path, program: Program, requested: str, record: dict[str, Any] | None, *, overwrite: bool = False) -> None:
    """Write a model folder in one step: it is complete or absent. Only another model folder is ever replaced."""
    for step in program.steps:
        if step.op == "layer":
            raise InputError(
                f"{step.settings['layer'].path} is a {step.settings['layer'].kind}, which is frozen with its own code, and no "
                f"file holds code; keep the model with uf.save(model, folder) and compress it where it is used."
            )
    arrays: Arrays = {}
    steps = [_step_words(number, step, arrays) for number, step in enumerate(program.steps, start=1)]
    words = {
        "requested": requested,
        "features": program.features,
        "outputs": program.widths[-1],
        "weighted": program.weighted,
        "steps": steps,
        "training": record,
    }
    folders.write(FROZEN, folder, words, arrays, overwrite=overwrite)


def read(folder: Path) -> Loaded:
    """What a model folder holds."""
    if TRAINING.describes(folder):
        raise FileFormatError(
            f"{folder} holds a model that still trains (uf.save); to predict with it, freeze it first: "
            f"uf.compress(uf.load(folder), x, edge_index).save(...)."
        )
    config, arrays = folders.read(FROZEN, folder)
    try:
        program = _program(config, arrays)
        if program.widths[-1] != config.get("outputs"):
            raise Unsound(f"gives {program.widths[-1]} columns, not the {config.get('outputs')!r} it announces")
        if arrays:
            raise Unsound(f"has no use for {sorted(arrays)[0][:40]!r} of {TENSORS}")
    except Unsound as problem:
        raise folders.damaged(FROZEN, folder, problem) from None
    requested = config.get("requested")
    if not isinstance(requested, str):
        raise FileFormatError(f"{folder}/{FROZEN.file} is damaged: `requested` is a text.")
    return program, requested, config.get("training")


def _step_words(number: int, step: Step, into: Arrays) -> dict[str, Any]:
    words: dict[str, Any] = {"op": step.op, "of": list(step.inputs)}
    if step.settings:
        words["settings"] = dict(step.settings)
    described = {}
    for name, array in step.arrays.items():
        described[name], parts = packed(array)
        into.update({f"{number}.{name}.{part}": values for part, values in parts.items()})
    return {**words, "arrays": described} if described else words


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
    try:
        found = unpacked_all(described, f"{number}.", arrays, unpacked)
    except Unsound as problem:
        raise Unsound(f"step {number} {problem}") from None
    return Step(str(op), tuple(inputs), with_defaults(str(op), settings), found)  # type: ignore[arg-type]
