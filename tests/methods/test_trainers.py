"""The contract of `Trainer`, for every method and every model that it works on; then what each method does."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from method_cases import CARDS, learnable
from real_data import FOLDER

import unifews as uf
from unifews.core.graph import Graph
from unifews.errors import GraphError, InputError
from unifews.methods import registry
from unifews.methods.base import Trainer, TrainingTask
from unifews.methods.cgp import Cgp, _chosen
from unifews.methods.dspar import Dspar
from unifews.methods.gebt import Gebt, _MaskDistance
from unifews.methods.glt import Glt
from unifews.methods.random import Random
from unifews.methods.selection import draw_different, undirected_edges
from unifews.nn.masked import MaskedModel
from unifews.nn.models import build
from unifews.report.runs import label_of
from unifews.training.spec import TrainSpec

pytestmark = pytest.mark.slow

TRAINERS = [name for name in CARDS if name != "unifews" and issubclass(registry.find(name), Trainer)]
CLAIMS = [(name, model) for name in TRAINERS for model in CARDS[name].backbones]
DATA = learnable()
EDGES, N = DATA.graph.num_edges, DATA.num_nodes
HOW = dict(width=16, epochs=40, patience=0, lr=1e-2, dropout=0.2)


class OnTensors:
    """What a method is given of a graph."""

    def __init__(self, data=DATA):
        self.x = torch.from_numpy(data.x)
        self.edge_index = torch.from_numpy(data.graph.to_edge_index())
        self.edge_weight = None


def stages_of(method, model, data=None, **wanted):
    """The stages of a method, once it has accepted the task."""
    return method.stages(TrainingTask.of(method, model, OnTensors() if data is None else data, **wanted))


def pairs(model):
    """The undirected edge of each edge, and the ends of those."""
    group, ends = undirected_edges(*(part.numpy() for part in model.ends), N)
    return torch.from_numpy(group), ends


def plain(model="gcn", seed=641):
    torch.manual_seed(seed)
    return build(model, DATA.num_features, DATA.num_classes, width=16)


def shares(method):
    both = "weights" in CARDS[method].prunes
    return dict(edge_sparsity=0.6, weight_sparsity=0.5) if both else dict(edge_sparsity=0.6)


# ------------------------------------------------------------------------------------------------------------ every claim


def test_the_five_are_there():
    assert {"random", "dspar", "glt", "gebt", "cgp"} <= set(TRAINERS)
    assert all(isinstance(registry.resolve(name), Trainer) for name in TRAINERS)


@pytest.mark.parametrize("method, model", CLAIMS)
def test_a_claim(method, model):
    run = uf.train(DATA, model, method, seed=643, **HOW, **shares(method))
    assert run.accuracy.test > 60  # a third of the nodes is of each class
    assert run.trace.edge_sparsity == pytest.approx(0.6, abs=2 / EDGES)
    assert run.trace.weight_sparsity == pytest.approx(0.5 if "weights" in CARDS[method].prunes else 0, abs=2e-3)
    assert run.seeds[0].epochs == 40  # searching counts
    assert method in run.trace.requested and not any("instead of" in note for note in run.trace.notes)

    kept = {hop.edges_kept for hop in run.trace.hops}
    assert len(kept) == 1  # one set of edges for all layers
    for hop in run.trace.hops:
        assert hop.edges == EDGES and hop.macs == hop.edges_kept * hop.width and hop.dense_macs == EDGES * hop.width
    unpruned = uf.train(DATA, model, **HOW | {"epochs": 1})
    assert run.trace.dense_macs == unpruned.trace.dense_macs
    assert run.trace.dense_transform_macs == unpruned.trace.dense_transform_macs


@pytest.mark.parametrize("method, model", CLAIMS)
def test_accuracy_and_cost_are_of_the_same_pass_and_the_same_again(method, model):
    run, again = (uf.train(DATA, model, method, seed=647, **HOW | {"epochs": 12}, **shares(method)) for _ in range(2))
    assert torch.equal(run.model.keep, again.model.keep)
    for one, two in zip(run.model.weights, again.model.weights, strict=True):
        assert torch.equal(one.keep, two.keep) and torch.equal(one.matrix, two.matrix)
        assert bool((one.matrix[~one.keep] == 0).all())
    assert run.accuracy == again.accuracy
    with torch.no_grad():
        given = OnTensors()
        scores = run.model(given.x, given.edge_index)
    test = DATA.split(647).test
    assert 100 * np.mean(scores.argmax(1).numpy()[test] == DATA.y[test]) == pytest.approx(run.accuracy.test)
    assert uf.trace(run.model).macs == run.trace.macs


@pytest.mark.parametrize("method, model", CLAIMS)
def test_self_loops_stay(method, model):
    """Those that are given, and those that a layer adds: a node of which all edges are gone still learns of itself."""
    loops = np.stack([np.arange(N), np.arange(N)])
    index = np.concatenate([DATA.graph.to_edge_index(), loops], axis=1)
    data = replace(DATA, graph=Graph.from_edge_index(index, N))
    run = uf.train(data, model, method, seed=653, edge_sparsity=0.9, **HOW | {"epochs": 12})
    given = OnTensors(data)
    with torch.no_grad():
        run.model(given.x, given.edge_index)
        placed = run.model._placed
    ours = given.edge_index[0] == given.edge_index[1]
    assert bool(placed.chosen[ours].all()) and int(placed.chosen.sum()) == int(run.model.keep.sum()) + int(ours.sum())
    assert bool((run.model.keys // N != run.model.keys % N).all())
    assert run.trace.edge_sparsity == pytest.approx(0.9, abs=2 / EDGES)


@pytest.mark.parametrize("method", TRAINERS)
def test_the_given_model_is_left_alone_and_other_seeds_remove_others(method):
    model, found = plain(), []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for seed in (659, 661):
        stages = list(_run(registry.resolve(method), model, seed=seed, edge_sparsity=0.5))
        found.append(stages[-1].model.keep.clone())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(hasattr(module, "session") for module in model.modules())
    assert not torch.equal(*found)


def _run(method, model, *, seed=659, epochs=8, data=None, **wanted):
    """Every stage of a method, trained by hand."""
    data = OnTensors() if data is None else data
    labels = torch.from_numpy(DATA.y)
    for stage in stages_of(method, model, data, epochs=epochs, seed=seed, **wanted):
        optimizer = torch.optim.Adam(stage.model.parameters(), lr=1e-2)
        for epoch in range(stage.epochs):
            stage.model.train()
            optimizer.zero_grad()
            stage.before_step(epoch)
            loss = torch.nn.functional.cross_entropy(stage.model(data.x, data.edge_index), labels)
            more = stage.penalty()
            (loss if more is None else loss + more).backward()
            optimizer.step()
            stage.after_step(epoch)
            if stage.after_epoch(epoch, 50.0):
                break
        yield stage


def test_the_record_says_it_all_and_an_interrupted_run_goes_on(tmp_path):
    def stop(number, epoch):
        if number == 1:
            raise KeyboardInterrupt

    how = dict(method="glt:rounds=2", edge_sparsity=0.5, seeds=2, ledger=tmp_path) | HOW | {"epochs": 12}
    with pytest.raises(KeyboardInterrupt):
        uf.train(DATA, "gcn", watch=stop, **how)
    epochs = []
    run = uf.train(DATA, "gcn", watch=lambda number, epoch: epochs.append((number, epoch.number, epoch.of)), **how)
    assert epochs == [(1, number, 12) for number in range(12)]  # counted on over the rounds, of the seed that was left
    record = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert TrainSpec.of(record["spec"]) == run.spec and record["id"] == run.id
    assert label_of(record) == "glt:rounds=2, edges .5" and label_of({"spec": run.spec.unpruned().to_dict()}) == "unpruned"


# ---------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "method, settings, sentence",
    [
        ("gebt", dict(model="gat", edge_sparsity=0.5), "works on model='gcn' or 'gcnii', not on 'gat'; for gat take"),
        (
            "cgp",
            dict(model="sage", edge_sparsity=0.5),
            "for sage take method='dspar' or 'effective-resistance' or 'k-neighbor'",
        ),
        ("glt", dict(model="appnp", edge_sparsity=0.5), "not on 'appnp'"),
        ("dspar", dict(model="gcn", weight_sparsity=0.5), "method 'dspar' removes no weights"),
        ("glt", dict(model="gcn"), "method 'glt' needs an amount to remove; give edge_sparsity or weight_sparsity"),
        ("random", dict(model="gcn", edge_sparsity=0.5, task="links"), "for task='links' take method='unifews'"),
        ("random", dict(model="gcn", edge_threshold=0.5), "method 'random' has no threshold in layers; give edge_sparsity"),
        ("cgp", dict(model="gcn", edge_sparsity=0.5, entries="node"), "`entries` belongs to method='unifews'"),
        ("glt", dict(model="gcn", edge_sparsity=0.5, epochs=5), "give epochs=9 or more, or fewer rounds"),
        ("gebt", dict(model="gcn", edge_sparsity=0.5, epochs=1), "give epochs=2 or more instead of 1"),
        ("glt:rounds=0", dict(model="gcn", edge_sparsity=0.5), "`rounds` must be an integer of at least 1; got 0"),
        ("cgp:until=1", dict(model="gcn", edge_sparsity=0.5), "`until` must be a number in [0, 0.95]; got 1"),
    ],
)
def test_what_cannot_be_done_is_told_before_training(method, settings, sentence):
    seen = []
    with pytest.raises(InputError) as error:
        uf.train(DATA, method=method, watch=lambda number, epoch: seen.append(epoch), **settings)
    assert sentence in str(error.value) and not seen


def test_a_task_is_checked_before_the_first_stage():

    @dataclass(frozen=True)
    class Trained(Trainer):
        card = CARDS["dspar"]

    wrong = OnTensors()
    wrong.edge_index = torch.zeros(3, 4)
    with pytest.raises(InputError, match="removes no weights; leave weight_sparsity out"):
        TrainingTask.of(Trained(), plain(), OnTensors(), weight_sparsity=0.5)
    with pytest.raises(InputError, match="needs an amount to remove; give edge_sparsity, such as"):
        TrainingTask.of(Trained(), plain(), OnTensors())
    with pytest.raises(GraphError, match=r"`edge_index` has shape \[3, 4\]"):
        TrainingTask.of(Trained(), plain(), wrong, edge_sparsity=0.5)
    with pytest.raises(NotImplementedError, match="Trained is a Trainer without `stages"):
        stages_of(Trained(), plain(), edge_sparsity=0.5)


@pytest.mark.parametrize("method", TRAINERS)
def test_a_graph_without_edges(method):
    alone = replace(DATA, graph=Graph.from_edge_index(np.stack([np.arange(N), np.arange(N)]), N))
    with pytest.raises(InputError, match="has no edges between different nodes"):
        uf.train(alone, "gcn", method, edge_sparsity=0.5, **HOW)
    if "weights" in CARDS[method].prunes:
        assert uf.train(alone, "gcn", method, weight_sparsity=0.5, **HOW).trace.weight_sparsity == pytest.approx(0.5, abs=2e-3)


@pytest.mark.parametrize("method", TRAINERS)
def test_weighted_and_directed_graphs_and_what_they_miss(method):
    weighted = replace(DATA, graph=Graph.from_scipy(DATA.graph.to_scipy() * 2.5))
    index = DATA.graph.to_edge_index()
    directed = replace(DATA, graph=Graph.from_edge_index(index[:, np.random.default_rng(733).random(EDGES) < 0.5], N))
    for data in (weighted, directed):
        run = uf.train(data, "gcn", method, edge_sparsity=0.5, **HOW | {"epochs": 16})
        assert run.trace.edge_sparsity == pytest.approx(0.5, abs=0.03) and run.accuracy.test > 50
        told = any("of the 50.0% asked for" in note for note in run.trace.notes)
        assert told == (abs(run.trace.edge_sparsity - 0.5) > 0.01)
    one = replace(DATA, graph=Graph.from_edge_index(np.array([[0], [1]]), N).undirected())
    run = uf.train(one, "gcn", method, edge_sparsity=0.5, **HOW | {"epochs": 16})
    told = any("0.0% instead of the 50.0% asked for: both directions of an edge" in note for note in run.trace.notes)
    assert told == (run.trace.edge_sparsity == 0) == (method in ("dspar", "effective-resistance", "gebt", "k-neighbor"))


# ----------------------------------------------------------------------------------------------------------------- masked


def test_a_masked_model_is_the_model_on_fewer_edges():
    """Degrees, means and softmaxes are those of the edges that stay."""
    given = OnTensors()
    for model in ("gcn", "gat", "sage", "gcnii", "gin"):
        network = plain(model).eval()
        masked = next(stages_of(Random(), network, given, edge_sparsity=0.5, seed=673)).model.eval()
        sender, receiver = masked.ends
        left = torch.stack([sender, receiver])[:, masked.keep]
        with torch.no_grad():
            torch.testing.assert_close(masked(given.x, given.edge_index), network(given.x, left), rtol=1e-4, atol=1e-5)


def test_factors_are_edge_weights_and_have_a_gradient():
    """Of GCN as PyG's own; attention by α ∝ factor · exp(score), so that two equal edges of factor ½ are one."""
    given = OnTensors()
    for model in ("gcn", "gcnii"):
        network = plain(model).eval()
        masked = TrainingTask(CARDS["cgp"], network, given, 0.5, epochs=1, seed=1).masked().eval()
        raw = torch.rand(EDGES, generator=torch.Generator().manual_seed(677)) + 0.5
        masked.set_factors(raw)
        weights = raw.clone().requires_grad_()
        expected, found = network(given.x, torch.stack(masked.ends), weights), masked(given.x, given.edge_index)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        found.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(masked.raw.grad, weights.grad, rtol=1e-3, atol=1e-4)
    network = plain("gat").eval()
    masked = TrainingTask(CARDS["cgp"], network, given, 0.5, epochs=1, seed=1).masked().eval()
    masked.set_factors(torch.where(torch.arange(EDGES) % 3 == 0, 2.0, 1.0))
    twice = torch.stack(masked.ends)
    twice = torch.cat([twice, twice[:, ::3]], dim=1)
    torch.testing.assert_close(masked(given.x, given.edge_index), network(given.x, twice), rtol=1e-4, atol=1e-5)
    masked(given.x, given.edge_index).square().sum().backward()
    assert float(masked.raw.grad.abs().max()) > 0


