"""Runs side by side: labels, ratios, whose baseline is whose."""

from __future__ import annotations

from copy import deepcopy

import pytest

from unifews.datasets.gencat import gencat
from unifews.report.runs import Gain, Row, baseline_of, label_of, labels_of
from unifews.report.tables import legend, run_table, short, terminal_table
from unifews.training.api import train
from unifews.training.spec import PAPER

DATA = gencat(200, 600, features=8, classes=2, seed=7, name="mine")
SMALL = dict(hops=2, width=4, epochs=2, seeds=2)
UNPRUNED = train(DATA, **SMALL).to_dict()
PRUNED = train(DATA, **SMALL, edge_sparsity=0.75, weight_sparsity=0.5).to_dict()
for _record in (UNPRUNED, PRUNED):  # whatever this machine takes
    _record["seconds"] |= {"propagate": 1.0, "train": 2.0}


def changed(record, **spec):
    record = deepcopy(record)
    record["spec"] |= spec
    return record


class TestLabels:
    @pytest.mark.parametrize(
        "settings, label",
        [
            ({}, "unpruned"),
            ({"edge_sparsity": 0.0}, "unpruned"),
            ({"edge_sparsity": 0.9}, "edges .9"),
            ({"edge_threshold": 0.01, "weight_sparsity": 0.5}, "edges ≥ 0.01, weights .5"),
            ({"edge_sparsity": 0.5, **PAPER}, "paper's form, edges .5"),
            ({**PAPER}, "unpruned"),
            ({"max_error": 0.05}, "max error .05"),
            ({"max_error": 0.05, "weight_sparsity": 0.5}, "max error .05, weights .5"),
        ],
    )
    def test_what_is_pruned(self, settings, label):
        assert label_of(changed(UNPRUNED, **settings)) == label

    def test_dataset_and_model_only_where_they_differ(self):
        assert labels_of([UNPRUNED, PRUNED]) == ["unpruned", "edges .75, weights .5"]
        assert labels_of([UNPRUNED, changed(UNPRUNED, model="sgc")]) == ["appnp unpruned", "sgc unpruned"]
        assert labels_of([UNPRUNED, changed(UNPRUNED, dataset="cora")]) == ["mine unpruned", "cora unpruned"]


def gains(record, baseline):
    """The gains of a record over a baseline as the table shows them."""
    pruned = changed(record, edge_sparsity=0.75)
    _, rows = run_table([changed(baseline, edge_sparsity=None, weight_sparsity=None), pruned])
    return [cell.small for cell in rows[1][1:]]


class TestGain:
    def test_differences_are_taken_seed_by_seed(self):
        one, other = deepcopy(PRUNED), deepcopy(UNPRUNED)
        for record, tests in ((one, (81.0, 63.0)), (other, (80.0, 60.0))):
            for seed, test in zip(record["seeds"], tests, strict=True):
                seed["test"] = test
        gain = Gain.of(one, other)
        assert (gain.points, gain.spread, gain.seeds) == (2.0, 1.0, 2)
        assert gains(one, other)[0] == "+2.0 ± 1.0"

    def test_other_seeds_have_only_means_in_common(self):
        other = deepcopy(UNPRUNED)
        for seed in other["seeds"]:
            seed["seed"] += 100
        gain = Gain.of(PRUNED, other)
        assert gain.seeds == 0 and gain.points == PRUNED["scores"]["test"] - UNPRUNED["scores"]["test"]

    def test_ratios(self):
        gain = Gain.of(PRUNED, UNPRUNED)
        assert gain.macs == UNPRUNED["trace"]["macs"] / PRUNED["trace"]["macs"] > 3
        everything = sum(PRUNED["trace"][name] for name in ("macs", "basis_macs", "transform_macs"))
        assert Row.of(PRUNED).operations == everything > PRUNED["trace"]["basis_macs"] > 0

    def test_nothing_to_divide(self):
        nothing = deepcopy(UNPRUNED)
        nothing["trace"]["macs"] = 0
        assert Gain.of(nothing, UNPRUNED).macs is None

    def test_better_and_worse_are_said(self):
        slow = deepcopy(UNPRUNED)
        slow["seconds"] = {"propagate": UNPRUNED["seconds"]["propagate"] * 2, "train": UNPRUNED["seconds"]["train"] * 1.01}
        assert gains(slow, UNPRUNED)[-2:] == ["2.0x slower", "the same"]
        assert gains(UNPRUNED, slow)[-2] == "2.0x faster"


class TestBaseline:
    def test_the_unpruned_run_that_is_the_same_otherwise(self):
        others = [changed(UNPRUNED, seed=1), changed(UNPRUNED, model="sgc"), PRUNED, UNPRUNED]
        assert baseline_of(PRUNED, others) is UNPRUNED
        assert baseline_of(PRUNED, others[:-1]) is None and baseline_of(UNPRUNED, others) is None

    def test_the_paper_s_form_has_the_same_one(self):
        assert baseline_of(changed(PRUNED, **PAPER), [UNPRUNED]) is UNPRUNED


class TestTable:
    def test_a_column_per_run_and_one_for_the_gain(self):
        assert [str(column.header) for column in terminal_table([UNPRUNED, PRUNED]).columns] == [
            "",
            "unpruned",
            "edges .75, weights .5",
            "against\nunpruned",
        ]
        assert len(terminal_table([PRUNED]).columns) == 2

    def test_lines_without_anything_are_left_out(self):
        names = list(terminal_table([UNPRUNED]).columns[0].cells)
        assert "propagation MACs" in names and "weights removed" not in names and "principal axes MACs" not in names
        assert len(run_table([PRUNED])[0]) == 10 and "weights removed" in list(terminal_table([PRUNED]).columns[0].cells)

    def test_the_legend_says_what_applies(self):
        assert not any("Principal axes" in sentence for sentence in legend([UNPRUNED]))
        assert any("Principal axes" in sentence for sentence in legend([UNPRUNED, PRUNED]))

    @pytest.mark.parametrize(
        "count, text", [(0, "0"), (999, "999"), (1830, "1.83 k"), (29_197_440, "29.2 M"), (10**12, "1.00 T")]
    )
    def test_three_digits(self, count, text):
        assert short(count) == text
