"""Cells of an experiment: each is done once, one after another or side by side, and a stop loses nothing that was finished."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import make_dataclass
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from toy_cells import Toy

from unifews.datasets.folder import save_dataset
from unifews.datasets.gencat import gencat
from unifews.errors import InputError, UnifewsError, UnknownNameError
from unifews.experiments.runner import Status, run_cells
from unifews.kernels import threads_to_use
from unifews.methods import registry
from unifews.training import api
from unifews.training.ledger import Ledger

pytestmark = pytest.mark.slow

DATA = gencat(200, 600, features=8, classes=3, seed=7, name="mine")
BASE = {"dataset": DATA, "model": "gcn", "width": 8, "epochs": 3, "seeds": 2}
CELLS = [BASE, BASE | {"edge_sparsity": 0.5}, BASE | {"method": "random", "edge_sparsity": 0.5}]
BOTH = pytest.mark.parametrize("jobs", [1, 2])


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "runs")


@pytest.fixture
def trained(monkeypatch):
    """The seeds that are trained in this process from here on."""
    seeds = []
    work = api.prepared

    def spied(data, spec, *rest):
        found = work(data, spec, *rest)
        one_seed = found.one_seed

        def counted(number, seed, watch):
            seeds.append((spec.method, seed))
            return one_seed(number, seed, watch)

        found.one_seed = counted
        return found

    monkeypatch.setattr(api, "prepared", spied)
    return seeds


def _timeless(value):
    """Without anything that was measured by a clock."""
    if isinstance(value, dict):
        return {name: _timeless(part) for name, part in value.items() if "seconds" not in name}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def lasting(record):
    """What does not change from one time to the next."""
    seeds = [_timeless(seed) for seed in record["seeds"]]
    trace = {name: value for name, value in record["trace"].items() if "seconds" not in name and name not in ("hops", "kernel")}
    return {name: record[name] for name in ("id", "spec", "scores", "dataset")} | {"seeds": seeds, "trace": trace}


class TestTrainings:
    def test_are_those_of_train(self, ledger):
        records = run_cells(CELLS, ledger)
        for settings, record in zip(CELLS, records, strict=True):
            assert lasting(record) == lasting(api.train(**settings).to_dict())

    def test_that_the_ledger_holds_are_not_repeated(self, ledger, trained):
        first = run_cells(CELLS[:2], ledger)
        assert len(trained) == 4
        records = run_cells(CELLS, ledger)
        assert records[:2] == first and trained[4:] == [("random", 42), ("random", 43)]
        assert run_cells(CELLS, ledger) == records and len(trained) == 6
        assert [record["id"] for record in ledger.records()] == [record["id"] for record in records]

    def test_made_with_other_defaults_of_a_method_are_not_those_asked_for(self, ledger, trained, monkeypatch):
        [before] = run_cells([BASE | {"method": "dspar", "edge_sparsity": 0.5}], ledger)
        other = make_dataclass("Dspar", [("factors", bool, False)], bases=(registry.find("dspar"),), frozen=True)
        monkeypatch.setitem(registry._OWN, "dspar", other)
        [after] = run_cells([BASE | {"method": "dspar", "edge_sparsity": 0.5}], ledger)
        assert after["id"] != before["id"] and len(trained) == 4 and len(ledger.records()) == 2

    def test_seeds_left_beside_a_finished_run_are_cleared_away(self, ledger, trained):
        [record] = run_cells(CELLS[:1], ledger)
        ledger.save_partial(record["id"], record["seeds"])
        run_cells(CELLS[:1], ledger)
        assert not ledger.partial_file(record["id"]).exists() and len(trained) == 2

    def test_asked_for_twice_run_once(self, ledger, trained):
        one, two = run_cells([BASE, dict(BASE)], ledger)
        assert one == two and len(trained) == 2

    def test_go_on_with_the_next_seed_after_a_stop(self, ledger, trained):
        def stop(status: Status) -> None:
            if any("random" in words and "seed 43" in words for words in status.running):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_cells(CELLS, ledger, progress=stop)
        assert len(ledger.records()) == 2
        del trained[:]
        records = run_cells(CELLS, ledger)
        assert trained == [("random", 43)]
        assert lasting(records[2]) == lasting(api.train(**CELLS[2]).to_dict())

    def test_side_by_side_give_the_same(self, tmp_path):
        save_dataset(DATA, tmp_path / "mine")
        cells = [*CELLS, BASE | {"dataset": tmp_path / "mine", "model": "sgc", "hops": 2}]
        before = torch.get_num_threads()
        torch.set_num_threads(max(1, threads_to_use(None) // 2))  # as many as each of two has: sums depend on it
        try:
            alone, together = (run_cells(cells, Ledger(tmp_path / str(jobs)), jobs=jobs) for jobs in (1, 2))
        finally:
            torch.set_num_threads(before)
        assert [lasting(record) for record in together] == [lasting(record) for record in alone]
        assert {record["id"] for record in Ledger(tmp_path / "2").records()} == {record["id"] for record in alone}

    @pytest.mark.parametrize(
        "wrong, kind, says",
        [
            ({"method": "glt", "model": "sage", "edge_sparsity": 0.5}, InputError, "for sage take"),
            ({"edge_sparsity": 1.5}, InputError, "edge_sparsity"),
            ({"method": "dspr"}, UnknownNameError, "Did you mean 'dspar'"),
            ({"dataset": "no/such"}, UnifewsError, "no/such"),
            ({"split": "stored"}, InputError, "stratified"),
        ],
    )
    def test_that_cannot_work_are_told_before_any_starts(self, ledger, trained, wrong, kind, says):
        with pytest.raises(kind, match=says):
            run_cells([*CELLS, BASE | wrong], ledger)
        assert not trained and not ledger.records()

    def test_need_a_dataset(self, ledger):
        with pytest.raises(InputError, match="needs a `dataset`"):
            run_cells([{"model": "gcn"}], ledger)


class TestAnyCells:
    @BOTH
    def test_come_back_in_their_order(self, ledger, jobs):
        names = ["a", "b", "c", "d", "b"]
        outcomes = run_cells([Toy("a", seconds=0.2), *map(Toy, names[1:])], ledger, jobs=jobs)
        assert [record["id"] for record in outcomes] == names
        assert sorted(record["id"] for record in ledger.records()) == ["a", "b", "c", "d"]

    @BOTH
    def test_one_that_is_impossible_leaves_its_reason_and_the_others_go_on(self, ledger, jobs):
        outcomes = run_cells([Toy("a"), Toy("impossible"), Toy("b")], ledger, jobs=jobs)
        assert [type(outcome) for outcome in outcomes] == [dict, InputError, dict]
        assert str(outcomes[1]) == "this cannot be done; ask for something else."

    @BOTH
    def test_a_mistake_of_ours_is_not_hidden(self, ledger, jobs):
        with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
            run_cells([Toy("a"), Toy("bug"), Toy("b")], ledger, jobs=jobs)
        assert not active_children()

    def test_a_process_that_dies_is_told_and_the_same_call_goes_on(self, ledger):
        with pytest.raises(UnifewsError, match=r"toy dies exited with code 9"):
            run_cells([Toy("a"), Toy("dies", seconds=1)], ledger, jobs=2)
        assert not active_children()
        before = ledger.records()
        assert [record["id"] for record in before] == ["a"]
        assert run_cells([Toy("a"), Toy("b")], ledger, jobs=2)[0] == before[0]

    def test_processes_share_out_the_cores_and_end(self, ledger, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "6")
        records = run_cells([Toy("a", seconds=0.5), Toy("b", seconds=0.5), Toy("c")], ledger, jobs=2)
        assert {record["threads"] for record in records} == {"3"} and os.environ["OMP_NUM_THREADS"] == "6"
        processes = {record["process"] for record in records}
        assert len(processes) == 2 and os.getpid() not in processes
        assert not active_children()

    @BOTH
    def test_a_stop_ends_everything(self, ledger, jobs):
        def stop(status: Status) -> None:
            if status.done == 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_cells(
                [Toy("a"), Toy("b", seconds=30 if jobs > 1 else 0), Toy("c", seconds=30)], ledger, jobs=jobs, progress=stop
            )
        assert not active_children()
        assert [record["id"] for record in ledger.records()] == ["a"]

    @BOTH
    def test_progress_tells_what_runs_and_how_long_it_takes(self, ledger, jobs):
        seen: list[Status] = []
        run_cells([Toy("a")], ledger)
        run_cells([Toy("a"), Toy("b", cost=1, seconds=0.2), Toy("c", cost=3)], ledger, jobs=jobs, progress=seen.append)
        assert [status.done for status in seen] == sorted(status.done for status in seen)
        assert (seen[0].done, seen[-1].done) == (1, 3) and {status.of for status in seen} == {3}
        assert any("toy b, halfway" in status.running for status in seen)
        assert seen[0].seconds_left is None and seen[-1].seconds_left == 0 and seen[-1].running == ()

    def test_the_time_left_goes_by_what_cells_cost(self, ledger):
        seen: list[Status] = []
        run_cells([Toy("a", seconds=0.3), Toy("b", cost=4)], ledger, progress=seen.append)
        after_one = next(status for status in seen if status.done == 1)
        assert after_one.seconds_left == pytest.approx(4 * 0.3, rel=0.2)

    def test_nothing_to_do_is_no_mistake(self, ledger):
        assert run_cells([], ledger) == []

    @pytest.mark.parametrize("jobs", [0, -1, 1.5, True])
    def test_jobs_are_a_whole_number(self, ledger, jobs):
        with pytest.raises(InputError, match="`jobs` must be an integer"):
            run_cells([Toy("a")], ledger, jobs=jobs)


def test_two_processes_with_one_ledger_do_every_cell_once(ledger):
    """And both have all records."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from toy_cells import Toy; from unifews.experiments.runner import run_cells\n"
        "from unifews.training.ledger import Ledger\n"
        "found = run_cells([Toy(f'cell{i}', seconds=0.1) for i in range(6)], Ledger(sys.argv[1]), jobs=int(sys.argv[3]))\n"
        "print([record['id'] for record in found])\n"
    )
    command = [sys.executable, "-c", script, str(ledger.path), str(Path(__file__).parent)]
    both = [subprocess.Popen([*command, jobs], stdout=subprocess.PIPE, text=True) for jobs in "12"]
    expected = [f"cell{i}" for i in range(6)]
    assert [process.communicate(timeout=120)[0] for process in both] == [f"{expected}\n"] * 2
    assert sorted(record["id"] for record in ledger.records()) == expected
    assert [path.name for path in ledger.path.parent.iterdir()] == ["ledger.jsonl"]


def test_a_cell_that_another_process_is_at_is_left_for_last(ledger):
    """Others are done meanwhile."""
    order, cells = [], [Toy("a"), Toy("b"), Toy("c")]

    def progress(status):
        order.extend(what for what in status.running if what not in order)
        if "toy a, waiting for another process" in status.running:
            held.__exit__(None, None, None)

    held = ledger._claimed("a", True, lambda: None)
    held.__enter__()
    assert [record["id"] for record in run_cells(cells, ledger, progress=progress)] == ["a", "b", "c"]
    assert [record["id"] for record in ledger.records()] == ["b", "c", "a"]
