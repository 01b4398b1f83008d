"""Run files: the settings of a `TrainSpec` as TOML."""

from __future__ import annotations

import tomllib
from os import PathLike
from pathlib import Path

from unifews.core.config import Values, to_toml
from unifews.errors import FileFormatError, InputError, MissingFileError
from unifews.storage.reading import reading
from unifews.training.spec import TrainSpec


def read_toml(path: str | PathLike[str]) -> Values:
    """The settings of a run file, each of them checked; any may be left out, the dataset too."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no run file {path}.") from error
    try:
        settings = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError, a number of 5,000 digits
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")
        raise FileFormatError(f"{path} is no run file: {reason}. Write lines such as  edge_sparsity = 0.9.") from error
    try:
        with reading(path, "the settings of a run"):
            TrainSpec.of({"dataset": "", **settings})
    except InputError as error:
        raise InputError(f"in {path}, {error}", setting=error.setting) from error
    return settings


def write_toml(spec: TrainSpec) -> str:
    """A run file that repeats the run: every setting that has a value, the recipe in a table."""
    return to_toml(spec.to_dict())
