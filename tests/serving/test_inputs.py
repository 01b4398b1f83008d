"""Every input of a model has one role, by its name, type and shape; what has none is refused in one sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from frozen_models import assert_close
from scipy import sparse
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn.models.basic_gnn import BasicGNN

import unifews as uf
from unifews.errors import InputError, ShapeError, UnifewsError
from unifews.nn.decoupled import DecoupledModel, Mlp

F, C, N, M = 8, 4, 60, 150
_DRAW = torch.Generator().manual_seed(0)
X = torch.randn(N, F, generator=_DRAW)
EDGES = torch.randint(0, N, (2, M), generator=_DRAW)
WEIGHT = torch.rand(M, generator=_DRAW) + 0.5
ATTR = torch.randn(M, 3, generator=_DRAW)
TYPE = torch.randint(0, 3, (M,), generator=_DRAW)
BATCH = torch.arange(N) // 20
DEGREES = torch.bincount(torch.bincount(EDGES[1], minlength=N))
RELATION = ("a", "to", "a")


def sparsified(net, *args):
    """After a training pass on these inputs."""
    torch.manual_seed(0)
    model = uf.sparsify(net, ramp=1, edge_sparsity=0.5, entries="unit", weight_sparsity=0.5)
    out = model(*args)
    (sum(out.values()) if isinstance(out, dict) else out).sum().backward()
    return model


def evaluated(model, *args):
    with torch.no_grad():
        return model.eval()(*args)


def net(forward, conv=None, **parts):
    """A module with this forward(self, ...)."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv or pyg.GCNConv(F, C)
            for name, part in parts.items():
                setattr(self, name, part)

    Net.forward = forward
    return Net()


def refused(model, *args, match=""):
    """One sentence, as one of our errors."""
    with pytest.raises(UnifewsError, match=match) as caught:
        uf.compress(model, *args)
    said = str(caught.value)
    assert "\n" not in said and said.endswith(".") and len(said) < 400
    return said


# ------------------------------------------------------------------------------------------------- models of the field

BASIC = {
    "GCN": pyg.GCN,
    "GraphSAGE": pyg.GraphSAGE,
    "GIN": pyg.GIN,
    "GAT": pyg.GAT,
    "EdgeCNN": pyg.EdgeCNN,
    "PNA": lambda *a, **k: pyg.PNA(*a, aggregators=["mean", "max"], scalers=["identity", "linear"], deg=DEGREES, **k),
}


def test_these_are_all_of_them():
    assert {kind.__name__ for kind in BasicGNN.__subclasses__() if kind.__module__.startswith("torch_geometric")} == set(BASIC)


@pytest.mark.parametrize("jk", [None, "last", "cat", "max", "lstm"])
@pytest.mark.parametrize("name", BASIC)
def test_basic_models(name, jk):
    model = sparsified(BASIC[name](F, 16, 2, C, jk=jk), X, EDGES)
    if jk == "lstm":
        refused(model, X, EDGES, match="JumpingKnowledge by lstm")
        return
    fast = uf.compress(model, X, EDGES)
    assert_close(fast.predict(), evaluated(model, X, EDGES), 1e-5)


@pytest.mark.parametrize("name", BASIC)
def test_basic_models_with_other_inputs(name):
    model = sparsified(BASIC[name](F, 16, 2, C), X, EDGES, WEIGHT)
    fast = uf.compress(model, X, EDGES, WEIGHT)
    assert_close(fast.predict(), evaluated(model, X, EDGES, WEIGHT), 1e-5)
    refused(model, X, EDGES, BATCH, match=r"`edge_weight` has shape \[60\], one value per node as `batch` has")
    refused(model, X, EDGES, ATTR, match="as edge features have")
    refused(model, X, EDGES, TYPE, match=r"torch\.int64 values, as `batch` or edge types")


@pytest.mark.parametrize(
    "norm, match",
    [
        ("BatchNorm", None),
        ("LayerNorm", "over all nodes of a graph .mode='node' is supported"),
        ("GraphNorm", "GraphNorm"),
        ("PairNorm", r"mean\("),
        ("InstanceNorm", "InstanceNorm|instance_norm"),
    ],
)
def test_norm_layers(norm, match):
    model = sparsified(pyg.GCN(F, 16, 2, C, norm=norm), X, EDGES)
    if match is None:
        assert_close(uf.compress(model, X, EDGES).predict(), evaluated(model, X, EDGES), 1e-5)
    else:
        refused(model, X, EDGES, match=match)


