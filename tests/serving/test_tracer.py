"""A forward becomes steps, or one sentence says what of it cannot."""

from __future__ import annotations

import pytest
import torch
from frozen_models import CLASSES, FEATURES, assert_close, evaluated, graph
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GCNConv, LayerNorm

import unifews as uf
from unifews.errors import InputError


def model_of(end, **modules):
    """GCN, then whatever `end(self, x)` does."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GCNConv(FEATURES, 12)
            for name, module in modules.items():
                setattr(self, name, module)

        def forward(self, x, edge_index):
            return end(self, self.conv(x, edge_index))

    torch.manual_seed(0)
    x, edge_index = graph()
    model = uf.sparsify(Net(), edge_sparsity=0.4, entries="unit", weight_sparsity=0.5, ramp=1)
    model(x, edge_index).sum().backward()
    return model, x, edge_index


ENDS = {
    "sum of a list": lambda self, x: sum([x, x.relu(), 2 * x]),
    "minus": lambda self, x: 1 - x.sigmoid(),
    "alpha": lambda self, x: torch.add(x, x.tanh(), alpha=0.3).sub(x.relu(), alpha=2),
    "product": lambda self, x: x * torch.sigmoid(x) / 2,
    "negative": lambda self, x: -x,
    "matrix": lambda self, x: x @ self.w + self.b,
    "function": lambda self, x: functional.linear(x, self.w.T, self.b),
    "gelu": lambda self, x: functional.gelu(x, approximate="tanh") + functional.gelu(x),
    "slopes": lambda self, x: functional.leaky_relu(functional.elu(x, 0.3), negative_slope=0.4),
    "in place": lambda self, x: functional.silu(x).mul_(2).add_(1),
    "standardised": lambda self, x: (x - self.b) * self.w[0],
    "divided": lambda self, x: x / (self.b.abs() + 1),
    "softmax": lambda self, x: x.softmax(dim=-1),
    "max": lambda self, x: torch.max(x, -x),
    "modules": lambda self, x: self.stack(x),
    "pyg norm": lambda self, x: self.norm(x).contiguous().float(),
    "constants": lambda self, x: x * torch.softmax(self.b, dim=0) + self.w.sum(),
}
PARTS = dict(
    w=nn.Parameter(torch.randn(12, 12)),
    b=nn.Parameter(torch.randn(12)),
    stack=nn.Sequential(
        nn.Linear(12, 12), nn.ELU(0.5), nn.Dropout(), nn.Identity(), nn.LayerNorm(12), nn.Softplus(), nn.LogSoftmax(-1)
    ),
    norm=LayerNorm(12, mode="node"),
)


@pytest.mark.parametrize("end", ENDS)
def test_what_people_write(end):
    model, x, edge_index = model_of(ENDS[end], **PARTS)
    fast = uf.compress(model, x, edge_index)
    assert_close(fast(x, edge_index), evaluated(model, x, edge_index), 1e-5)
    assert_close(fast.predict([3, 30]), evaluated(model, x, edge_index)[[3, 30]], 1e-5)


def _by_values(self, x):
    return x if x.sum() > 0 else -x


REFUSED = {
    "sorting": (lambda self, x: x.sort(dim=1).values, r"sort\(…\).*\(test_tracer\.py, line \d+\)"),
    "other rows": (lambda self, x: x - x.mean(dim=0), r"mean\(…\)"),
    "rows joined": (lambda self, x: torch.cat([x, x], dim=0)[: len(x)], "cannot be traced|cat"),
    "by values": (_by_values, "branches on the values"),
    "softmax over nodes": (lambda self, x: x.softmax(dim=0), r"softmax\(…\) in a way"),
    "dropout for ever": (lambda self, x: functional.dropout(x), r"dropout\(…\) in a way"),
    "another module": (lambda self, x: self.other(x[:, None])[:, 0], "getitem|GRU|Conv1d"),
    "a tuple": (lambda self, x: (x, x), "not return a matrix of scores"),
    "graph norm": (lambda self, x: self.norm(x), r"norm, a LayerNorm over all nodes.*\(test_tracer\.py, line \d+\)"),
    "batch statistics": (lambda self, x: self.still(x), "without running statistics"),
}


@pytest.mark.parametrize("end", REFUSED)
def test_what_has_no_step_is_told_in_a_sentence(end):
    function, sentence = REFUSED[end]
    parts = dict(other=nn.Conv1d(1, 1, 1), norm=LayerNorm(12), still=nn.BatchNorm1d(12, track_running_stats=False))
    try:
        model, x, edge_index = model_of(function, **parts)
    except AttributeError:  # a tuple has no sum
        model, x, edge_index = model_of(lambda self, x: function(self, x)[0] if self.training else function(self, x), **parts)
    with pytest.raises(InputError, match=sentence) as caught:
        uf.compress(model, x, edge_index)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_edges_that_the_model_makes_itself():
    x, edge_index = graph()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GCNConv(FEATURES, CLASSES)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index.flip(0))

    model = uf.sparsify(Net(), edge_sparsity=0.5, entries="unit")
    model(x, edge_index).sum().backward()
    with pytest.raises(InputError, match=r"flip|edges that the model makes itself"):
        uf.compress(model, x, edge_index)
