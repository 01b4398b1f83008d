"""The paper map names every experiment there is, and none that is not."""

from __future__ import annotations

import re
from pathlib import Path

from unifews.experiments import definitions

DOCS = Path(__file__).parents[2] / "docs"


def test_experiments_on_the_map_are_those_that_can_be_run():
    section = (DOCS / "paper-map.md").read_text(encoding="utf-8").split("## Experiments")[1].split("## Deviations")[0]
    rows = [row.split("|") for row in section.splitlines() if row.startswith("| `")]
    named = {match[1] for row in rows if (match := re.fullmatch(r" `([\w:]+)` ", row[3]))}
    own = set(re.findall(r"`(\w+)`\s\(", section.split("/own`:")[1]))
    assert named | own == set(definitions.ids())
    for name in named:
        assert definitions.find(name).label, name  # the paper has it
