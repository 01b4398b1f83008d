"""docs/theory.md: its example runs, and every public name of the theory is on it or documented."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import unifews.theory

PAGE = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")


def test_the_example_runs():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(block, names)
    assert names["certificate"].bound == pytest.approx(0.27)


@pytest.mark.parametrize("name", unifews.theory.__all__)
def test_every_name_is_documented(name):
    thing = getattr(unifews.theory, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        for method, value in vars(thing).items():
            assert method.startswith("_") or not inspect.isroutine(value) or inspect.getdoc(getattr(thing, method)), method


def test_tests_that_the_page_names_are_there():
    folder = Path(__file__).parent
    for file in re.findall(r"`(test_\w+\.py)`", PAGE):
        assert (folder / file).exists(), file
    everything = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {name}(" in everything, name


def test_a_certificate_needs_numpy_only():
    code = """
import numpy as np, sys, unifews as uf
from unifews.theory import Certificate, NodeCertificate
g = uf.Graph.from_edge_index([[0, 1], [1, 0]])
Certificate.of(uf.Sgc(), 2, uf.Diffusion(g)).hop(1.0)
NodeCertificate.of(uf.Appnp(), 1, uf.Diffusion(g)).hop([1.0, 0.0])
print(*sorted({"scipy", "torch"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []
