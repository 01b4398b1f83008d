"""Where a pass begins and ends, whoever calls the layers; and what averages, copies and BatchNorm make of a model."""

from __future__ import annotations

import copy
import io
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from frozen_models import graph
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GAE, GCN, GATv2Conv, GCN2Conv, GCNConv, GINConv, GraphConv, SAGEConv

import unifews as uf
from unifews.errors import InputError

HOW = dict(edge_sparsity=0.5, weight_sparsity=0.6, entries="unit", ramp=4)


class Links(nn.Module):
    """Link prediction as PyG's examples write it: forward is never called."""

    def __init__(self, conv=GCNConv):
        super().__init__()
        self.first, self.second, self.score = conv(20, 32), conv(32, 16), nn.Linear(32, 1)

    def encode(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)

    def decode(self, z, pairs):
        return self.score(torch.cat([z[pairs[0]], z[pairs[1]]], dim=1)).flatten()

    def training_step(self, batch):
        x, edge_index = batch
        return self.decode(self.encode(x, edge_index), edge_index).square().mean()


class Called(Links):
    """The same, driven through its forward."""

    def forward(self, x, edge_index):
        return self.decode(self.encode(x, edge_index), edge_index)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(20, 32), GCNConv(32, 16)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def made(kind, **how):
    torch.manual_seed(0)
    return uf.sparsify(kind(), **{**HOW, **how})


def learn(model, loss, passes=6, after=lambda model: None):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.train()
    for _ in range(passes):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        after(model)


def state(model):
    return copy.deepcopy(model.state_dict())


def assert_pruned(model, passes, hops=2):
    seen = uf.trace(model)
    assert len(seen.hops) == hops
    assert seen.edge_sparsity == pytest.approx(0.5, abs=0.02)
    assert seen.weight_sparsity == pytest.approx(0.6, abs=0.002)
    assert {int(module.passes) for module in model.modules() if hasattr(module, "passes")} == {passes}


# ------------------------------------------------------------------------------------------------- who calls the layers


def test_encode_and_decode_are_the_same_passes_as_forward():
    x, edge_index = graph()
    parts, whole = made(Links), made(Called)
    learn(parts, lambda: parts.decode(parts.encode(x, edge_index), edge_index).square().mean())
    learn(whole, lambda: whole(x, edge_index).square().mean())
    assert_pruned(parts, 6)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[name]), name


def test_a_training_step_that_calls_parts():
    """Lightning drives `training_step` and `validation_step`, and an evaluation in between takes no decision."""
    x, edge_index = graph()
    model, plain = made(Links), made(Links)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(6):
        model.train()
        optimizer.zero_grad()
        model.training_step((x, edge_index)).backward()
        optimizer.step()
        before = state(model)
        model.eval()
        with torch.no_grad():
            model.training_step((x + 1, edge_index))
            model.training_step((x + 2, edge_index))
        assert len(uf.trace(model).hops) == 2
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert_pruned(model, 6)
    learn(plain, lambda: plain.training_step((x, edge_index)))
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in model.state_dict().items())


def test_pygs_autoencoder():
    x, edge_index = graph()
    for model in (made(lambda: GAE(Encoder())), GAE(made(Encoder))):
        learn(model, lambda model=model: model.recon_loss(model.encode(x, edge_index), edge_index))
        assert_pruned(model, 6)
    model.eval()
    with torch.no_grad():
        model.decode(model.encode(x, edge_index), edge_index)
    assert_pruned(model, 6)


def test_layers_of_a_list():
    x, edge_index = graph()
    model = made(lambda: nn.ModuleList([GCNConv(20, 32), GCNConv(32, 32), GCNConv(32, 16)]))

    def loss():
        h = x
        for layer in model:
            h = layer(h, edge_index).relu()
        return h.square().mean()

    learn(model, loss)
    assert_pruned(model, 6, hops=3)
    assert [layer.decided.item() for layer in model] == [True] * 3


