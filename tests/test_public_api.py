"""The public names: there, documented, cheap to import, and as the documents show them."""

from __future__ import annotations

import gzip
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import unifews
from unifews import deprecation

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SAID_ELSEWHERE = {"coefficients", "influence", "to_dict"}  # by the protocol they fulfil, or by their name


@pytest.mark.parametrize("name", unifews.__all__)
def test_every_public_name_is_there_and_documented(name):
    thing = getattr(unifews, name)
    assert name in dir(unifews)
    if name != "__version__":
        assert inspect.getdoc(thing), f"{name} has no docstring"
        assert thing.__module__.startswith("unifews.")


@pytest.mark.parametrize("name", [n for n in unifews.__all__ if inspect.isclass(getattr(unifews, n))])
def test_public_methods_are_documented(name):
    for method, value in vars(getattr(unifews, name)).items():
        if not method.startswith("_") and inspect.isroutine(value) and method not in SAID_ELSEWHERE:
            assert inspect.getdoc(getattr(getattr(unifews, name), method)), f"{name}.{method} has no docstring"


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'unifews' has no attribute 'propogate'"):
        unifews.propogate  # noqa: B018


def test_the_version_is_the_package_s():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert unifews.__version__ == project["version"]


def loaded(code):
    """Heavy modules that `code` leaves imported in a fresh process."""
    heavy = {"numpy", "scipy", "torch", "torch_geometric", "pyarrow", "rich", "typer"}
    script = f"{code}\nimport sys\nprint(*sorted({heavy!r} & set(sys.modules)))"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()


def test_importing_costs_nothing():
    assert loaded("import unifews") == []


def test_propagating_needs_numpy_only():
    code = """
import numpy as np, unifews as uf
g = uf.Graph.from_edge_index([[0, 1], [1, 0]])
uf.propagate(g, np.eye(2), edge_sparsity=.5).embedding
"""
    assert loaded(code) == ["numpy"]


def test_propagate_takes_what_the_design_says():
    parameters = inspect.signature(unifews.propagate).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert list(parameters)[:5] == ["graph", "x", "scheme", "hops", "r"]
    expected = dict(
        scheme="appnp",
        r=0.5,
        edge_sparsity=None,
        threshold=None,
        relative_threshold=None,
        entries="block",
        basis="principal",
        rank=None,
        inherit=False,
        progress=None,
        threads=None,
    )
    assert {name: defaults[name] for name in expected} == expected
    for name in ("embedding", "coordinates", "basis"):
        assert isinstance(getattr(unifews.Propagated, name), property)


WRITTEN = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")]
PAGES = ["README.md", "CHANGELOG.md", "SECURITY.md", *(str(page.relative_to(ROOT)) for page in WRITTEN)]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_s_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks("python"):
        exec(block, names)
    assert unifews.trace(names["model"]).weight_sparsity == pytest.approx(0.9, abs=0.005)  # as its loop asks for


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_the_readme_s_shell_runs(tmp_path):
    data = unifews.powerlaw(200, 2000, num_features=16, seed=31)
    np.save(tmp_path / "x.npy", data.x)
    edges = data.graph.to_edge_index()
    text = "".join(f"{v},{u}\n" for v, u in edges.T[edges[0] < edges[1]])
    (tmp_path / "edges.csv").write_text(text)
    (tmp_path / "edges.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "y.csv").write_text("".join(f"{label}\n" for label in data.y))
    runs = ("unifews propagate", "unifews data convert")
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith(runs)]
    assert len(commands) == 4
    shell = "\n".join(["set -e", f'unifews() {{ "{sys.executable}" -m unifews "$@"; }}', *commands])
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("old", deprecation.MOVED)
def test_a_documented_module_is_found_under_its_old_name(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {deprecation.MOVED[old]}"):
        module = import_module(old)
    new = import_module(deprecation.MOVED[old])
    names = [name for name, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__]
    assert names and all(getattr(module, name) is getattr(new, name) for name in names)


def test_an_argument_is_accepted_by_its_old_name():
    @deprecation.renamed_arguments(again="restart")
    def function(x, *, restart=False):
        return x, restart

    with pytest.warns(DeprecationWarning, match="`again` is now `restart`"):
        assert function(1, again=True) == (1, True)
    assert function(2) == (2, False) and inspect.signature(function).parameters.keys() == {"x", "restart"}
    with pytest.raises(unifews.UnifewsError, match="give `restart` only"):
        function(1, again=True, restart=True)


def test_a_removed_argument_is_refused_with_what_replaces_it():
    @deprecation.removed_arguments(speed="give `threads`")
    def function(x):
        return x

    with pytest.raises(unifews.errors.InputError, match=r"`speed` was removed: give `threads`\.") as caught:
        function(1, speed=3)
    assert caught.value.setting == "speed" and function(1, speed=None) == 1  # None was the default
