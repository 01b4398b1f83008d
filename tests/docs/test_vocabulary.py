"""User-visible text uses the terms of the field: private words of earlier versions do not come back (docs/glossary.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = ["judged?", "judging", "astray", "rivals?", "afresh", "crew", "desk"]
PHRASES = ("beyond memory", "through files", "at the door", "forth and back", "unless given", "as it is meant")
PRIVATE = re.compile(rf"\b({'|'.join([*WORDS, *PHRASES])})\b")
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "adr").glob("*.md"))]
KEPT = {"glossary.md", "deprecation.py"}  # which say what an old word is called now


def texts(path):
    if path.suffix != ".py":
        return [path.read_text(encoding="utf-8")]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_private_words(path):
    if path.name not in KEPT:
        assert [match[0] for text in texts(path) for match in PRIVATE.finditer(text)] == []


def test_the_words_are_found():
    assert PRIVATE.search("how a classifier is judged") and not PRIVATE.search("a desktop computer")