def test_a_masked_model_on_another_graph():
    """Edges that it has not seen stay; other nodes are refused."""
    given = OnTensors()
    masked = next(stages_of(Random(), plain(), given, edge_sparsity=0.5)).model.eval()
    new = torch.tensor([[0, 1], [75, 76]])
    assert not bool(torch.isin(new[1] * N + new[0], masked.keys).any())
    masked(given.x, torch.cat([given.edge_index, new], dim=1))
    assert uf.trace(masked).hops[0].edges_kept == int(masked.keep.sum()) + 2
    assert uf.trace(masked).hops[0].edges == EDGES + 2
    with pytest.raises(GraphError, match=f"chosen on a graph of {N} nodes; x has {N - 1} rows"):
        masked(given.x[:-1], new)
    with pytest.raises(GraphError, match="takes edge_index"):
        masked(given.x, torch.eye(N).to_sparse())


def test_the_graph_that_is_left_can_be_taken_away():
    """What the model inside sees of the graph is enough to freeze it."""
    for method in ("random", "dspar"):
        run, given = uf.train(DATA, "gcn", method, edge_sparsity=0.5, **HOW | {"epochs": 8}), OnTensors()
        edges, weight = run.model.thin(given.edge_index)
        assert edges.shape[1] == int(run.model.keep.sum()) and (weight is None) == (method == "random")
        fast = uf.compress(run.model.model, given.x, edges, weight)
        with torch.no_grad():
            torch.testing.assert_close(fast.predict(), run.model(given.x, given.edge_index), rtol=1e-4, atol=1e-5)
        twice = run.model.thin(given.edge_index, torch.full((EDGES,), 2.0))[1]
        torch.testing.assert_close(twice, 2 * (torch.ones(edges.shape[1]) if weight is None else weight))
        with pytest.raises(InputError, match="call that, on all edges"):
            uf.desparsify(run.model)(given.x, given.edge_index)


