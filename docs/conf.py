"""How Sphinx builds these pages: `make docs`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from unifews import __version__

project, author, release = "unifews", "the unifews authors", __version__
project_copyright = author
html_title = f"unifews {__version__}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "**/.*"]
highlight_language = "text"
smartquotes_action = "qe"  # no dashes: they would make one of the -- of an option
default_role = "code"  # docstrings write names in single backquotes

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = ["style"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = "$ "

autodoc_type_aliases = {name: name for name in ("ArrayLike", "NDArray", "Floats")}  # as they are written, not as they expand

_LITERAL = re.compile(r"(``.+?``|`[^`]+`)")
_ALIAS = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
_ARRAY = re.compile(r"[~\w.]*ndarray\[tuple\[[~\w.]*Any, \.\.\.\], [~\w.]*dtype\[[~\w.]*?(\w+)\]\]")
_attributes: dict[str, list[str]] = {}


def _plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Formulas in docstrings are plain text: |x| is a magnitude, not the name of something to put in its place."""
    for i, line in enumerate(lines):
        parts = _LITERAL.split(line)
        parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
        lines[i] = "".join(parts)
    if what in ("attribute", "property", "data"):
        _attributes[name] = lines.copy()


def _as_written(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes what stands before a colon for a type; here it is the beginning of a sentence."""
    lines[:] = _attributes.pop(name, lines)


def _short(app: Any, what: str, name: str, obj: Any, options: Any, *texts: str | None) -> tuple[str | None, ...]:
    """Types in signatures as they are written in the code, not as Python spells them out."""
    return tuple(text and _ARRAY.sub(r"NDArray[\1]", _ALIAS.sub(r"\1", text)) for text in texts)


_HERE = Path(__file__).parent
_RESULTS = _HERE.parent / "results"


@cache
def _results() -> Any:
    """The tables and figures in results/."""
    from unifews.report.exhibits import gather

    return gather([_RESULTS])


def _copy_results(app: Any) -> None:
    """results/ lies beside docs/, and Sphinx takes pages from docs/ only: docs/results, which git ignores, is made here."""
    copies = {page.name: _as_page(page.read_text(encoding="utf-8")) for page in _RESULTS.glob("*.md")}
    folder = _HERE / "results"
    folder.mkdir(exist_ok=True)
    for page in folder.glob("*.md"):
        if page.name not in copies:
            page.unlink()
    for name, text in copies.items():
        page = folder / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def _as_page(text: str) -> str:
    """A page of results as it reads below docs/, with a link to its figures."""
    heading = text.partition("\n")[0].removeprefix("# ")
    numbers = [number for number, exhibit in enumerate(_results().exhibits, 1) if exhibit.heading == heading]
    link = f'\n```{{raw}} html\n<p><a href="figures.html#exhibit-{numbers[0]}">Figures</a></p>\n```\n' if numbers else ""
    return text.replace("](../docs/", "](../") + link


def _relocate(app: Any, page: str, source: list[str]) -> None:
    """Links from docs/ to results/ are written as the repository has them."""
    source[0] = re.sub(r"\]\(((?:\.\./)*)\.\./results/", r"](\1results/", source[0])


def _figures(app: Any, failed: Exception | None) -> None:
    """All results on one page, drawn from the files beside them."""
    if failed is None and app.builder.format == "html":
        from unifews.report.page import write_report

        write_report(_results(), Path(app.outdir) / "results" / "figures.html", "unifews: results")


def setup(app: Any) -> None:
    app.connect("builder-inited", _copy_results)
    app.connect("source-read", _relocate)
    app.connect("build-finished", _figures)
    app.connect("autodoc-process-signature", _short)
    app.connect("autodoc-process-docstring", _plain, priority=400)  # before napoleon, which writes markup of its own
    app.connect("autodoc-process-docstring", _as_written, priority=600)
