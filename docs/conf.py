"""How Sphinx builds these pages: `make docs`."""

from __future__ import annotations

import re
from typing import Any

from unifews import __version__

project, author, release = "unifews", "the unifews authors", __version__
project_copyright = author
html_title = f"unifews {__version__}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "**/.*"]
highlight_language = "text"
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

_LITERAL = re.compile(r"(``.+?``|`[^`]+`)")


def _plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Formulas in docstrings are plain text: |x| is a magnitude, not the name of something to put in its place."""
    for i, line in enumerate(lines):
        parts = _LITERAL.split(line)
        parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
        lines[i] = "".join(parts)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _plain, priority=400)  # before napoleon, which writes markup of its own
