"""Pages of results are those of the experiments as they stand: same title, columns and notes, and figures to be drawn."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from unifews.experiments import definitions
from unifews.experiments.results import ExperimentResult
from unifews.report.exhibits import read_exhibit

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", definitions.ids())
class TestResults:
    def test_the_page_is_about_the_experiment_as_it_is(self, name):
        experiment = definitions.find(name)
        page = (RESULTS / f"{experiment.file}.md").read_text()
        assert page.startswith(f"# {experiment.title}\n\n{experiment.shows}\n")
        assert f"`unifews reproduce {name} --scale " in page
        missing = [note for note in experiment.notes if f"- {note}\n" not in page]
        assert not missing

    def test_the_table_has_its_columns(self, name):
        experiment = definitions.find(name)
        with (RESULTS / f"{experiment.file}.csv").open() as file:
            head = next(csv.reader(file))
        wanted = ExperimentResult(experiment, "small", ()).columns()
        assert [column for column in head if column in wanted] == wanted
        assert all(column in wanted or column.endswith(" ±") or column == "note" for column in head)

    def test_its_figures_are_there(self, name):
        experiment = definitions.find(name)
        found = [read_exhibit(path) for path in RESULTS.glob(f"{experiment.file}*.json")]
        mine = [one for one in found if one.id.partition(".")[0] == name]
        assert len(mine) == len(experiment.figures) and {one.experiment for one in mine} == {experiment.title}
        assert all(one.kind == "table" or one.series for one in mine)
