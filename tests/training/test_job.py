"""A job is checked, split and identified once, whatever is done with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest
from small import QUICK, small

import unifews as uf
from unifews.datasets.dataset import Dataset
from unifews.experiments.runner import run_cells
from unifews.training import job as jobs
from unifews.training.job import TrainingJob
from unifews.training.ledger import Ledger
from unifews.training.spec import DecoupledSpec, LayeredSpec, TrainSpec

DATA = small()
SETTINGS = {"dataset": "small", "hops": 2, "recipe": asdict(QUICK), "seeds": 2}


@pytest.fixture
def calls(monkeypatch):
    """How often specs are built, data are split and fingerprints are computed."""
    counts = Counter()

    def counted(owner, name, key):
        original = getattr(owner, name)

        def count(*arguments, **keywords):
            counts[key] += 1
            return original(*arguments, **keywords)

        monkeypatch.setattr(owner, name, count)

    counted(TrainSpec, "__post_init__", "specs")
    counted(Dataset, "split", "splits")
    counted(jobs, "fingerprint", "fingerprints")
    return counts


def test_train_does_everything_once(calls, tmp_path):
    uf.train(DATA, "sgc", hops=2, recipe=QUICK, seeds=2, ledger=tmp_path)
    assert calls == {"specs": 1, "splits": 2, "fingerprints": 1}  # a split for each seed


def test_a_record_comes_from_training_once_and_from_the_ledger_after(calls, tmp_path):
    ledger, spec = Ledger(tmp_path), TrainSpec.of(SETTINGS)
    job = TrainingJob.prepare(DATA, spec)
    seen = []
    record = job.record(ledger, watch=lambda number, epoch: seen.append(number))
    assert seen and record["id"] == job.id == spec.id(DATA)
    assert calls == {"specs": 1, "splits": 2, "fingerprints": 1}
    seen.clear()
    assert job.record(ledger, watch=lambda number, epoch: seen.append(number)) == record and not seen
    assert job.record(ledger, restart=True, watch=lambda number, epoch: seen.append(number))["id"] == job.id and seen
    assert calls == {"specs": 1, "splits": 2, "fingerprints": 1}


def test_the_unpruned_run_on_the_same_data_shares_split_and_fingerprint(calls):
    job = TrainingJob.prepare(DATA, TrainSpec.of(SETTINGS | {"edge_sparsity": 0.5}))
    plain = job.with_spec(job.spec.unpruned())
    assert plain.id == TrainSpec.of(SETTINGS).id(DATA) != job.id
    assert calls["splits"] == 2 and calls["fingerprints"] == 1
    fewer = job.with_spec(TrainSpec.of(SETTINGS | {"seeds": 1}))
    assert len(fewer.splits) == 1 and calls["fingerprints"] == 1


def test_a_grid_identifies_and_checks_a_dataset_once(calls, tmp_path):
    cells = [SETTINGS | {"dataset": DATA, "edge_sparsity": share} for share in (0.3, 0.5)]
    records = run_cells(cells, Ledger(tmp_path))
    assert [record["spec"]["edge_sparsity"] for record in records] == [0.3, 0.5]
    assert calls["fingerprints"] == 1
    assert calls["splits"] == 3 * 2  # to check them all before the first training, then once for each


def test_seeds_of_another_run_are_reused_without_a_new_fingerprint(calls, tmp_path):
    ledger = Ledger(tmp_path)
    TrainingJob.prepare(DATA, TrainSpec.of(SETTINGS | {"seeds": 1})).record(ledger)
    calls.clear()
    job = TrainingJob.prepare(DATA, TrainSpec.of(SETTINGS))
    assert [seed.seed for seed in job.known_seeds(ledger)] == [42]
    assert calls["fingerprints"] == 1


def test_a_job_without_a_ledger_trains():
    record = TrainingJob.prepare(DATA, TrainSpec.of(SETTINGS)).record(None)
    assert len(record["seeds"]) == 2


def test_the_model_decides_the_class_of_a_spec():
    assert type(TrainSpec.of({"dataset": "a", "model": "sgc"})) is DecoupledSpec
    assert type(TrainSpec.of({"dataset": "a", "model": "gat"})) is LayeredSpec
    assert TrainSpec.of({"dataset": "a", "method": "glt"}).model == "gcn"  # the first model that the method works on
