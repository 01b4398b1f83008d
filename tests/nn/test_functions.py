"""The functions of one model's forward pass run on kernels; nothing else does."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import _get_current_function_mode
from torch_geometric.nn import GCN, GCNConv

import unifews as uf
from unifews.nn.functions import functions_of

N, WIDTH = 600, 64
X = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(5))
EDGES = torch.randint(N, (2, 3000), generator=torch.Generator().manual_seed(6))


def gcn(p=0.5, **how):
    torch.manual_seed(1)
    return GCN(WIDTH, WIDTH, 3, 7, dropout=p, norm="BatchNorm", **how)


def nodes_of(out):
    """Names of the autograd nodes behind a tensor."""
    seen, queue = set(), [out.grad_fn]
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            queue += [each for each, _ in node.next_functions]
    return {node.name() for node in seen}


KERNELS = {"_DropoutBackward", "_ReluBackward", "_BatchNormBackward", "_LinearBackward"}
TORCHS = {"MulBackward0", "ReluBackward0", "NativeBatchNormBackward0", "NativeDropoutBackward0"}


@pytest.mark.parametrize(
    "make",
    [uf.accelerate, lambda m, **k: uf.sparsify(m, edge_sparsity=0.5, entries="edge", **k)],
    ids=["accelerate", "sparsify"],
)
def test_a_training_pass_runs_on_kernels(make):
    names = nodes_of(make(gcn()).train()(X, EDGES))
    assert names >= KERNELS and not names & TORCHS
    assert not nodes_of(make(gcn(), replace_functions=False).train()(X, EDGES)) & KERNELS


class Own(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv, self.function = GCNConv(WIDTH, WIDTH), function

    def forward(self, x, edge_index):
        return self.function(self.conv(x, edge_index))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(F.relu(x), 0.5),
        lambda x: F.dropout(x.relu(), p=0.5, training=True),
        lambda x: F.dropout(torch.relu(x), 0.5, True, True),
        lambda x: F.dropout(F.relu(x, inplace=True), 0.5),
        lambda x: nn.Dropout(0.5)(nn.ReLU()(x)),
        lambda x: F.dropout(x.relu().double(), 0.5),
        lambda x: F.dropout(x.relu().T, 0.5).T,
    ],
)
def test_dropout_and_relu_however_they_are_called(function):
    torch.manual_seed(3)
    model = uf.accelerate(Own(function), inplace=True)
    x = X.clone().requires_grad_()
    out = model(x, EDGES)
    kept, plain = out != 0, model.conv(X, EDGES).relu().to(out.dtype)
    positive = plain > 0
    assert 0.47 < float(kept[positive].double().mean()) < 0.53 and not bool(kept[~positive].any())
    torch.testing.assert_close(out[kept], 2 * plain[kept])
    out.sum().backward()
    assert bool(x.grad.isfinite().all()) and bool(x.grad.any())


def test_intermediate_tensors_are_whole():
    held = []

    def function(x):
        h = F.relu(x)
        h.retain_grad()
        held[:] = [x, h, F.dropout(h, 0.5)]
        return held[2] + h

    model = uf.accelerate(Own(function), inplace=True)
    out = model(X, EDGES)
    x, h, dropped = held
    assert torch.equal(h, x.clamp(min=0)) and torch.equal(out, dropped + h)
    out.sum().backward()
    assert torch.equal(h.grad, torch.where(dropped != 0, 3.0, 1.0) * (h > 0) + h.grad * (h <= 0))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_no_and_all_dropout(p):
    out = uf.accelerate(Own(lambda x: F.dropout(x, p)), inplace=True)(X, EDGES)
    assert bool(out.any()) == (p == 0)


def test_draws_follow_the_seed():
    model = uf.accelerate(gcn()).train()
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(model(X, EDGES))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])


def test_results_gradients_and_statistics_are_pygs():
    theirs, grads = gcn(p=0.0).train(), []
    ours = uf.accelerate(theirs)
    for model in (theirs, ours):
        for k in range(2):
            model.zero_grad()
            out = model(X + k, EDGES)
            out.square().mean().backward()
        grads.append((out, [each.grad for each in model.parameters()]))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-3, atol=1e-5)
    for (name, mine), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(ours.eval()(X, EDGES), theirs.eval()(X, EDGES), rtol=1e-3, atol=1e-5)


class Fails(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.conv, self.kind, self.after = GCNConv(WIDTH, WIDTH), kind, True

    def forward(self, x, edge_index):
        if self.kind is not None:
            raise self.kind("stop")
        return F.dropout(self.conv(x, edge_index), 0.5)


def test_no_mode_is_left_behind_by_an_exception():
    model = uf.accelerate(Fails(ValueError))
    for _ in range(3):
        with pytest.raises(ValueError, match="stop"):
            model(X, EDGES)
        assert _get_current_function_mode() is None
    model.kind = None
    model(X, EDGES)
    assert _get_current_function_mode() is None


def test_an_interrupted_call_changes_nothing_outside():
    """torch calls no hook after a KeyboardInterrupt; the mode that is left has no effect, and the next call removes it."""
    model = uf.accelerate(Fails(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model(X, EDGES)
    assert "_DropoutBackward" not in nodes_of(F.dropout(X.clone().requires_grad_(), 0.5))
    model.kind = None
    assert "_DropoutBackward" in nodes_of(model(X, EDGES))
    assert _get_current_function_mode() is None


def test_other_models_and_threads_use_torchs_own():
    inside, seen = threading.Event(), []
    done = threading.Event()

    def function(x):
        inside.set()
        assert done.wait(30)
        return F.dropout(x, 0.5)

    model = uf.accelerate(Own(function), inplace=True)
    worker = threading.Thread(target=lambda: seen.append(nodes_of(model(X, EDGES))))
    worker.start()
    assert inside.wait(30)
    here = nodes_of(F.dropout(X.clone().requires_grad_(), 0.5))
    done.set()
    worker.join()
    assert "_DropoutBackward" in seen[0] and "_DropoutBackward" not in here


def test_copies_keep_it_and_desparsify_removes_it():
    model = uf.accelerate(gcn()).train()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert nodes_of(other(X, EDGES)) >= KERNELS
    plain = uf.desparsify(model)
    assert functions_of(plain) is None and not plain._forward_pre_hooks and not plain._forward_hooks
    assert not nodes_of(plain(X, EDGES)) & KERNELS


def test_torch_func_and_flop_counting_pass_through():
    from torch.utils.flop_counter import FlopCounterMode

    model = uf.accelerate(gcn(p=0.5)).train()
    with FlopCounterMode(display=False) as counter:
        model(X, EDGES)
    assert counter.get_total_flops() > 2 * N * WIDTH * WIDTH
    own = uf.accelerate(Own(lambda x: torch.func.vmap(F.relu)(x) + torch.func.grad(lambda y: F.relu(y).sum())(x)), inplace=True)
    h = own.conv(X, EDGES)
    assert torch.equal(own(X, EDGES), h.relu() + (h > 0))


@pytest.mark.slow
def test_a_compiled_model_drops_too():
    model = torch.compile(uf.accelerate(gcn()), backend="eager").train()
    torch.manual_seed(2)
    first, second = model(X, EDGES), model(X, EDGES)
    assert not torch.equal(first, second) and bool(first.isfinite().all())
    assert _get_current_function_mode() is None


def test_few_values_are_left_to_torch():
    model = uf.accelerate(gcn()).train()
    assert not nodes_of(model(X[:20], EDGES[:, :0])) & KERNELS
