"""Writes below every Python block of the pages what it prints: `python docs/outputs.py`, all of them or those named.

A test runs the pages as well and fails where a block fails, or prints other words than the page shows. Numbers may differ:
they depend on the machine.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

DOCS = Path(__file__).parent
PAGES = [DOCS / "quickstart.md", DOCS / "faq.md", *sorted(DOCS.glob("tutorials/*.md"))]

_BY_CLOCK = "times as long as unpruned propagation"  # said by some machines and not by others
_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)


def filled(text: str) -> str:
    """A page with what its blocks print, run one after the other with the same names, in the current folder."""
    names: dict[str, object] = {}

    def fill(block: re.Match[str]) -> str:
        with redirect_stdout(StringIO()) as printed:
            exec(compile(block["code"], "<page>", "exec"), names)
        shown = "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines() if _BY_CLOCK not in line)
        return f"```python\n{block['code']}```\n" + (f"\n```text\n{shown}```\n" if shown else "")

    return _BLOCK.sub(fill, text)


def words(text: str) -> str:
    """A page without its numbers and the room they take."""
    return re.sub(r"\s+", " ", re.sub(r"-?\d[\d,.]*(e[-+]?\d+)?|\binf\b", "#", text))


if __name__ == "__main__":
    for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
            os.chdir(DOCS)