def test_the_forward_of_a_model_without_its_call():
    x, edge_index = graph()
    model = made(Encoder)
    learn(model, lambda: model.forward(x, edge_index).square().mean())
    assert_pruned(model, 6)
    fast = uf.compress(model, x, edge_index)
    torch.testing.assert_close(fast.predict(), model.eval()(x, edge_index).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("conv", [SAGEConv, lambda a, b: GATv2Conv(a, b, heads=2, concat=False), GraphConv])
def test_parts_of_other_layers(conv):
    x, edge_index = graph()
    model = made(lambda: Links(conv))
    learn(model, lambda: model.training_step((x, edge_index)))
    assert_pruned(model, 6)


def test_batches_of_other_graphs():
    x, edge_index = graph(200, 1500)
    model = made(Links)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch in range(6):
        edges = edge_index[:, (edge_index < 150 + batch).all(0)]
        optimizer.zero_grad()
        model.training_step((x[: 150 + batch], edges)).backward()
        optimizer.step()
        assert uf.trace(model).hops[0].edges == int((edges[0] != edges[1]).sum())
    assert_pruned(model, 6)


# ------------------------------------------------------------------------------------------------- layers used repeatedly


class Shared(nn.Module):
    """One layer three times in a row, after another or as the first."""

    def __init__(self, into=True):
        super().__init__()
        self.into = nn.Linear(20, 20) if into else nn.Identity()
        self.conv = GCNConv(20, 20)

    def encode(self, x, edge_index):
        x = self.into(x)
        for _ in range(3):
            x = self.conv(x, edge_index).relu()
        return x

    forward = encode


@pytest.mark.parametrize("into", [True, False])
def test_a_layer_that_is_used_several_times_in_one_pass(into):
    x, edge_index = graph()
    parts, whole = (made(lambda: Shared(into)) for _ in range(2))
    learn(parts, lambda: parts.encode(x, edge_index).square().mean())
    learn(whole, lambda: whole(x, edge_index).square().mean())
    assert int(parts.conv.passes) == int(whole.conv.passes) == 6
    assert all(torch.equal(value, parts.state_dict()[name]) for name, value in whole.state_dict().items())
    for model in (parts, whole):
        assert len(uf.trace(model).hops) == 3
        with torch.no_grad():
            model.eval()
            for _ in range(2):
                model.encode(x, edge_index)
        assert len(uf.trace(model).hops) == 3


def test_two_forwards_before_one_backward_are_two_passes():
    """As two calls of a model are."""
    x, edge_index = graph()
    parts, whole = made(Encoder), made(Encoder)
    learn(parts, lambda: (parts.forward(x, edge_index) - parts.forward(2 * x, edge_index)).square().mean(), 3)
    learn(whole, lambda: (whole(x, edge_index) - whole(2 * x, edge_index)).square().mean(), 3)
    assert_pruned(parts, 6)
    assert all(torch.equal(value, parts.state_dict()[name]) for name, value in whole.state_dict().items())


def test_an_evaluation_within_a_training_step_does_not_end_its_pass():
    """Negative edges are often drawn by what the decoder says without a gradient."""
    x, edge_index = graph()
    model, plain = made(Links), made(Links)

    def loss():
        z = model.encode(x, edge_index)
        with torch.no_grad():
            model.decode(z, edge_index)
        return model.decode(z, edge_index).square().mean()

    learn(model, loss)
    learn(plain, lambda: plain.training_step((x, edge_index)))
    assert int(model.first.passes) == 6
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_decoder_that_is_trained_alone():
    x, edge_index = graph()
    model = made(Links)
    with torch.no_grad():
        z = model.eval().encode(x, edge_index)
    learn(model, lambda: model.decode(z, edge_index).square().mean())
    assert int(model.first.passes) == 6
    assert model.score.is_pruned and len(uf.trace(model).hops) == 0
    assert not model.first.lin.is_pruned  # it has not run


def test_weights_that_do_not_run_in_training_are_not_decided_by_an_evaluation():
    x, edge_index = graph()
    model = made(Links)
    learn(model, lambda: model.encode(x, edge_index).square().mean())
    with torch.no_grad():
        z = model.eval().encode(x, edge_index)
        model.decode(z, edge_index)
    assert model.first.lin.is_pruned and not model.score.is_pruned


def test_what_a_checkpoint_makes_again_belongs_to_its_pass():
    x, edge_index = graph()
    parts, plain = made(Encoder), made(Encoder)

    def loss():
        h = checkpoint(parts.first, x, edge_index, use_reentrant=False).relu()
        return parts.second(h, edge_index).square().mean()

    learn(parts, loss)
    learn(plain, lambda: plain(x, edge_index).square().mean())
    assert_pruned(parts, 6)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(value, parts.state_dict()[name], rtol=1e-3, atol=1e-5)


def test_desparsified_models_have_no_hooks():
    model = uf.desparsify(made(lambda: nn.Sequential(GCNConv(20, 8), nn.BatchNorm1d(8))))
    for module in model.modules():
        assert not module._forward_pre_hooks and not module._forward_hooks
        assert not module._forward_pre_hooks_with_kwargs and not module._forward_hooks_always_called


# -------------------------------------------------------------------------------------------------- averages and copies

LAYERS = {
    "gcn": GCNConv,
    "sage": SAGEConv,
    "gatv2": lambda a, b: GATv2Conv(a, b, heads=2, concat=False),
    "gin": lambda a, b: GINConv(nn.Linear(a, b)),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("entries", ["unit", "block", "node"])
def test_averaged_models(kind, entries):
    x, edge_index = graph()
    model = made(lambda: Called(LAYERS[kind]), entries=entries)
    average = AveragedModel(model)
    for _ in range(5):
        learn(model, lambda: model(x, edge_index).square().mean(), 1)
        average.update_parameters(model)
    average.eval()(x, edge_index)
    assert uf.trace(average).edge_sparsity == pytest.approx(0.5, abs=0.1)
    assert uf.trace(average).weight_sparsity == pytest.approx(0.6, abs=0.002)
    assert torch.equal(average.module.first.columns, model.first.columns)
    again = made(lambda: Called(LAYERS[kind]), entries=entries)
    again.load_state_dict(average.module.state_dict())
    torch.testing.assert_close(again.eval()(x, edge_index), average(x, edge_index))


@pytest.mark.parametrize("entries", ["unit", "node"])
def test_an_average_of_buffers_too(entries):
    """Averaged masks are the union of all masks there were; what is removed is decided again, by the averaged weights."""
    x, edge_index = graph()
    model = made(Called, entries=entries)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    for _ in range(8):
        learn(model, lambda: model(x, edge_index).square().mean(), 1)
        average.update_parameters(model)
    average.eval()
    for _ in range(2):
        with torch.no_grad():
            average(x, edge_index)
        seen = uf.trace(average)
        assert seen.edge_sparsity == pytest.approx(0.5, abs=0.02)
        assert seen.weight_sparsity == pytest.approx(0.6, abs=0.02)


def averaged():
    x, edge_index = graph()
    model = made(Called, entries="node")
    average = AveragedModel(model)
    learn(model, lambda: model(x, edge_index).square().mean(), 5, average.update_parameters)
    return model, average.eval(), x, edge_index


def test_an_average_decides_on_edges_by_its_own_weights():
    model, average, x, edge_index = averaged()
    with torch.no_grad():
        average(x, edge_index)
        before = average.module.first.removed
        average(x, edge_index)
    assert torch.equal(average.module.first.removed, before)
    assert len(before) == len(model.first.removed) > 0
    alone = made(Called, entries="node")
    no = torch.tensor(False)
    alone.load_state_dict({**average.module.state_dict(), "first.decided": no, "second.decided": no})
    alone.eval()(x, edge_index)
    assert torch.equal(alone.first.removed, before)
    learn(model, lambda: model(x, edge_index).square().mean(), 20, average.update_parameters)
    average(x, edge_index)
    assert not torch.equal(average.module.first.removed, before)
    assert uf.trace(average).edge_sparsity == pytest.approx(0.5, abs=0.02)


def test_an_average_that_has_not_run_yet_is_saved_undecided(tmp_path):
    _, average, x, edge_index = averaged()
    state = copy.deepcopy(average.module.state_dict())
    assert not bool(state["first.decided"]) and not len(state["first.removed"])
    with pytest.raises(InputError, match=r"no decisions are stored; train it \(an average of models: call it once"):
        uf.compress(average.module, x, edge_index)
    uf.save(average.module, tmp_path / "m")
    again = made(Called, entries="node")
    again.load_state_dict(state)
    loaded = uf.load(tmp_path / "m", into=Called())
    uf.set_schedule(loaded, "frozen")
    scores = average(x, edge_index)
    for other in (again.eval(), loaded.eval()):
        assert torch.equal(other(x, edge_index), scores)
        assert uf.trace(other).edge_sparsity == pytest.approx(0.5, abs=0.02)


def test_states_with_edges_are_complete():
    model, _, x, edge_index = averaged()
    other = made(Called, entries="node")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.first.removed, model.first.removed) and other.first.removed is not model.first.removed
    assert torch.equal(other.eval()(x, edge_index), model.eval()(x, edge_index))
    del (partial := model.state_dict())["first.removed"]
    with pytest.raises(RuntimeError, match=r"Missing key.*first\.removed"):
        other.load_state_dict(partial)


def test_columns_have_their_shape_from_the_start():
    x, edge_index = graph()
    for kind in LAYERS.values():
        model = made(lambda kind=kind: Called(kind))
        shapes = {name: value.shape for name, value in model.named_buffers()}
        learn(model, lambda model=model: model(x, edge_index).square().mean(), 1)
        assert {name: value.shape for name, value in model.named_buffers()} == shapes
    deep = uf.sparsify(GCN2Conv(8, 0.1), edge_sparsity=0.5, entries="unit")
    assert deep.columns.shape == (8,) and not bool(deep.decided)
    assert uf.sparsify(GCNConv(20, 8), edge_sparsity=0.5, entries="node").columns.shape == (0,)
    assert uf.sparsify(GCNConv(20, 8), weight_sparsity=0.5).columns.shape == (0,)


def test_states_of_models_whose_columns_had_no_shape_yet():
    x, edge_index = graph()
    model = made(Called)
    earlier = state(model)
    for name in ("first", "second"):
        earlier[f"{name}.columns"] = torch.zeros(0, dtype=torch.bool)
    model.load_state_dict(earlier)
    assert model.first.columns.shape == (32,) and not bool(model.first.decided)
    learn(model, lambda: model(x, edge_index).square().mean())
    assert_pruned(model, 6)


def test_files_from_before_there_was_hysteresis(tmp_path):
    """They go on as they began."""
    x, edge_index = graph()
    model = made(Encoder)
    learn(model, lambda: model(x, edge_index).square().mean(), 3)
    uf.save(model, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    del config["pruning"]["hysteresis"], config["pruning"]["norm_momentum"]
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    again = uf.load(tmp_path / "m", into=Encoder())
    assert (again.first.session.pruning.hysteresis, again.first.session.pruning.norm_momentum) == (1.0, None)
    assert torch.equal(again.eval()(x, edge_index), model.eval()(x, edge_index))


def test_copies_and_pickles_are_models_of_their_own():
    x, edge_index = graph()
    model = made(lambda: nn.ModuleList([GCNConv(20, 32), nn.BatchNorm1d(32), GCNConv(32, 16)]))

    def loss(model):
        first, norm, second = model
        return second(norm(first(x, edge_index)).relu(), edge_index).square().mean()

    learn(model, lambda: loss(model), 3)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        learn(other, lambda other=other: loss(other), 3)
        assert_pruned(other, 6)
        assert int(model[0].passes) == 3


# ----------------------------------------------------------------------------------------------------------- BatchNorm


class Normed(nn.Module):
    def __init__(self, width=64, dropout=0.0):
        super().__init__()
        self.first, self.norm, self.second = GCNConv(20, width), nn.BatchNorm1d(width), GCNConv(width, 4)
        self.dropout = dropout

    def forward(self, x, edge_index):
        h = nn.functional.dropout(self.norm(self.first(x, edge_index)).relu(), self.dropout, self.training)
        return self.second(h, edge_index)


def dense_graph(n=400):
    """Forty edges into a node, most of them from its own class: what a node gets from others is larger than its own."""
    draw = torch.Generator().manual_seed(7)
    y = torch.arange(n) % 4
    row = torch.randint(0, n, (40 * n,), generator=draw)
    col = (row + 4 * torch.randint(0, n // 4, row.shape, generator=draw)) % n
    col = torch.where(torch.rand(row.shape, generator=draw) < 0.3, torch.randint(0, n, row.shape, generator=draw), col)
    return torch.randn(n, 20, generator=draw) + 0.3 * nn.functional.one_hot(y, 20), torch.stack([row, col]), y


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_running_statistics_are_those_of_the_columns_that_are_sent(dropout):
    """Scores in evaluation mode against the same weights by the statistics of the graph itself, after a plain loop."""
    x, edge_index, y = dense_graph()
    torch.manual_seed(0)
    model = uf.sparsify(Normed(dropout=dropout), edge_sparsity=0.8, entries="unit", weight_sparsity=0.9, ramp=20)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    changed = []
    for epoch in range(60):
        model.train()
        before = model.first.columns
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, edge_index), y).backward()
        optimizer.step()
        if epoch >= 30:
            changed.append(int((before ^ model.first.columns).sum()))
    with torch.no_grad():
        ours = model.eval()(x, edge_index)
        torch.testing.assert_close(uf.compress(model, x, edge_index)(x, edge_index), ours, rtol=1e-4, atol=1e-4)
        model.norm.train()
        model.norm.momentum = 1e-12
        exact = model(x, edge_index)
    assert float((ours - exact).norm() / exact.norm()) < 0.1
    assert float((ours.argmax(1) != exact.argmax(1)).float().mean()) <= 0.03
    assert sum(changed) / len(changed) < 0.5


def test_hysteresis_is_for_models_with_batchnorm_and_can_be_left_out():
    x, edge_index = graph()
    plain = nn.Sequential(GCNConv(20, 32))
    normed = nn.Sequential(GCNConv(20, 32), nn.BatchNorm1d(32))
    for model, how, stays in ((plain, {}, False), (normed, {}, True), (normed, {"hysteresis": 1.0}, False)):
        model = uf.sparsify(model, edge_sparsity=0.8, entries="unit", renormalize=False, **how).train()
        model[0](x, edge_index)
        kept = model[0].columns.clone()
        with torch.no_grad():
            model[0].lin.weight[~kept] *= 3
        model[0](x, edge_index)
        assert torch.equal(model[0].columns, kept) == stays
        with torch.no_grad():
            model[0].lin.weight[~kept] *= 10
        model[0](x, edge_index)
        assert not bool((model[0].columns & kept).any())


@pytest.mark.parametrize("norm", [False, True])
def test_renormalised_columns_are_chosen_once_or_by_the_hysteresis_given(norm):
    x, edge_index = graph()
    for how, stays, goes in (({}, True, False), ({"hysteresis": 4.0}, True, True), ({"hysteresis": 1.0}, False, True)):
        layers = [GCNConv(20, 32), *([nn.BatchNorm1d(32)] if norm else [])]
        model = uf.sparsify(nn.Sequential(*layers), edge_sparsity=0.8, **how).train()
        model[0](x, edge_index)
        kept = model[0].columns.clone()
        for factor, same in ((3, stays), (10, not goes)):
            with torch.no_grad():
                model[0].lin.weight[~kept] *= factor
            model[0](x, edge_index)
            assert torch.equal(model[0].columns, kept) == same


def test_chosen_columns_survive_saving_and_come_from_a_trained_model(tmp_path):
    """The first pass of a model that is pruned after its training chooses by its weights; a loaded one chooses no more."""
    x, edge_index = graph()
    conv = GCNConv(20, 32)
    with torch.no_grad():
        conv.lin.weight[:6] *= 100
    model = uf.sparsify(conv, edge_sparsity=0.7).train()
    model(x, edge_index)
    assert model.columns.nonzero().flatten().tolist()[:6] == list(range(6))
    uf.save(model, tmp_path / "model")
    again = uf.load(tmp_path / "model", into=GCNConv(20, 32)).train()
    with torch.no_grad():
        again.lin.weight[6:] *= 1000
    again(x, edge_index)
    assert torch.equal(again.columns, model.columns)


def test_the_momentum_of_a_norm_is_raised_on_one_graph_only_and_given_back():
    x, edge_index = graph()
    seen = []

    class Norm(nn.BatchNorm1d):
        def forward(self, x):
            seen.append(self.momentum)
            return super().forward(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = GCNConv(20, 8), Norm(8)

        def forward(self, x, edge_index):
            return self.norm(self.conv(x, edge_index))

    for how, raised in (
        ({"edge_sparsity": 0.5, "entries": "edge"}, 0.1),  # edges are the same in every pass
        ({"edge_sparsity": 0.5, "entries": "unit"}, 0.9),
        ({"edge_sparsity": 0.5, "entries": "unit", "norm_momentum": None}, 0.1),
        ({"weight_sparsity": 0.5, "norm_momentum": 0.5}, 0.5),
        ({}, 0.1),
    ):
        model = uf.sparsify(Net(), **how).train()
        for _ in range(4):
            model(x, edge_index)
        assert seen == [0.1, 0.1, raised, raised] and model.norm.momentum == 0.1
        seen.clear()
        for _ in range(4):
            model(x, edge_index.clone())  # another graph in every pass, as by a loader
        assert seen[2:] == [0.1, 0.1]
        model.eval()(x, edge_index)
        assert seen.pop() == 0.1
        seen.clear()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"hysteresis": 0.5}, "`hysteresis` must be a number of at least 1; got 0.5"),
        ({"hysteresis": True}, "`hysteresis`"),
        ({"hysteresis": float("inf")}, "`hysteresis`"),
        ({"norm_momentum": 0}, "`norm_momentum` must be a number in"),
        ({"norm_momentum": "fast"}, "`norm_momentum`"),
    ],
)
def test_mistakes(how, message):
    with pytest.raises(InputError, match=message):
        uf.sparsify(Encoder(), edge_sparsity=0.5, **how)


@pytest.mark.parametrize("entries", ["block", "feature", "node", "unit"])
def test_several_threads_evaluate_one_model(entries):
    """A pass keeps what its layers have left; that of another thread is another one."""
    torch.manual_seed(0)
    edge_index, inputs = torch.randint(0, 300, (2, 3000)), [torch.randn(300, 20) for _ in range(4)]
    model = uf.sparsify(GCN(20, 48, 3, 4), edge_sparsity=0.5, entries=entries)
    model(inputs[0], edge_index).sum().backward()
    model.eval()
    with torch.no_grad():
        expected = [model(x, edge_index) for x in inputs]

    def agrees(number):
        with torch.no_grad():
            return torch.equal(model(inputs[number % 4], edge_index), expected[number % 4])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(agrees, range(60)))