def test_what_was_decided_is_saved_and_copied():
    given = OnTensors()
    one = next(stages_of(Random(), plain(), given, edge_sparsity=0.5, weight_sparsity=0.5, seed=683)).model.eval()
    two = next(stages_of(Random(), plain(), given, edge_sparsity=0.5, weight_sparsity=0.5, seed=691)).model.eval()
    assert not torch.equal(one(given.x, given.edge_index), two(given.x, given.edge_index))
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(given.x, given.edge_index), two(given.x, given.edge_index))


# ------------------------------------------------------------------------------------------------------------ one by one


def test_dspar_keeps_edges_between_nodes_of_few_neighbours_and_is_right_on_average():
    odds = np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
    rng = np.random.default_rng(701)
    counts, draws = zip(*(draw_different(odds, 3, rng) for _ in range(4000)), strict=True)
    counts, draws = np.array(counts), np.array(draws)
    assert bool(((counts > 0).sum(1) == 3).all()) and bool((counts.sum(1) == draws).all())
    stays = (counts > 0).mean(0)
    assert bool((np.diff(stays)[[0, 1, 3]] < 0).all())
    # By a fixed number of draws the factors are 1 on average; stopping at the third edge tilts that, but not by much.
    factor = (counts / (draws[:, None] * odds)).mean(0)
    assert bool((np.abs(factor - 1) < 0.35).all())
    assert draw_different(odds, 6, rng)[1] == 0 and int(draw_different(odds, 6, rng)[0].sum()) == 6
    assert int(draw_different(odds, 0, rng)[0].sum()) == 0


