"""Freezing a model touches nothing but a private copy of it: not torch, not other threads, not the model."""

from __future__ import annotations

import math
import threading
import warnings
from contextlib import contextmanager

import pytest
import torch
from frozen_models import CLASSES, FEATURES, assert_close, evaluated, graph, trained
from scipy import sparse
from torch import nn
from torch_geometric.nn import GCN, GCNConv, SAGEConv

import unifews as uf
from unifews.errors import InputError
from unifews.serving.model_copy import private_copy

CALL, GETATTR, SQRT = nn.Module.__call__, nn.Module.__getattr__, math.sqrt


@contextmanager
def beside(work):
    """`work()` again and again in another thread; gives what it returned, and raises what it raised."""
    over, results, errors = threading.Event(), [], []

    def go():
        try:
            while not over.is_set():
                results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield results
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]
    assert results


def passed(net, x, edge_index, form=None, times=2):
    """Sparsified, after a few training passes."""
    model = uf.sparsify(net, ramp=1, **(form or dict(edge_sparsity=0.5, weight_sparsity=0.5)))
    for _ in range(times):
        model(x, edge_index).square().sum().backward()
    return model


# ---------------------------------------------------------------------------------------------------------------- threads


def test_torch_is_as_it_was_while_a_model_is_traced():
    seen = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.scale = GCNConv(FEATURES, CLASSES), nn.Parameter(torch.ones(CLASSES))

        def forward(self, x, edge_index):
            seen.append((nn.Module.__call__, nn.Module.__getattr__, math.sqrt, torch.fx._symbolic_trace.is_fx_tracing()))
            return self.conv(x, edge_index) * self.scale * math.sqrt(2)

    x, edge_index = graph()
    uf.compress(passed(Net(), x, edge_index), x, edge_index)
    assert len(seen) == 4  # two training passes, one to compare with, one that is traced
    assert set(seen) == {(CALL, GETATTR, SQRT, False)}


def test_an_unrelated_model_runs_in_another_thread():
    other, rows = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 3))).eval(), torch.randn(5, 8)
    with torch.no_grad():
        expected = other(rows)

    def serve():
        with torch.no_grad():
            return other(rows)

    (x, edge_index), model = graph(), trained("own")
    with beside(serve) as answers:
        for _ in range(10):
            uf.compress(model, x, edge_index)
    assert all(type(answer) is torch.Tensor and torch.equal(answer, expected) for answer in answers)


@pytest.mark.parametrize("name", ["gcn", "gat", "transformer"])
def test_the_same_model_is_evaluated_in_another_thread(name):
    (x, edge_index), model = graph(), trained(name).eval()
    expected = evaluated(model, x, edge_index)

    def serve():
        with torch.no_grad():
            return model(x, edge_index)

    with beside(serve) as answers:
        found = [uf.compress(model, x, edge_index).predict() for _ in range(10)]
    assert all(torch.equal(answer, expected) for answer in answers)
    assert all(torch.equal(one, found[0]) for one in found)
    assert_close(found[0], expected, 1e-5)


@pytest.mark.parametrize("form", ["unit", "node", "block"])
def test_the_same_model_is_trained_in_another_thread(form):
    """What is frozen is compared with the same copy of the model, whatever the training loop does to the model meanwhile."""
    (x, edge_index), model = graph(), trained("gcn", form)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model.train()

    def train():
        optimizer.zero_grad()
        loss = model(x, edge_index).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    with beside(train) as losses:
        for _ in range(10):
            assert bool(uf.compress(model, x, edge_index).predict().isfinite().all())
            assert all(module.training for module in model.modules())
    assert all(math.isfinite(loss) for loss in losses)


def test_threads_compress_different_models_at_once():
    names, (x, edge_index) = ["gcn", "gat", "sage", "own"], graph()
    models = {name: trained(name) for name in names}
    errors, found = [], {name: [] for name in names}

    def work(name):
        try:
            for _ in range(5):
                found[name].append(uf.compress(models[name], x, edge_index).predict())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for name in names:
        for one in found[name]:
            assert_close(one, evaluated(models[name], x, edge_index), 1e-5)


