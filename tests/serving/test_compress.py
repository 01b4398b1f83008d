"""A frozen model gives what the masked dense model gives: everywhere, and for single nodes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from frozen_models import CLASSES, CODE, FEATURES, FORMS, HOPS, MODELS, Two, assert_close, evaluated, graph, trained
from scipy import sparse
from torch import nn
from torch_geometric.nn import GCN, GCNConv, GraphConv

import unifews as uf
from unifews.core.schemes import Appnp, Polynomial, Sgc
from unifews.datasets.gencat import gencat
from unifews.errors import InputError, ShapeError
from unifews.nn.decoupled import DecoupledModel, Mlp
from unifews.nn.models import build
from unifews.serving import rows as row_steps
from unifews.serving.program import OPS

# ----------------------------------------------------------------------------------------------------------- same scores


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_it_gives_what_the_masked_model_gives(name, form):
    x, edge_index = graph()
    model = trained(name, form)
    if name in CODE and form in ("node", "block", "feature"):  # these inherit edges
        with pytest.raises(InputError, match=r"TransformerConv, which runs with its own code.*inherit=False"):
            uf.compress(model, x, edge_index)
        return
    fast = uf.compress(model, x, edge_index)
    expected = evaluated(model, x, edge_index)
    assert_close(fast(x, edge_index), expected, 1e-5)
    nodes = [3, 399, 7, 3, 120]  # one twice, one isolated
    assert_close(fast.predict(nodes), expected[nodes], 1e-5)
    for node in (0, 57, 211):
        assert_close(fast.predict(node), expected[[node]], 1e-5)


@pytest.mark.parametrize("form", ["unit", "node", "block"])
@pytest.mark.parametrize("name", ["gcn", "gcn improved", "gcn as it is", "gcnii", "graph", "tag", "appnp", "cheb"])
def test_edge_weights(name, form):
    x, edge_index = graph()
    weight = torch.rand(edge_index.shape[1], generator=torch.Generator().manual_seed(1))
    model = trained(name, form, x, edge_index, weight)
    fast = uf.compress(model, x, edge_index, weight)
    expected = evaluated(model, x, edge_index, weight)
    assert_close(fast(x, edge_index, weight), expected, 1e-5)
    assert_close(fast.predict([1, 2]), expected[[1, 2]], 1e-5)
    assert_close(fast(x, edge_index), evaluated(model, x, edge_index), 1e-5)


def test_a_model_compressed_without_weights_takes_them_later():
    x, edge_index = graph()
    weight = torch.rand(edge_index.shape[1])
    model = trained("gcn")
    fast = uf.compress(model, x, edge_index)
    assert_close(fast(x, edge_index, weight), evaluated(model, x, edge_index, weight), 1e-5)


def test_a_layer_without_a_place_for_weights_says_so():
    x, edge_index = graph()
    fast = uf.compress(trained("sage"), x, edge_index)
    with pytest.raises(InputError, match="takes no edge weights"):
        fast(x, edge_index, torch.rand(edge_index.shape[1]))


@pytest.mark.parametrize("name", ["gcn", "gat", "sage"])
@pytest.mark.parametrize("given", ["numpy", "graph", "csr", "list"])
def test_edges_in_every_form(name, given):
    x, edge_index = graph()
    edge_index = torch.unique(edge_index[:, edge_index[0] != edge_index[1]], dim=1)
    fast = uf.compress(trained(name, "unit", x, edge_index), x, edge_index)
    matrix = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(edge_index.shape[1]), (len(x), len(x))).to_sparse_csr()
    same = {
        "numpy": edge_index.numpy(),
        "graph": uf.Graph.from_edge_index(edge_index, len(x)),
        "csr": matrix,
        "list": edge_index.tolist(),
    }[given]
    assert_close(fast(x.numpy(), same), fast(x, edge_index), 1e-5)
    assert_close(fast.bind(x, same).predict([5, 6]), fast(x, edge_index)[[5, 6]], 1e-5)


@pytest.mark.parametrize("name", ["gcn", "gat", "gin", "gcnii", "sage", "own"])
def test_sparse_features(name):
    x, edge_index = graph()
    x = torch.where(x > 1, x, 0.0)
    fast = uf.compress(trained(name, "unit", x, edge_index), sparse.csr_array(x.numpy()), edge_index)
    expected = fast(x, edge_index)
    for rows in (sparse.csr_array(x.numpy()), x.to_sparse_csr(), x.to_sparse_coo()):
        assert_close(fast(rows, edge_index), expected, 1e-5)
        assert_close(fast.bind(rows, edge_index).predict([1, 50]), expected[[1, 50]], 1e-5)


@pytest.mark.parametrize("form", ["unit", "node", "unpruned"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in CODE])
def test_rows_go_through_a_few_at_a_time(name, form, monkeypatch):
    x, edge_index = graph()
    model = trained(name, form)
    fast = uf.compress(model, x, edge_index)
    monkeypatch.setattr(row_steps, "_FLOATS", 1)
    monkeypatch.setattr(row_steps, "_MIN_ROWS", 37)
    for rows in (x, x.to_sparse_csr()):
        assert_close(fast(rows, edge_index), evaluated(model, x, edge_index), 1e-5)


# ------------------------------------------------------------------------------------------------ layers without a fused path


@pytest.mark.parametrize("name", HOPS)
def test_layers_that_sum_over_neighbours_become_steps(name, tmp_path):
    fast = uf.compress(trained(name), *graph())
    assert {step.op for step in fast.program.steps} <= {"linear", "diffuse", "sum", "affine", "cat", "activate"}
    fast.save(tmp_path / "m")
    x, edge_index = graph(n=530, m=900, seed=5)
    model = trained(name)
    assert_close(uf.load(tmp_path / "m")(x, edge_index), evaluated(model, x, edge_index), 1e-5)


@pytest.mark.parametrize("aggr, op", [("mean", "diffuse"), ("max", "layer")])
def test_other_sums_of_messages(aggr, op):
    x, edge_index = graph()
    model = uf.sparsify(Two(lambda a, b: GraphConv(a, b, aggr=aggr)), edge_sparsity=0.5, entries="unit")
    model(x, edge_index).sum().backward()
    fast = uf.compress(model, x, edge_index)
    assert sum(step.op == op for step in fast.program.steps) == 2
    assert_close(fast.predict([3, 7]), evaluated(model, x, edge_index)[[3, 7]], 1e-5)


def test_any_other_layer_keeps_its_own_code_and_is_made_once_for_a_graph(tmp_path):
    x, edge_index = graph()
    model = trained("transformer")
    fast = uf.compress(model, x, edge_index)
    assert [step.op for step in fast.program.steps] == ["layer", "activate", "linear", "diffuse"]
    expected = evaluated(model, x, edge_index)
    kept, whole = fast.weights
    assert kept == pytest.approx(0.2 * whole, rel=0.05)  # those of the layer are counted
    layer, calls = fast.program.steps[0].settings["layer"], []
    layer.conv.register_forward_hook(lambda *_: calls.append(1))
    fast.bind(x, edge_index)
    for node in (3, 9, 200):
        assert_close(fast.predict(node), expected[[node]], 1e-5)
    assert len(calls) == 1
    other = graph(n=530, m=900, seed=5)
    assert_close(fast(*other), evaluated(model, *other), 1e-5)
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    assert_close(fast(x, edge_index), expected, 1e-5)  # what it holds is its own
    with pytest.raises(InputError, match=r"first is a TransformerConv, which runs with its own code.*uf\.save"):
        fast.save(tmp_path / "m")
    with pytest.raises(InputError, match=r"first is a TransformerConv, which runs with its own code"):
        uf.export(fast, tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())


def test_a_layer_that_holds_on_to_a_graph_is_refused():
    class Held(GraphConv):
        cached = True

    x, edge_index = graph()
    model = uf.sparsify(Two(Held), edge_sparsity=0.5, entries="unit")
    model(x, edge_index).sum().backward()
    with pytest.raises(InputError, match="first is a Held that caches the first graph"):
        uf.compress(model, x, edge_index)


def test_what_a_level_makes_is_written_only_where_a_later_one_needs_it():
    fast = uf.compress(trained("sage"), *graph())  # linear, diffuse, linear, sum, linear, diffuse, linear, sum
    inside = row_steps.fused_linears(fast.program)
    order = row_steps.levels(fast.program, set(), inside)
    assert inside == {2: 1}
    assert [level.parts for level in order] == [[2, 3, 4, 5, 7], [6, 8]]
    assert row_steps.needed_later(fast.program, order) == [{5, 7}, {8}]


# ------------------------------------------------------------------------------------------------------------ new graphs


@pytest.mark.parametrize("name", ["gcn", "gat", "gat one", "sage", "gin", "gcnii"])
@pytest.mark.parametrize("form", ["unit", "block", "feature"])
def test_a_graph_it_never_saw(name, form):
    model = trained(name, form)
    fast = uf.compress(model, *graph())
    x, edge_index = graph(n=530, m=900, seed=5)
    expected = evaluated(model, x, edge_index)
    assert_close(fast(x, edge_index), expected, 1e-5)
    assert_close(fast.bind(x, edge_index).predict([0, 9, 400]), expected[[0, 9, 400]], 1e-5)


@pytest.mark.parametrize("name", ["gcn", "gat", "gat one", "sage"])
def test_chosen_edges_on_another_graph_of_as_many_nodes_leaves_new_edges_in(name):
    x, edge_index = graph()
    model = trained(name, "node")
    fast = uf.compress(model, x, edge_index)
    other = torch.cat([edge_index[:, ::2], graph(seed=9)[1]], dim=1)
    assert_close(fast(x, other), evaluated(model, x, other), 1e-5)
    assert_close(fast.bind(x, other).predict([4]), evaluated(model, x, other)[[4]], 1e-5)


@pytest.mark.parametrize("name", ["gcn", "gat", "gat one"])
def test_chosen_edges_on_a_graph_of_another_size_go_by_their_threshold(name):
    fast = uf.compress(trained(name, "node"), *graph())
    x, edge_index = graph(n=401)
    out = fast(x, edge_index)
    assert_close(fast.bind(x, edge_index).predict([4, 77]), out[[4, 77]], 1e-5)
    free = copy.deepcopy(fast)
    for step in free.program.steps:
        if "delta" in step.settings:
            step.settings["delta"] = 0.0  # nothing is smaller
    assert float((free(x, edge_index) - out).abs().max()) > 1e-3 * float(out.abs().max())


# -------------------------------------------------------------------------------------------------------------- decoupled


def decoupled(propagation, width=16, rank=None):
    torch.manual_seed(0)
    x, edge_index = graph()
    axes = None if rank is None else torch.linalg.qr(torch.randn(FEATURES, rank)).Q
    head = Mlp(rank or FEATURES, CLASSES, width=width)
    head.standardise(torch.randn(100, rank or FEATURES) * 3 + 40)
    for layer in head.linears():
        layer.decide(torch.rand(layer.in_features) + 0.1, sparsity=0.7)
    head.norms[0].running_mean.uniform_(-1, 1)
    head.norms[0].running_var.uniform_(0.5, 2)
    return DecoupledModel(head, axes, propagation).eval(), x, edge_index


@pytest.mark.parametrize(
    "propagation, ranks",
    [
        ({"scheme": "appnp", "hops": 4, "edge_sparsity": 0.6}, (None, 7)),
        ({"scheme": Appnp(alpha=0.2, tail=False), "hops": 3}, (None, 7)),
        (
            {
                "scheme": Sgc(skip="diagonal"),
                "hops": 2,
                "threshold": 0.01,
                "entries": "node",
                "basis": "input",
                "inherit": True,
            },
            (None, 7),
        ),
        ({"scheme": Polynomial([0.5, 0.3, 0.2])}, (None, 7)),
        (None, (None,)),  # axes belong to a propagation
    ],
)
def test_decoupled_models(propagation, ranks, tmp_path):
    for rank in ranks:
        model, x, edge_index = decoupled(propagation, rank=rank)
        fast = uf.compress(model, x, edge_index)
        expected = model(x, edge_index)
        assert_close(fast(x, edge_index), expected, 1e-5)
        assert_close(fast.predict([5, 0]), expected[[5, 0]], 1e-5)
        fast.save(tmp_path / f"{rank}")
        assert_close(uf.load(tmp_path / f"{rank}")(x.numpy(), uf.Graph.from_edge_index(edge_index, len(x))), expected, 1e-5)
        assert [step.op for step in fast.program.steps][-3:] == ["affine", "linear", "linear"]  # BatchNorm is in the last


@pytest.mark.parametrize(
    "settings", [dict(model="appnp"), dict(model="sgc", hops=8, degree=5, precision="float32", error_norm="frobenius")]
)
@pytest.mark.usefixtures("estimates_on_any_size")
def test_models_that_propagate_to_an_allowed_error(settings, tmp_path):
    """The file holds how to propagate, and every graph gets as many hops as it needs for the same error."""
    data = gencat(300, 900, features=FEATURES, classes=3, seed=7, name="mine")
    model = uf.train(data, width=8, epochs=3, max_error=0.1, **settings).model
    fast = uf.compress(model, data.x, data.graph)
    assert fast.requested == "max_error=0.1"
    fast.save(tmp_path / "m")
    uf.save(model, tmp_path / "trained")
    other = gencat(400, 2000, features=FEATURES, classes=3, seed=8, name="other")  # new nodes and edges
    for each in (data, other):
        out = uf.propagate(each.graph, each.x, **model.propagation)
        assert out.plan.method != "unpruned"
        expected = model.head(torch.from_numpy(out.embedding)).detach()
        assert torch.equal(uf.load(tmp_path / "trained")(each.x, each.graph), expected)
        served = uf.load(tmp_path / "m")
        assert_close(served(each.x, each.graph), expected, 1e-5)
        served.bind(each.x, each.graph)
        assert_close(served.predict([5, 0]), expected[[5, 0]], 1e-5)


# --------------------------------------------------------------------------------------------------------------- freezing


def test_batch_norms_and_activations_disappear_into_weights():
    x, edge_index = graph()
    ops = lambda name, form="unit": [s.op for s in uf.compress(trained(name, form), x, edge_index).program.steps]  # noqa: E731
    assert ops("gcn") == ["linear", "diffuse", "linear", "diffuse"]
    assert ops("sage") == ["linear", "diffuse", "linear", "sum"] * 2
    assert ops("gcnii") == ["linear", "diffuse", "sum", "linear", "diffuse", "sum", "linear", "linear"]
    assert ops("gcn", "block") == ["linear", "diffuse", "affine", "linear", "diffuse"]  # sizes must stay what they are


def wide():
    """A model of which most is worth packing."""
    torch.manual_seed(0)
    x, edge_index = graph()
    model = uf.sparsify(
        build("gcn", FEATURES, CLASSES, width=256, layers=3), edge_sparsity=0.5, entries="unit", weight_sparsity=0.95, ramp=1
    )
    model(x, edge_index).sum().backward()
    return uf.compress(model, x, edge_index), x, edge_index


def test_nothing_dense_is_left_where_packed_is_faster():
    fast, x, edge_index = wide()
    fast(x, edge_index)
    kept, whole = fast.weights
    assert kept == pytest.approx(0.05 * whole, rel=0.02)
    middle = next(step.weight for step in fast.program.steps if step.op == "linear" and step.weight.shape == (256, 256))
    assert middle.multiplies_packed and "dense" not in vars(middle)


def test_the_model_is_left_as_it_was():
    x, edge_index = graph()
    model = trained("gat")
    model.convs[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trace, modes = str(uf.trace(model)), [module.training for module in model.modules()]
    uf.set_node_lock(model, torch.tensor([1]))
    uf.compress(model, x, edge_index)
    assert [module.training for module in model.modules()] == modes and str(uf.trace(model)) == trace
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_training_goes_on_after_it():
    x, edge_index = graph()
    model = trained("gcn")
    fast = uf.compress(model, x, edge_index)
    out = fast(x, edge_index)
    model(x, edge_index).sum().backward()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(1.0)
    assert torch.equal(fast(x, edge_index), out)


@pytest.mark.parametrize("name", ["gcn", "gat", "sage"])
def test_results_do_not_depend_on_threads(name):
    x, edge_index = graph()
    fast = uf.compress(trained(name), x, edge_index, threads=1)
    assert fast.threads == 1
    one, some, before = fast(x, edge_index), fast.predict([1, 2]), torch.get_num_threads()
    fast.threads = 3
    assert_close(fast(x, edge_index), one, 1e-6)
    assert_close(fast.predict([1, 2]), some, 1e-6)
    assert torch.get_num_threads() == before
    with pytest.raises(InputError, match="threads"):
        fast.threads = 0


def test_edges_written_to_are_read_again():
    x, edge_index = graph()
    model = trained("gcn")
    fast = uf.compress(model, x, edge_index)
    fast(x, edge_index)
    edge_index[0] = edge_index[0].flip(0)
    assert_close(fast(x, edge_index), evaluated(model, x, edge_index), 1e-5)


def test_its_words():
    x, edge_index = graph()
    said = repr(uf.compress(trained("gcn"), x, edge_index))
    assert "20 features → 5 scores" in said and "edge_sparsity=0.5" in said and "bound to 400 nodes" in said
    assert "nothing pruned" in repr(uf.compress(trained("gcn", "unpruned"), x, edge_index))


# ---------------------------------------------------------------------------------------------------------------- predict


def test_predict_takes_nodes_in_every_form():
    x, edge_index = graph()
    fast = uf.compress(trained("gcn"), x, edge_index)
    out = fast(x, edge_index)
    flags = np.zeros(400, dtype=bool)
    flags[[4, 9]] = True
    for nodes in ([4, 9], torch.tensor([4, 9]), np.array([4, 9], dtype=np.int32), flags, torch.from_numpy(flags)):
        assert_close(fast.predict(nodes), out[[4, 9]], 1e-5)
    assert fast.predict([]).shape == (0, CLASSES)
    assert_close(fast.predict(), out, 1e-6)
    assert_close(fast.predict(range(350)), out[:350], 1e-6)  # most of the graph: all of it is made


@pytest.mark.parametrize("nodes", [400, -1, [3, 1000], [0.5], "a", [[1, 2]], [True]])
def test_nodes_that_do_not_exist(nodes):
    fast = uf.compress(trained("gcn"), *graph())
    with pytest.raises(InputError, match="node"):
        fast.predict(nodes)


def test_predict_makes_only_what_it_needs():
    """On a path the result of its end depends on its last two edges; what is further away may be anything."""
    n = 1000
    edge_index = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    x = torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(0))
    fast = uf.compress(trained("gcn", "unit", x, edge_index), x, edge_index)
    expected = fast.predict(n - 1)
    x[: n - 3] = torch.nan
    assert torch.equal(fast.bind(x, edge_index).predict(n - 1), expected)
    assert bool(fast.predict(n - 4).isnan().any())


# --------------------------------------------------------------------------------------------------------------- bad input


def test_features_of_another_width():
    x, edge_index = graph()
    fast = uf.compress(trained("gcn"), x, edge_index)
    with pytest.raises(ShapeError, match="x has 19 features, but this model was trained on 20"):
        fast(x[:, :19], edge_index)
    with pytest.raises(ShapeError, match="one row per node"):
        fast(x[0], edge_index)
    with pytest.raises(ShapeError, match="401 nodes"):
        fast(x, uf.Graph.from_edge_index(edge_index, 401))


def test_a_model_that_is_not_trained_or_not_sparsified():
    x, edge_index = graph()
    with pytest.raises(InputError, match="not trained yet"):
        uf.compress(uf.sparsify(MODELS["gcn"](), edge_sparsity=0.5, entries="unit"), x, edge_index)
    with pytest.raises(InputError, match="not trained yet"):
        uf.compress(uf.sparsify(MODELS["gcn"](), weight_sparsity=0.5), x, edge_index)
    with pytest.raises(InputError, match=r"GCN has no masks.*uf\.sparsify"):
        uf.compress(GCN(FEATURES, 8, 2, CLASSES), x, edge_index)
    with pytest.raises(InputError, match="is a str"):
        uf.compress("gcn", x, edge_index)


def test_a_loaded_model_is_bound_to_nothing(tmp_path):
    uf.compress(trained("gcn"), *graph()).save(tmp_path / "m")
    with pytest.raises(InputError, match=r"bind\(x, edge_index\)"):
        uf.load(tmp_path / "m").predict(1)


def test_a_model_that_is_different_in_every_call_is_refused():
    class Restless(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.calls = GCNConv(FEATURES, CLASSES), 0

        def forward(self, x, edge_index):
            self.calls += 1
            return self.conv(x, edge_index) * self.calls

    x, edge_index = graph()
    model = uf.sparsify(Restless(), edge_sparsity=0.5, entries="unit")
    model(x, edge_index).sum().backward()
    with pytest.raises(InputError, match="differs from it by"):
        uf.compress(model, x, edge_index)


def test_every_operation_is_in_some_model():
    """So that a step which nothing makes is noticed."""
    x, edge_index = graph()
    made = {step.op for name in MODELS for step in uf.compress(trained(name), x, edge_index).program.steps}
    assert set(OPS) - made == {"product", "propagate", "rotate"}  # these have tests of their own