def test_dspar_removes_both_directions_and_sends_by_its_factors():
    given = OnTensors()
    masked = next(stages_of(Dspar(), plain(), given, edge_sparsity=0.7, seed=709)).model
    group, ends = pairs(masked)
    assert ends.shape[1] == EDGES // 2 and bool((torch.bincount(group) == 2).all())
    assert set(torch.bincount(group, weights=masked.keep.double()).tolist()) == {0.0, 2.0}
    assert bool((masked.raw[masked.keep] > 0).all()) and float(masked.raw.mean()) == pytest.approx(1, abs=0.2)
    assert next(stages_of(Dspar(factors=False), plain(), given, edge_sparsity=0.7)).model.raw is None
    told = uf.train(DATA, "sage", "dspar", edge_sparsity=0.5, **HOW | {"epochs": 2}).trace.notes
    assert any("cannot use the factors" in note for note in told)


def test_glt_rewinds_and_removes_more_every_round():
    network, seen = plain(), []
    first = [
        module.weight.detach().clone()
        for module in network.modules()
        if hasattr(module, "in_channels") and hasattr(module, "weight")
    ]
    method = Glt(rounds=3, search=0.6)
    stages = stages_of(method, network, OnTensors(), edge_sparsity=0.488, weight_sparsity=0.875, epochs=15)
    for number, stage in enumerate(stages):
        model = stage.model
        seen.append((stage.epochs, int(model.keep.sum()) / EDGES, model))
        for weight, start in zip(model.weights, first, strict=True):
            assert torch.equal(weight.matrix, start)
        kept = sum(int(weight.keep.sum()) for weight in model.weights) / sum(weight.keep.numel() for weight in model.weights)
        assert kept == pytest.approx(0.5**number, abs=0.01)
        for weight in model.weights:
            weight.matrix.data.add_(1)  # what a round has learnt is forgotten
        if model.raw is not None:  # the smallest in size go: here those of the first edges that are left
            model.raw.data.copy_(torch.linspace(0.5, 1, EDGES))
            model.raw.data[-1] = -2
    assert [epochs for epochs, _, _ in seen] == [3, 3, 3, 6]
    assert [kept for _, kept, _ in seen] == pytest.approx([1, 0.8, 0.64, 0.512], abs=2 / EDGES)
    last = seen[-1][2]
    assert last.raw is None and not len(last.masks)
    assert bool(last.keep[-round(0.512 * EDGES) + 1 :].all()) and not bool(last.keep[: EDGES // 3].any())


def test_glt_pulls_masks_towards_zero():
    stage = next(stages_of(Glt(edge_pull=0.5, weight_pull=0.25), plain(), OnTensors(), edge_sparsity=0.5, weight_sparsity=0.5))
    weights = sum(weight.matrix.numel() for weight in stage.model.weights)
    loss = stage.penalty()
    assert loss.item() == pytest.approx(0.5 * EDGES + 0.25 * weights, rel=1e-4)
    loss.backward()
    assert bool((stage.model.raw.grad == 0.5).all())
    alone = next(stages_of(Glt(), plain(), OnTensors(), edge_sparsity=0.5)).model
    assert not len(alone.masks)  # what is not to be pruned has no mask


def test_gebt_draws_its_ticket_when_masks_no_longer_move():
    moves, mask = _MaskDistance(), torch.zeros(10, dtype=torch.bool)
    found = []
    for moved in (0, 4, 1, 0, 0, 0, 0):
        mask = mask.clone()
        mask[:moved] ^= True
        found.append(moves([mask]))
    assert found == [0, 1, 0.75, 0.75, 0.25, 0, 0]

    search, last = _run(Gebt(distance=2.0), plain(), edge_sparsity=0.5, weight_sparsity=0.5, epochs=30)
    assert search.drawn and search.done == 7 and last.epochs == 23  # what is spared is left to train
    late = list(_run(Gebt(distance=0.0), plain(), edge_sparsity=0.5, epochs=6))
    assert not late[0].drawn and late[0].done == 3
    given = OnTensors()
    late[1].model(given.x, given.edge_index)
    assert any("masks still changed after 3 epochs" in note for note in uf.trace(late[1].model).notes)


def test_gebt_trains_the_weights_that_the_ticket_was_drawn_with():
    stages = stages_of(Gebt(), plain(), OnTensors(), edge_sparsity=0.5, weight_sparsity=0.5, epochs=6)
    search = next(stages)
    for weight in search.model.weights:
        weight.matrix.data.mul_(3)
    search.after_epoch(0, 50.0)
    last = next(stages).model
    for mine, drawn in zip(last.weights, search.model.weights, strict=True):
        assert torch.equal(mine.matrix, drawn.matrix)
    kept = torch.cat([weight.matrix[weight.keep].abs() for weight in last.weights])
    gone = torch.cat([weight.matrix[~weight.keep].abs() for weight in last.weights])
    assert kept.min().item() >= gone.max().item()
    group, _ = pairs(last)
    assert set(torch.bincount(group, weights=last.keep.double()).tolist()) == {0.0, 2.0}


def test_cgp_exchanges_what_it_keeps_for_what_is_missed():
    size = torch.tensor([5.0, 4, 3, 2, 1, 9])
    there = torch.tensor([True, True, True, True, True, False])
    missed = torch.tensor([0.0, 0, 0, 1, 2, 3])
    assert _chosen(size, there, None, 3, 0.4).tolist() == [True, True, True, False, False, False]
    assert _chosen(size, there, missed, 3, 1 / 3).tolist() == [True, True, False, False, False, True]


def test_cgp_removes_bit_by_bit_and_an_edge_may_come_back():
    method, given, labels = Cgp(every=4, until=0.5, rate=0.3), OnTensors(), torch.from_numpy(DATA.y)
    stage = next(stages_of(method, plain(), given, edge_sparsity=0.8, weight_sparsity=0.5, epochs=24, seed=719))
    kept, masks = [], []
    optimizer = torch.optim.Adam(stage.model.parameters(), lr=1e-2)
    for epoch in range(24):
        stage.model.train()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(stage.model(given.x, given.edge_index), labels).backward()
        optimizer.step()
        stage.after_step(epoch)
        kept.append(int(stage.model.keep.sum()) / EDGES)
        masks.append(stage.model.keep.clone())
        assert stage.counts(epoch) == (epoch >= 12)
        assert all(bool((weight.matrix[~weight.keep] == 0).all()) for weight in stage.model.weights)
    expected = [1 - 0.8 * (1 - (1 - t) ** 3) for t in (0, 1 / 3, 2 / 3, 1)]
    assert [kept[0], kept[3], kept[7], kept[11]] == pytest.approx(expected, abs=2 / EDGES) and kept[-1] == kept[11]
    assert bool((masks[11] & ~masks[7]).any())  # came back
    assert all(torch.equal(mask, masks[11]) for mask in masks[12:])


# ---------------------------------------------------------------------------------------------------------------- real


@pytest.mark.data
@pytest.mark.parametrize("method, model", CLAIMS)
def test_better_than_without_a_graph(method, model, cora, cora_mlp):
    run = uf.train(cora, model, method, edge_sparsity=0.3, seed=727, width=64, epochs=50, lr=5e-3)
    assert run.trace.edge_sparsity == pytest.approx(0.3, abs=1e-3)
    assert run.accuracy.test > cora_mlp + 3


@pytest.fixture(scope="module")
def cora():
    if not FOLDER.is_dir():
        pytest.skip("the real graphs are not on this machine (UNIFEWS_DATA)")
    data = uf.load_dataset(FOLDER / "cora-lcc.npz")
    return replace(data, x=data.x[:, :600])  # enough words: GIN takes them dense, and each of nineteen is trained


@pytest.fixture(scope="module")
def cora_mlp(cora):
    return uf.train(cora, "mlp", seed=727, width=64, epochs=30).accuracy.test


def test_masked_is_what_all_of_them_train():
    for method in TRAINERS:
        assert isinstance(next(stages_of(registry.resolve(method), plain(), OnTensors(), edge_sparsity=0.5)).model, MaskedModel)