def test_a_layer_with_its_own_code_predicts_in_several_threads():
    (x, edge_index), model = graph(), trained("transformer")
    fast = uf.compress(model, x, edge_index)
    expected = fast(x, edge_index)
    with beside(lambda: fast(x, edge_index)) as answers:
        here = [fast(x, edge_index) for _ in range(10)]
    assert all(torch.equal(one, expected) for one in [*answers, *here])


def test_warning_filters_which_belong_to_all_threads_are_left_alone(monkeypatch):
    (x, edge_index), rows = graph(), sparse.csr_array(graph()[0].numpy())
    fast = uf.compress(trained("gcn"), rows, edge_index)
    monkeypatch.setattr(warnings, "catch_warnings", None)
    assert_close(fast(rows, edge_index), fast(x, edge_index), 1e-5)
    assert_close(fast.bind(rows, edge_index).predict([1, 50]), fast(x, edge_index)[[1, 50]], 1e-5)


# ------------------------------------------------------------------------------------------------------------ the model


def _state(model):
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_backward_hooks")
    parts = [
        (path, type(module), module.training, [dict(getattr(module, name)) for name in hooks])
        for path, module in model.named_modules()
    ]
    tensors = {name: (id(value), value._version) for name, value in model.state_dict(keep_vars=True).items()}
    return parts, tensors, {id(module): dict(vars(module)) for module in model.modules()}


def test_the_model_is_the_same_object_by_object():
    (x, edge_index), model = graph(), trained("own")
    model.convs[0].register_forward_hook(lambda *_: None)
    model.norms.eval()
    values, session = {name: value.clone() for name, value in model.state_dict().items()}, dict(vars(model.convs[0].session))
    before = _state(model)
    uf.compress(model, x, edge_index)
    with pytest.raises(InputError, match="no argument for edge weights"):
        uf.compress(model, x, edge_index, torch.ones(edge_index.shape[1]))
    after = _state(model)
    assert after[:2] == before[:2]
    assert all(vars_after.keys() == before[2][key].keys() for key, vars_after in after[2].items())
    assert all(vars_after[name] is before[2][key][name] for key, vars_after in after[2].items() for name in vars_after)
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert vars(model.convs[0].session) == session


def test_hooks_run_once_on_values_and_are_not_traced():
    shapes = []
    (x, edge_index), model = graph(), trained("own")
    for module in model.modules():
        module.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.detach().numpy().shape)))
    expected = evaluated(model, x, edge_index)
    shapes.clear()
    assert_close(uf.compress(model, x, edge_index).predict(), expected, 1e-5)
    assert not shapes  # the list that they write to is copied with them


def test_a_hook_that_changes_the_result_is_refused():
    (x, edge_index), model = graph(), trained("gcn")
    model.register_forward_hook(lambda module, args, out: out.softmax(dim=-1))
    with pytest.raises(InputError, match=r"differs from it.*forward hooks"):
        uf.compress(model, x, edge_index)


def test_a_model_that_cannot_be_deep_copied():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.lock, self.last = GCNConv(FEATURES, CLASSES), threading.Lock(), None

        def forward(self, x, edge_index):
            with self.lock:
                self.last = self.conv(x, edge_index)
            return self.last

    x, edge_index = graph()
    net = Net()
    lock, net.lock = net.lock, None
    model = uf.sparsify(net, edge_sparsity=0.5, entries="unit")
    model.lock = lock
    model(x, edge_index).sum().backward()
    last = model.last
    assert last.grad_fn is not None
    assert_close(uf.compress(model, x, edge_index).predict(), evaluated(model, x, edge_index), 1e-5)


def test_a_compiled_model_is_compressed_as_the_model_it_compiles():
    (x, edge_index), model = graph(), trained("gcn")
    expected = evaluated(model, x, edge_index)
    assert_close(uf.compress(torch.compile(model), x, edge_index).predict(), expected, 1e-5)
    model.convs[0].compile()
    assert_close(uf.compress(model, x, edge_index).predict(), expected, 1e-5)


