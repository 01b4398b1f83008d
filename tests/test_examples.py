"""The scripts of `examples/`, at small size."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SMALL = {
    "compare": [
        "--nodes",
        "200",
        "--epochs",
        "3",
        "--seeds",
        "1",
        "--methods",
        "unifews,random",
    ]
}
SMALL |= {"heterogeneous": ["--nodes", "100", "--epochs", "20"]}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example(path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys,
        "argv",
        [str(path), *SMALL.get(path.stem, ["--nodes", "400", "--epochs", "6"])],
    )
    runpy.run_path(str(path), run_name="__main__")
    assert "accuracy" in (shown := capsys.readouterr().out) or "node 17" in shown or "unifews" in shown


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_is_short(path):
    assert len(path.read_text().splitlines()) <= 80
    assert f"python examples/{path.name}" in path.read_text()
