"""The layers of the library: imports point downwards, and torch starts at nn."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "unifews"
FILES = sorted(ROOT.rglob("*.py"))
HEIGHT = dict(
    errors=0,
    deprecation=1,
    resources=1,
    storage=2,
    kernels=2,
    core=3,
    theory=4,
    distributed=4,
    io=4,
    propagation=5,
    nn=6,
    datasets=6,
    serving=7,
    methods=7,
    transforms=8,
    training=8,
    experiments=9,
    report=10,
    cli=11,
)
TORCH = {"torch", "torch_geometric"}
TORCH_FREE = {
    *(f"datasets/{name}.py" for name in ("convert", "dataset", "gencat", "powerlaw", "powerlaw_files")),
    *(f"datasets/{name}.py" for name in ("read", "user_files", "verify")),
    "__init__.py",
    "errors.py",
}


def imports(tree):
    """(imported name, whether it happens when the module is loaded), relative imports not being in use."""
    inside = {node for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write imports in full, from unifews…"
            # `from unifews import core` names the part after the import.
            names = [f"unifews.{a.name}" for a in node.names] if node.module == "unifews" else [node.module]
            yield from ((name, node not in inside) for name in names)


def violations(tree, relative):
    """Sentences on what a file imports against the drawing."""
    here = relative.split("/")[0].removesuffix(".py")
    torch_free = relative in TORCH_FREE or HEIGHT.get(here, 10) < HEIGHT["nn"]
    for name, at_load in imports(tree):
        root, _, rest = name.partition(".")
        if root in TORCH and at_load and torch_free:
            yield f"{relative} must stay free of {root}"
        there = rest.split(".")[0]
        if root == "unifews" and here in HEIGHT and there in HEIGHT and there != here and HEIGHT[there] >= HEIGHT[here]:
            yield f"{here} may not import {there}"


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_imports_point_downwards(path):
    assert not list(violations(ast.parse(path.read_text()), path.relative_to(ROOT).as_posix()))


@pytest.mark.parametrize(
    "code, file, sentence",
    [
        ("import torch", "core/graph.py", "must stay free of torch"),
        ("if True:\n    from torch_geometric.data import Data", "datasets/dataset.py", "free of torch_geometric"),
        ("from unifews.core import x", "kernels/packed_weight.py", "kernels may not import core"),
        ("def f():\n    from unifews import methods", "nn/a.py", "nn may not import methods"),
        ("import unifews.cli", "report/page.py", "report may not import cli"),
    ],
)
def test_the_check_finds_what_it_should(code, file, sentence):
    assert any(sentence in found for found in violations(ast.parse(code), file))


def test_the_check_lets_the_right_things_pass():
    code = "import torch\nfrom unifews.core.graph import Graph\nfrom unifews import propagation"
    assert not list(violations(ast.parse(code), "nn/gcn.py"))
    assert not list(violations(ast.parse("def f():\n    import torch"), "propagation/driver.py"))


PAGE = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")


def reachable(edges, start):
    found, waiting = set(), [start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - found
        found |= new
        waiting.extend(new)
    return found


def test_the_picture_in_the_documentation_has_the_arrows_of_the_imports():
    """An arrow for every import between packages that no longer path explains (the transitive reduction)."""
    imported, drawn = {}, HEIGHT.keys() - {"deprecation"}  # old names are not a part of the design
    for path in FILES:
        here = path.relative_to(ROOT).parts[0].removesuffix(".py")
        names = [name.split(".")[1] for name, _ in imports(ast.parse(path.read_text())) if name.startswith("unifews.")]
        if here in drawn:
            imported.setdefault(here, set()).update(set(names) & drawn - {here})
    needed = {
        (a, b)
        for a, targets in imported.items()
        for b in targets
        if not any(b in reachable(imported, c) for c in targets - {b})
    }
    chains = [line.split(" → ") for line in PAGE.split("```text\n")[1].split("```")[0].splitlines()]
    assert {pair for chain in chains for pair in itertools.pairwise(chain)} == needed


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`((?!tests/)[a-z_]+(?:/[a-z_]+)+\.py)`", PAGE))))
def test_modules_that_the_architecture_page_names_exist(file):
    assert (ROOT / file).is_file()