def test_a_compiled_part_of_a_model():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.end = GCNConv(FEATURES, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, CLASSES))

        def forward(self, x, edge_index):
            return self.end(self.conv(x, edge_index))

    x, edge_index = graph()
    model = passed(Net(), x, edge_index)
    expected = evaluated(model, x, edge_index)
    model.end = torch.compile(model.end)
    assert_close(uf.compress(model, x, edge_index).predict(), expected, 1e-5)


def test_wrapped_models():
    (x, edge_index), model = graph(), trained("gcn")
    expected = evaluated(model, x, edge_index)
    assert_close(uf.compress(nn.DataParallel(model), x, edge_index).predict(), expected, 1e-5)
    wrapped = passed(nn.DataParallel(GCN(FEATURES, 8, 2, CLASSES)), x, edge_index)
    assert_close(uf.compress(wrapped, x, edge_index).predict(), evaluated(wrapped.module, x, edge_index), 1e-5)


@pytest.mark.filterwarnings("ignore")  # torch calls TorchScript deprecated
def test_scripted_models():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.end = GCNConv(FEATURES, 8), nn.Linear(8, CLASSES)

        def forward(self, x, edge_index):
            return self.end(self.conv(x, edge_index))

    x, edge_index = graph()
    model = passed(Net(), x, edge_index)
    model.end = torch.jit.trace(nn.Linear(8, CLASSES), torch.randn(2, 8))
    with pytest.raises(InputError, match="no step for that"):
        uf.compress(model, x, edge_index)
    assert model.end.training
    with pytest.raises(InputError, match="TorchScript module"):
        uf.compress(model.end, x, edge_index)


def test_a_forward_that_is_a_closure():
    x, edge_index = graph()

    class Net(nn.Module):
        pass

    net = Net()
    net.convs = nn.ModuleList([GCNConv(FEATURES, 8), GCNConv(8, CLASSES)])
    model = uf.sparsify(
        net, edge_sparsity=0.5, entries="unit", inplace=True
    )  # a deep copy would leave the closure with the original
    first, second = model.convs

    def last(x, edge_index):
        return second(x, edge_index)

    def forward(x, edge_index):
        return last(first(x, edge_index).relu(), edge_index) + model.convs[1](first(x, edge_index), edge_index)

    model.forward = forward
    model(x, edge_index).sum().backward()
    assert_close(uf.compress(model, x, edge_index).predict(), evaluated(model, x, edge_index), 1e-5)
    assert private_copy(model).forward is not forward and model.forward is forward


def test_layers_and_weights_that_are_used_twice():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.conv, self.other = nn.Linear(FEATURES, 8), SAGEConv(8, 8), SAGEConv(8, 8)
            self.other.lin_l.weight = self.conv.lin_l.weight
            self.same = self.conv

        def forward(self, x, edge_index):
            x = self.into(x)
            x = self.conv(x, edge_index).relu()
            return self.other(self.same(x, edge_index), edge_index) + self.conv(x, edge_index)

    x, edge_index = graph()
    model = passed(Net(), x, edge_index, dict(edge_sparsity=0.5))
    assert_close(uf.compress(model, x, edge_index).predict(), evaluated(model, x, edge_index), 1e-5)
    copy = private_copy(model)
    assert copy.conv is copy.same and copy.conv is not model.conv
    assert copy.other.lin_l.weight is copy.conv.lin_l.weight and copy.conv.lin_l.weight is not model.conv.lin_l.weight
    assert copy.conv.session is copy.other.session and copy.conv.session is not model.conv.session


def test_classes_that_watch_their_subclasses():
    known = []

    class Watching(nn.Module):
        def __init_subclass__(cls, *, name, **kwargs):
            known.append(name)

    class Net(Watching, name="net"):
        def __init__(self):
            super().__init__()
            self.model = GCN(FEATURES, 8, 2, CLASSES)

        def forward(self, x, edge_index):
            return super().__call__ and self.model(x, edge_index)

    x, edge_index = graph()
    model = passed(Net(), x, edge_index)
    assert_close(uf.compress(model, x, edge_index).predict(), evaluated(model, x, edge_index), 1e-5)
    assert known == ["net"]
