"""A method is one file: throw-away modules with one of each kind are trained and propagated with, and those of version 0.1."""

from __future__ import annotations

import importlib
import sys
import warnings

import numpy as np
import pytest
from method_cases import graph_of, learnable, words

import unifews as uf
from unifews.errors import InputError, UnknownNameError
from unifews.methods import registry
from unifews.methods.base import EdgeSelector, Propagator, Trainer, propagate_by
from unifews.methods.dspar import Dspar
from unifews.methods.random import Random
from unifews.methods.selection import amount

DATA = learnable()
HOW = dict(width=8, epochs=4, patience=0, lr=1e-2)

SELECTOR = """
from dataclasses import dataclass
import numpy as np
from unifews.methods.base import EdgeSelection, EdgeSelector
from unifews.methods.selection import amount, num_kept
from unifews.methods.registry import method

@method("mine", prunes=("edges",), backbones=("sage", "gcn"), paper="none")
@dataclass(frozen=True)
class Mine(EdgeSelector):
    shift: int = 0

    def select(self, graph, *, x=None, sparsity=None, keep=None, rng):
        count = num_kept(graph.num_edges, amount(graph, sparsity, keep))
        return EdgeSelection(np.roll(np.arange(graph.num_edges) < count, self.shift))
"""
PROPAGATOR = """
from dataclasses import dataclass
import numpy as np
from unifews.core.trace import HopTrace, Trace
from unifews.methods.base import Propagator
from unifews.methods.registry import method

@method("mine", prunes=("edges",), backbones=("sgc",), paper="none")
@dataclass(frozen=True)
class Mine(Propagator):
    undirected = True

    def propagate(self, task):
        values = (task.diffusion.to_scipy() @ task.features.rows(0, task.graph.num_nodes)).astype(np.float32)
        edges, macs = task.graph.num_edges, task.dense_macs
        hops = [HopTrace(i, edges, edges * (i == 0), 0, macs * (i == 0), macs, 0, None, 0.0) for i in range(task.hops)]
        return task.result(values, Trace(tuple(hops), task.requested))
"""
TRAINER = """
from dataclasses import dataclass
from unifews.methods.base import Stage, Trainer
from unifews.methods.selection import keep_largest
from unifews.methods.registry import method

CALLS = []

class Noted(Stage):
    def before_step(self, step):
        CALLS.append(("before", step))

    def after_step(self, step):
        CALLS.append(("after", step))

    def after_epoch(self, epoch, val):
        CALLS.append(("epoch", epoch))
        return epoch == 2

@method("mine", prunes=("weights",), backbones=("gcn",), paper="none")
@dataclass(frozen=True)
class Mine(Trainer):
    def stages(self, task):
        model = task.masked()
        model.keep_weights(keep_largest([weight.matrix.abs() for weight in model.weights], task.weights))
        yield Noted(model, task.epochs)
"""
OLD_TRAINER = """
from dataclasses import dataclass
from unifews.methods.registry import method
from unifews.nn.masked import MaskedModel

class OldStage:
    epochs = 4

    def __init__(self, model):
        self.model, self.losses = model, 0

    def loss(self):
        self.losses += 1

    def after_step(self, step): ...

    def after_epoch(self, epoch, val):
        return False

    def counts(self, epoch):
        return True

@method("mine", prunes=("edges",), backbones=("gcn",), paper="none")
@dataclass(frozen=True)
class Mine:
    def prepare(self, model, data, *, edge_sparsity=None, weight_sparsity=None, epochs=200, seed=42):
        masked = MaskedModel(model, data.edge_index, len(data.x), "half")
        masked.keep[::2] = False
        yield OldStage(masked)
"""


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Imports a temporary module with this code."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(code):
        (tmp_path / "throw_away_method.py").write_text(code)
        importlib.invalidate_caches()
        return importlib.import_module("throw_away_method")

    yield load
    sys.modules.pop("throw_away_method", None)
    registry._LOCAL.pop("mine", None)


def test_an_edge_selector(add):
    module = add(SELECTOR)
    assert issubclass(module.Mine, EdgeSelector)
    run = uf.train(DATA, method="mine:shift=3", edge_sparsity=0.5, **HOW)
    assert run.spec.model == "sage"  # its first backbone
    kept = run.model.keep.numpy()
    assert np.array_equal(kept, np.roll(np.arange(len(kept)) < len(kept) - round(0.5 * len(kept)), 3))
    assert run.trace.edge_sparsity == pytest.approx(0.5, abs=2 / DATA.graph.num_edges)


