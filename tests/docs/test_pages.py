"""The pages build without a warning, no link between them is broken, and every public name is in the reference."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import unifews
import unifews.theory

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS, RESULTS = ROOT / "docs", ROOT / "results"


class Page(HTMLParser):
    """What a page can be pointed at by, and what it points to."""

    def __init__(self, text):
        super().__init__()
        self.names, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.names |= {found.get("id"), found.get("name")}
        self.links += [found[key] for key in ("href", "src") if found.get(key)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    out = tmp_path_factory.mktemp("html")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--doctree-dir", out / "trees"]
    done = subprocess.run([*command, DOCS, out / "html"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {path: Page(path.read_text(encoding="utf-8")) for path in (out / "html").rglob("*.html")}


def page_of(pages, name):
    return next(page for path, page in pages.items() if path.name == name)


def test_links_lead_somewhere(pages):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            named = not address.fragment or target not in pages or unquote(address.fragment) in pages[target].names
            if not (target.exists() and named):
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_options_keep_their_dashes(pages):
    text = next(path for path in pages if path.name == "cli.html").read_text(encoding="utf-8")
    assert "--nproc-per-node=4" in text and "\N{EN DASH}nproc" not in text


def test_every_page_is_built(pages):
    built = {path.stem for path in pages}
    assert {page.stem for page in [*DOCS.rglob("*.md"), *RESULTS.glob("*.md")]} <= built


def test_a_page_of_results_leads_to_its_figures(pages):
    figures = page_of(pages, "figures.html")
    for path, page in pages.items():
        if path.parent.name == "results" and path.stem not in ("index", "figures"):
            anchors = [link.partition("#")[2] for link in page.links if link.startswith("figures.html#")]
            assert len(anchors) == 1 and anchors[0] in figures.names, path.name


def test_the_reference_has_every_public_name(pages):
    wanted = {f"unifews.{name}" for name in unifews.__all__} | {f"unifews.theory.{name}" for name in unifews.theory.__all__}
    missing = wanted - page_of(pages, "api.html").names - {"unifews.__version__"}
    assert not missing, f"add to docs/api.md: {', '.join(sorted(missing))}"


def test_tests_that_are_named_exist():
    text = "".join(page.read_text(encoding="utf-8") for page in [DOCS / "reliability.md", *DOCS.glob("tutorials/*.md")])
    named = set(re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)", text))
    assert named and not [name for name in named if not (ROOT / "tests" / name).exists()]
