"""The pages' Python runs, and prints what the pages show, but for the numbers."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

OUTPUTS = Path(__file__).parents[2] / "docs" / "outputs.py"
SCRIPT = runpy.run_path(str(OUTPUTS))


@pytest.mark.parametrize("page", SCRIPT["PAGES"], ids=lambda page: page.stem)
def test_the_page_runs_and_shows_what_it_prints(page, tmp_path):
    """In a process of its own, as a reader would: what other tests have loaded counts against a limit of memory."""
    copy = shutil.copy(page, tmp_path)
    done = subprocess.run([sys.executable, OUTPUTS, copy], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    text, filled = page.read_text(encoding="utf-8"), Path(copy).read_text(encoding="utf-8")
    assert SCRIPT["words"](filled) == SCRIPT["words"](text), f"run `python docs/outputs.py {page.name}`"


def test_a_page_that_shows_something_else_is_found():
    page = "```python\nprint('kept', 3)\n```\n\n```text\nremoved 3\n```\n"
    filled = SCRIPT["filled"](page)
    assert filled == "```python\nprint('kept', 3)\n```\n\n```text\nkept 3\n```\n"
    assert SCRIPT["words"](filled) != SCRIPT["words"](page)
    assert SCRIPT["words"](filled) == SCRIPT["words"](filled.replace("kept 3", "kept  4.5e-07"))