def test_a_propagator(add):
    module = add(PROPAGATOR)
    assert issubclass(module.Mine, Propagator)
    graph, x = graph_of(), words()
    out = propagate_by(registry.resolve("mine"), graph, x, "sgc", 2)
    np.testing.assert_allclose(out.embedding, uf.Diffusion(graph, 0.5).to_scipy() @ x, rtol=1e-5)
    assert out.trace.edge_sparsity == 0.5
    run = uf.train(DATA, method="mine", hops=2, **HOW)
    assert run.spec.model == "sgc" and run.trace.edge_sparsity == 0.5
    assert run.model(DATA.x, DATA.graph).shape == (DATA.num_nodes, DATA.num_classes)
    with pytest.raises(InputError, match="needs an undirected graph"):
        propagate_by(module.Mine(), uf.Graph.from_edge_index([[0], [1]]), np.eye(2))
    with pytest.raises(UnknownNameError, match="option of method 'mine'"):
        propagate_by(module.Mine(), graph, x, entries="node")


def test_a_trainer_and_its_hooks(add):
    module = add(TRAINER)
    assert issubclass(module.Mine, Trainer)
    run = uf.train(DATA, method="mine", weight_sparsity=0.5, **HOW)
    assert run.spec.model == "gcn" and run.trace.weight_sparsity == pytest.approx(0.5, abs=2e-3)
    assert run.seeds[0].epochs == 3  # ended by the hook
    assert [(when, i) for i in range(3) for when in ("before", "after", "epoch")] == module.CALLS


def test_a_trainer_of_version_0_1_still_runs(add):
    with pytest.warns(DeprecationWarning, match="Mine implements the method contract of version 0.1"):
        add(OLD_TRAINER)
    run = uf.train(DATA, "gcn", "mine", edge_sparsity=0.5, **HOW)
    assert isinstance(run.spec.rule, Trainer) and run.trace.edge_sparsity == pytest.approx(0.5, abs=1e-3)


def test_old_names_warn():
    contract = importlib.import_module("unifews.methods.contract")
    with pytest.warns(DeprecationWarning, match="contract.Decoupled is now unifews.methods.base.Propagator"):
        assert contract.Decoupled is Propagator
    with pytest.warns(DeprecationWarning, match="now unifews.methods.base.Trainer"):
        assert contract.Iterative is Trainer
    result = importlib.import_module("unifews.training.result")
    with pytest.warns(DeprecationWarning, match="Run is now unifews.training.result.TrainResult"):
        assert result.Run is result.TrainResult


@pytest.mark.parametrize("method, model", [("glt", "gcn"), ("ndls", "sgc"), ("agp", "appnp"), ("unifews", "appnp")])
def test_the_default_model_is_one_that_the_method_works_on(method, model):
    run = uf.train(DATA, method=method, edge_sparsity=0.3, **HOW | {"epochs": 8})
    assert run.spec.model == model and run.spec.method == method


# --------------------------------------------------------------------------------------------------------- unifews itself


def test_unifews_fulfils_two_contracts():
    method = registry.resolve("unifews")
    assert isinstance(method, Propagator) and isinstance(method, Trainer)
    graph, x = graph_of(), words()
    for how in ({}, {"edge_sparsity": 0.5}, {"threshold": 0.05}):
        by_method, direct = propagate_by(method, graph, x, "sgc", 4, **how), uf.propagate(graph, x, "sgc", 4, **how)
        assert np.array_equal(by_method.embedding, direct.embedding)
    polynomial = uf.Polynomial([0.5, 0.5])
    assert np.array_equal(propagate_by(method, graph, x, polynomial).embedding, uf.propagate(graph, x, polynomial).embedding)


# ---------------------------------------------------------------------------------------------------------- edge selectors


@pytest.mark.parametrize("method", [Random(), Dspar()])
def test_a_selection_is_by_fraction_or_by_number(method):
    graph = DATA.graph
    one, two = (
        method.select(graph, rng=np.random.default_rng(3), **how)
        for how in ({"sparsity": 0.5}, {"keep": graph.num_edges - round(0.5 * graph.num_edges)})
    )
    assert np.array_equal(one.keep, two.keep) and abs(one.keep.mean() - 0.5) < 0.01
    assert one.factor is None or one.factor.shape == one.keep.shape
    for wrong in ({}, {"sparsity": 0.5, "keep": 3}, {"sparsity": 50}, {"keep": -1}, {"keep": graph.num_edges + 1}):
        with pytest.raises(InputError):
            method.select(graph, rng=np.random.default_rng(3), **wrong)
    assert amount(graph, None, graph.num_edges) == 0


def test_dspar_selects_both_directions():
    graph = DATA.graph
    found = Dspar().select(graph, sparsity=0.7, rng=np.random.default_rng(5))
    kept = set(map(tuple, graph.to_edge_index()[:, found.keep].T.tolist()))
    assert kept == {(v, u) for u, v in kept}


def test_registering_a_new_style_method_warns_of_nothing(add):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add(SELECTOR)
