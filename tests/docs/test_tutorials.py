"""The pages' Python runs, and prints what the pages show, but for the numbers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "outputs.py"))


@pytest.mark.parametrize("page", SCRIPT["PAGES"], ids=lambda page: page.stem)
def test_the_page_runs_and_shows_what_it_prints(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    with torch.random.fork_rng():
        filled = SCRIPT["filled"](text)
    assert SCRIPT["words"](filled) == SCRIPT["words"](text), f"run `python docs/outputs.py {page.name}`"


def test_a_page_that_shows_something_else_is_found():
    page = "```python\nprint('kept', 3)\n```\n\n```text\nremoved 3\n```\n"
    filled = SCRIPT["filled"](page)
    assert filled == "```python\nprint('kept', 3)\n```\n\n```text\nkept 3\n```\n"
    assert SCRIPT["words"](filled) != SCRIPT["words"](page)
    assert SCRIPT["words"](filled) == SCRIPT["words"](filled.replace("kept 3", "kept  4.5e-07"))