def _with(name):
    return {
        "edge_attr": lambda self, x, edge_index, edge_attr: self.conv(x, edge_index, edge_attr),
        "edge_type": lambda self, x, edge_index, edge_type: self.conv(x, edge_index, edge_type),
        "batch": lambda self, x, edge_index, batch: self.conv(x, edge_index, batch),
        "optional": lambda self, x, edge_index, edge_attr=None: self.conv(x, edge_index, edge_attr),
        "none": lambda self, x, edge_index: self.conv(x, edge_index),
        "any": lambda self, x, edge_index, *rest: self.conv(x, edge_index, *rest),
    }[name]


OTHERS = {
    "GINE": (_with("edge_attr"), lambda: pyg.GINEConv(nn.Linear(F, C), edge_dim=3), ATTR, "needs `edge_attr`"),
    "GINE, optional": (_with("optional"), lambda: pyg.GINEConv(nn.Linear(F, C), edge_dim=3), ATTR, "cannot be evaluated"),
    "GAT": (_with("optional"), lambda: pyg.GATConv(F, C, edge_dim=3), ATTR, r"weights for edge features \(edge_dim=3\)"),
    "Transformer": (_with("optional"), lambda: pyg.TransformerConv(F, C, edge_dim=3), ATTR, "weights for edge features"),
    "RGCN": (_with("edge_type"), lambda: pyg.RGCNConv(F, C, 3), TYPE, "needs `edge_type`"),
    "RGCN, any": (_with("any"), lambda: pyg.RGCNConv(F, C, 3), TYPE, "cannot be evaluated"),
    "GPS": (_with("batch"), lambda: pyg.GPSConv(F, pyg.GCNConv(F, F), heads=2), BATCH, "needs `batch`"),
    "GPS, one graph": (_with("none"), lambda: pyg.GPSConv(F, pyg.GCNConv(F, F), heads=2), None, "no step for that"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_inputs_that_a_frozen_model_does_not_have(name):
    forward, conv, more, match = OTHERS[name]
    more = () if more is None else (more,)
    model = sparsified(net(forward, conv()), X, EDGES, *more)
    refused(model, X, EDGES, match=match)
    if more:
        refused(model, X, EDGES, *more, match="`edge_weight`")


def test_layers_by_themselves():
    for conv in (pyg.GCNConv(F, C), pyg.TransformerConv(F, C), pyg.GATv2Conv(F, C)):
        model = sparsified(conv, X, EDGES)
        assert_close(uf.compress(model, X, EDGES).predict(), evaluated(model, X, EDGES), 1e-5)
    refused(sparsified(pyg.RGCNConv(F, C, 3), X, EDGES, TYPE), X, EDGES, match="cannot be evaluated")


# ------------------------------------------------------------------------------------------------- types of nodes and edges


def _hetero():
    data = HeteroData()
    data["a"].x, data[RELATION].edge_index = X, EDGES
    return data


HETERO = {
    "HeteroConv": lambda: net(
        lambda self, x_dict, edge_index_dict: self.conv(x_dict, edge_index_dict), pyg.HeteroConv({RELATION: pyg.GCNConv(F, C)})
    ),
    "HGTConv": lambda: net(
        lambda self, x_dict, edge_index_dict: self.conv(x_dict, edge_index_dict),
        pyg.HGTConv(F, C, _hetero().metadata(), heads=2),
    ),
    "to_hetero": lambda: pyg.to_hetero(pyg.GraphSAGE(F, 8, 2, C), _hetero().metadata()),
    "dict of features": lambda: net(lambda self, x, edge_index: self.conv(x.get("a"), edge_index.get(RELATION))),
}


@pytest.mark.parametrize("name", HETERO)
def test_heterogeneous_models(name):
    inputs = {"a": X}, {RELATION: EDGES}
    model = sparsified(HETERO[name](), *inputs)
    refused(model, *inputs, match=r"`x` is a dict, one entry per type.*heterogeneous model itself, in eval mode")
    refused(model, _hetero(), match="`x` is a HeteroData")
    refused(model, X, {RELATION: EDGES}, match="`edge_index` is a dict")
    refused(model, X, EDGES, match="x_dict|cannot be evaluated")


# ---------------------------------------------------------------------------------------------------------------- pooling


@pytest.mark.parametrize("pool", [pyg.global_add_pool, pyg.global_mean_pool, pyg.global_max_pool])
def test_pooling(pool):
    parts = dict(conv=pyg.GINConv(nn.Linear(F, F)), lin=nn.Linear(F, C))
    model = sparsified(
        net(lambda self, x, edge_index, batch: self.lin(pool(self.conv(x, edge_index), batch)), **parts), X, EDGES, BATCH
    )
    refused(model, X, EDGES, match="needs `batch`.*compress the layers before the pooling")
    refused(model, X, EDGES, BATCH, match="one value per node as `batch` has")
    model = sparsified(
        net(lambda self, x, edge_index, batch=None: self.lin(pool(self.conv(x, edge_index), batch)), **parts), X, EDGES, BATCH
    )
    refused(model, X, EDGES, match="returns 1 rows for 60 nodes, as a pooling does")
    data = Data(X, EDGES, batch=BATCH)
    model = sparsified(net(lambda self, data: pool(self.conv(data.x, data.edge_index), data.batch), **parts), data)
    refused(model, data, match="returns 3 rows for 60 nodes")


# ----------------------------------------------------------------------------------------------------------- Data objects

PLAIN, WEIGHTED, ATTRIBUTED = Data(X, EDGES), Data(X, EDGES, edge_weight=WEIGHT), Data(X, EDGES, edge_attr=WEIGHT)
FULL = Data(X, EDGES, edge_attr=ATTR, batch=BATCH, y=BATCH, name="graph")


def _writing(self, data):
    x, edge_index, _batch, _y = data.x, data["edge_index"], data.batch, data.y
    data.x = self.conv(x, edge_index).relu()
    data.y = None
    return data.x * 2 if "batch" in data else data.x


@pytest.mark.parametrize(
    "forward, data, weighted",
    [
        (lambda self, data: self.conv(data.x, data.edge_index), PLAIN, False),
        (lambda self, data: self.conv(data.x, data.edge_index), WEIGHTED, False),
        (lambda self, data: self.conv(data.x, data.edge_index), FULL, False),
        (lambda self, data: self.conv(data.x, data.edge_index), Batch.from_data_list([PLAIN, PLAIN]), False),
        (lambda self, batch: self.conv(batch["x"], batch["edge_index"]), PLAIN, False),
        (lambda self, anything: self.conv(anything.x, anything.edge_index), PLAIN, False),
        (lambda self, data, verbose=False: self.conv(data.x, data.edge_index), PLAIN, False),
        (lambda self, data: self.conv(data.x, data.edge_index, data.edge_attr), PLAIN, False),
        (lambda self, data: self.conv(data.x, data.edge_index, data.edge_weight), WEIGHTED, True),
        (lambda self, data: self.conv(data.x, data.edge_index, data.edge_attr), ATTRIBUTED, True),
        (_writing, FULL, False),
    ],
)
def test_a_forward_that_takes_a_data_object(forward, data, weighted):
    before = {name: id(value) for name, value in data.to_dict().items()}
    model = sparsified(net(forward), data.clone())
    fast = uf.compress(model, data)
    expected = evaluated(model, data.clone())
    assert_close(fast.predict(), expected, 1e-5)
    assert_close(fast(data.x, data.edge_index, WEIGHT if weighted else None), expected, 1e-5)
    assert fast.program.weighted == weighted
    assert {name: id(value) for name, value in data.to_dict().items()} == before


def test_a_forward_that_takes_a_data_object_and_the_parts_of_one():
    def forward(self, data):
        return self.conv(data.x, data.edge_index, data.edge_weight)

    model = sparsified(net(forward), WEIGHTED)
    assert_close(uf.compress(model, X, EDGES, WEIGHT).predict(), evaluated(model, WEIGHTED), 1e-5)
    model = sparsified(net(lambda self, data: self.conv(data.x, data.edge_index)), PLAIN)
    assert_close(uf.compress(model, X.numpy(), EDGES.numpy()).predict(), evaluated(model, PLAIN), 1e-5)
    refused(model, X, EDGES, WEIGHT, match="does not use data.edge_weight")


@pytest.mark.parametrize(
    "forward, match",
    [
        (lambda self, data: self.conv(data.x, data.edge_index) * data.y[:, None], r"reads data\.y"),
        (lambda self, data: self.norm(self.conv(data.x, data.edge_index), data.batch), r"reads data\.batch"),
        (lambda self, data: self.conv(data.x, data.edge_index) + self.lin(data.edge_attr).mean(0), r"reads data\.edge_attr"),
        (lambda self, data: self.conv(data.x, data.edge_index) / data.num_nodes, r"reads data\.num_nodes"),
        (lambda self, data: self.conv(data.to("cpu").x, data.edge_index), r"reads data\.to"),
    ],
)
def test_what_else_a_data_object_has(forward, match):
    model = sparsified(net(forward, norm=pyg.GraphNorm(C), lin=nn.Linear(3, C)), FULL)
    refused(model, FULL, match=match)


def test_a_data_object_for_a_forward_that_takes_its_parts():
    model = sparsified(pyg.GCN(F, 16, 2, C), X, EDGES)
    for data, args in ((PLAIN, ()), (WEIGHTED, (WEIGHT,)), (FULL, ())):
        assert_close(uf.compress(model, data).predict(), evaluated(model, X, EDGES, *args), 1e-5)
    refused(model, ATTRIBUTED, match=r"ambiguous whether data\.edge_attr is meant")
    refused(model, PLAIN, EDGES, match="has its own edges")
    refused(model, Data(edge_index=EDGES), match="needs `x`, and the Data object has none")
    refused(model, Data(X), match="needs `edge_index`")
    fast = uf.compress(model, PLAIN)
    with pytest.raises(InputError, match=r"x is a Data and not a matrix; give features.*data\.x"):
        fast(PLAIN, EDGES)


# ----------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "forward, order",
    [
        (lambda self, edge_index, x: self.conv(x, edge_index), (1, 0)),
        (lambda self, adj, features: self.conv(features, adj), (1, 0)),
        (lambda self, x, adj_t: self.conv(x, adj_t), (0, 1)),
        (lambda self, features, structure: self.conv(features, structure), (0, 1)),
        (lambda self, *args, **kwargs: self.conv(*args, **kwargs), (0, 1)),
        (lambda self, x, batch=None, edge_index=None: self.conv(x, edge_index), (0, None, 1)),
        (lambda self, x, edge_index, *, scale=2.0: self.conv(x, edge_index) * scale, (0, 1)),
    ],
)
def test_arguments_in_other_orders(forward, order):
    args = [None if i is None else (X, EDGES)[i] for i in order]
    model = sparsified(net(forward), *args)
    assert_close(uf.compress(model, X, EDGES).predict(), evaluated(model, *args), 1e-5)


@pytest.mark.parametrize(
    "forward, args, given, match",
    [
        (lambda self, inputs: self.conv(*inputs), ((X, EDGES),), (X, EDGES), "takes one argument, `inputs`.*name it data"),
        (lambda self, graph, feat: self.conv(feat, graph), (EDGES, X), (X, EDGES), "not clear which are the features"),
        (lambda self, x, edge_attr: self.conv(x, edge_attr), (X, EDGES), (X, EDGES), "not clear which are the features"),
        (lambda self, x, batch, edge_index: self.conv(x, edge_index), (X, BATCH, EDGES), (X, EDGES), "needs `batch`"),
        (
            lambda self, x, edge_index, edge_weight: self.conv(x, edge_index, edge_weight),
            (X, EDGES, WEIGHT),
            (X, EDGES),
            "needs `edge_weight`; pass it to compress",
        ),
        (
            lambda self, x, edge_index, edge_attr=None: self.conv(x, edge_index, edge_attr),
            (X, EDGES, WEIGHT),
            (X, EDGES, WEIGHT),
            "no argument for edge weights.*if `edge_attr` is for weights, name it edge_weight",
        ),
        (lambda self, x, edge_index, mask: self.conv(x, edge_index), (X, EDGES, None), (X, EDGES), "needs `mask`"),
        (lambda self, x, edge_index: {"out": self.conv(x, edge_index)}, (X, EDGES), (X, EDGES), "not return a matrix"),
    ],
)
def test_arguments_without_a_clear_role(forward, args, given, match):
    refused(sparsified(net(forward), *args), *given, match=match)


# ---------------------------------------------------------------------------------------------------------------- values


def _damaged(kind, **arrays):
    matrix = kind(X.numpy())
    for name, (at, value) in arrays.items():
        changed = getattr(matrix, name).copy()
        changed[at] = value
        setattr(matrix, name, changed)
    return matrix


@pytest.mark.parametrize(
    "given, match",
    [
        ((X[0], EDGES), "features are a matrix"),
        ((X[:0], EDGES[:, :0]), "no rows"),
        ((None, EDGES), "needs `x`"),
        ((X,), "needs `edge_index`"),
        (("x", EDGES), "without numeric values"),
        (([[1.0], [1.0, 2.0]], EDGES), "not a matrix"),
        ((np.array([[None]]), EDGES), "without numeric values"),
        ((X.numpy().astype(complex), EDGES), "real numbers"),
        (((X, X), EDGES), "tuple of 2 parts"),
        ((X.long(), EDGES), "floating-point"),
        ((X.double(), EDGES), "float64"),
        ((torch.cat([X, X], dim=1), EDGES), "16 columns"),
        ((_damaged(sparse.csr_array, indptr=(3, 10**6)), EDGES), "`x` is a damaged csr matrix: its indptr"),
        ((_damaged(sparse.csr_array, indices=(3, F)), EDGES), "`x` is a damaged csr matrix: index 8"),
        ((_damaged(sparse.csc_array, indices=(3, 10**6)), EDGES), "`x` is a damaged csc matrix: index"),
        ((X, "edges"), "not a tensor; give"),
        ((X, [[1], [1, 2]]), "not a tensor; give"),
        ((X, [EDGES, EDGES]), "not a tensor; give"),
        ((X, EDGES.T), r"shape \[150, 2\]"),
        ((X, EDGES.float()), "are integers"),
        ((X, EDGES + 50), "names node"),
        ((X, EDGES, "weights"), "not a tensor; give"),
        ((X, EDGES, WEIGHT[:5]), r"shape \[5\], and there are 150 edges"),
        ((X, EDGES, WEIGHT * torch.nan), "scores are finite"),
        ((X, uf.Graph.from_edge_index(EDGES, N), WEIGHT), "has its own weights"),
    ],
)
def test_values_that_cannot_work(given, match):
    model = sparsified(pyg.GCN(F, 16, 2, C), X, EDGES)
    refused(model, *given, match=match)


def test_a_decoupled_model_and_a_data_object():
    head = Mlp(F, C, width=8)
    for layer in head.linears():
        layer.decide(torch.rand(layer.in_features) + 0.1, sparsity=0.5)
    model = DecoupledModel(head, None, {"scheme": "appnp", "hops": 2}).eval()
    assert_close(uf.compress(model, PLAIN).predict(), model(X, EDGES), 1e-5)
    weighted = uf.Graph.from_edge_index(EDGES, N, edge_weight=WEIGHT)
    assert_close(uf.compress(model, WEIGHTED).predict(), model(X, weighted), 1e-5)
    refused(model, ATTRIBUTED, match=r"ambiguous whether data\.edge_attr is meant")
    refused(model, {"a": X}, EDGES, match="`x` is a dict")
    refused(model, "x", EDGES, match="cannot be evaluated")
    refused(model, X, EDGES + 50)


def test_threads_are_checked_first():
    with pytest.raises(InputError, match="threads"):
        uf.compress(nn.Linear(2, 2), X, EDGES, threads=0)


def test_calls_of_a_frozen_model_with_other_inputs():
    fast = uf.compress(sparsified(pyg.GCN(F, 16, 2, C), X, EDGES), X, EDGES)
    for call in (fast, fast.bind):
        for weight in (BATCH, ATTR, WEIGHT[:5]):
            with pytest.raises(ShapeError, match="give one weight per edge"):
                call(X, EDGES, weight)
        for x in ({"a": X}, "x", X.to(torch.complex64), _hetero(), _damaged(sparse.csr_array, indptr=(3, 10**6))):
            with pytest.raises(InputError):
                call(x, EDGES)
