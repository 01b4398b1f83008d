"""Random and smallest entries: as many as the largest ones, at the same cost, decided once and for all by a seed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch_geometric.nn import GAT, GCN, GraphSAGE

import unifews as uf
from unifews.errors import InputError

N = 40
_draw = torch.Generator().manual_seed(1)
X = torch.randn(N, 20, generator=_draw)
EDGES = torch.randint(0, N - 2, (2, 240), generator=_draw)
MODELS = {
    "gcn": lambda: GCN(20, 24, 2, 4),
    "gatv2": lambda: GAT(20, 24, 2, 4, heads=2, v2=True),
    "sage": lambda: GraphSAGE(20, 24, 2, 4),
    "sage by maximum": lambda: GraphSAGE(20, 24, 2, 4, aggr="max"),
}


def pruned(make, choice, **options):
    torch.manual_seed(0)
    model = uf.sparsify(make(), **{"edge_sparsity": 0.6, "choice": choice, **options})
    model(X, EDGES).sum().backward()
    return model


def kept(model):
    """What each layer keeps."""
    if model.convs[0].session.pruning.entries == "unit":
        return [conv.columns.clone() for conv in model.convs]
    return [set(conv.removed.tolist()) for conv in model.convs]


@pytest.mark.parametrize("entries", ["unit", "node"])
@pytest.mark.parametrize("kind", MODELS)
class TestControls:
    def test_each_has_the_cost_of_the_largest_and_other_entries(self, kind, entries):
        models = {choice: pruned(MODELS[kind], choice, entries=entries) for choice in ("largest", "random", "smallest")}
        cost = {choice: uf.trace(model).macs for choice, model in models.items()}
        assert len(set(cost.values())) == 1 and cost["largest"] > 0
        first = {choice: kept(model)[0] for choice, model in models.items()}
        for one, other in (("largest", "random"), ("largest", "smallest"), ("random", "smallest")):
            assert str(first[one]) != str(first[other])

    def test_random_entries_depend_on_the_seed_only(self, kind, entries):
        model = pruned(MODELS[kind], "random", entries=entries, choice_seed=3)
        model(X, EDGES)  # some layers know the width of their messages, and so their number, when they have run
        before = kept(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(3):
            optimizer.step()
            model(X, EDGES).sum().backward()
        assert str(kept(model)) == str(before)
        same, other = (pruned(MODELS[kind], "random", entries=entries, choice_seed=seed) for seed in (3, 4))
        same(X, EDGES), other(X, EDGES)
        assert str(kept(same)) == str(before) != str(kept(other))

    def test_copies_and_states_keep_the_choice(self, kind, entries, tmp_path):
        model = pruned(MODELS[kind], "smallest", entries=entries).eval()
        uf.save(model, tmp_path / "model")
        with torch.no_grad():
            expected = model(X, EDGES)
            for other in (copy.deepcopy(model), uf.load(tmp_path / "model", into=MODELS[kind]()).eval()):
                assert torch.equal(other(X, EDGES), expected)
                assert other.convs[0].session.pruning.choice == "smallest"


def test_smallest_columns_are_those_of_the_smallest_messages():
    model = pruned(MODELS["sage"], "smallest")
    conv, largest = model.convs[1], pruned(MODELS["sage"], "largest").convs[1]
    y = torch.zeros(N, 4)

    def take(layer, args, out):
        y.copy_(layer.lin_l(args[0]).detach() - layer.lin_l.bias.detach())

    conv.register_forward_hook(take)
    model.eval()(X, EDGES)
    ends = EDGES[:, EDGES[0] != EDGES[1]]
    count = torch.bincount(EDGES[1], minlength=N).clamp(min=1)
    size = (y[ends[0]] / count[ends[1]][:, None]).norm(dim=0)
    order = size.argsort()
    assert set(order[: int(conv.columns.sum())].tolist()) == set(conv.columns.nonzero().flatten().tolist())
    assert int(largest.columns.sum()) == int(conv.columns.sum())


@pytest.mark.parametrize("entries", ["unit", "node"])
def test_a_threshold_keeps_as_many(entries):
    how = dict(edge_sparsity=None, edge_threshold=1.0, entries=entries, inherit=False)
    counts = {}
    for choice in ("largest", "random", "smallest"):
        model = pruned(lambda: GCN(20, 24, 1, 24), choice, **how)
        counts[choice] = uf.trace(model).macs
    assert len(set(counts.values())) == 1 and counts["largest"] > 0


def test_columns_of_a_control_are_frozen_and_edges_of_one_refused():
    model = pruned(MODELS["gatv2"], "random").eval()
    assert torch.allclose(uf.compress(model, X, EDGES)(X, EDGES), model(X, EDGES), atol=1e-5)
    edges = pruned(MODELS["gcn"], "random", entries="node").eval()
    with pytest.raises(InputError, match="control"):
        uf.compress(edges, X, EDGES)


@pytest.mark.parametrize("entries", ["block", "feature"])
def test_kinds_without_controls_are_refused(entries):
    with pytest.raises(InputError, match="needs entries to be one of"):
        uf.sparsify(GCN(4, 8, 2), edge_sparsity=0.5, entries=entries, choice="random")


def test_a_misspelt_choice_offers_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'smallest'"):
        uf.sparsify(GCN(4, 8, 2), edge_sparsity=0.5, choice="smalest")
