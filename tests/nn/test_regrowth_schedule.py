"""When removed weights are trained and may be restored: in the first passes always, then in every second optimizer step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch_geometric.nn import GCN

import unifews as uf
from unifews.nn import session
from unifews.nn.convs.base import session_of
from unifews.nn.session import _REGROW_EVERY, _SETTLED

N, RAMP = 40, 3


@pytest.fixture
def graph():
    torch.manual_seed(0)
    return torch.randn(N, 12), torch.randint(0, N, (2, 160)), torch.randint(0, 4, (N,))


def sparsified(**how):
    torch.manual_seed(1)
    return uf.sparsify(GCN(12, 16, 2, 4), weight_sparsity=0.7, ramp=RAMP, **how)


def step(model, graph, optimizer, batches=1):
    """One optimizer step after so many passes; whether removed weights were trained in each, and their gradients."""
    x, edges, y = graph
    optimizer.zero_grad()
    seen = []
    for _ in range(batches):
        torch.nn.functional.cross_entropy(model(x, edges), y).backward()
        seen.append(session_of(model).weights[0].feedback)
    weight = session_of(model).weights[0]
    removed = weight.matrix.grad[~weight.keep]
    optimizer.step()
    return seen, removed


def test_removed_weights_are_trained_in_every_second_step_once_settled(graph):
    model = sparsified()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    settled = RAMP * _SETTLED
    for number in range(1, settled + 3 * _REGROW_EVERY + 1):
        before = session_of(model).weights[0].keep.clone()
        (trained,), removed = step(model, graph, optimizer)
        expected = number <= settled or (number - settled) % _REGROW_EVERY == 0
        assert trained == expected, number
        assert bool(removed.any()) == expected, number
        if not expected:
            assert torch.equal(before, session_of(model).weights[0].keep)


def test_passes_of_one_optimizer_step_agree_and_none_is_left_out(graph, monkeypatch):
    monkeypatch.setattr(session, "_REGROW_EVERY", 5)
    model = sparsified()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = [step(model, graph, optimizer, batches=3)[0] for _ in range(30)]
    assert all(len(set(each)) == 1 for each in seen)
    late = [each[0] for each in seen[RAMP * _SETTLED :]]  # 3 passes a step
    assert any(late) and not all(late)


def test_without_optimizer_steps_every_pass_decides(graph):
    """Nothing has changed since the passes in which the weights settled."""
    model = sparsified()
    for _ in range(RAMP * _SETTLED + 5):
        model(graph[0], graph[1])
    assert session_of(model).weights[0].feedback


def test_a_copy_and_an_earlier_state_continue_the_schedule(graph):
    model = sparsified()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    early = copy.deepcopy(model.state_dict())
    for _ in range(RAMP * _SETTLED + _REGROW_EVERY + 4):
        step(model, graph, optimizer)
    other = copy.deepcopy(model)
    moved = torch.optim.Adam(other.parameters(), lr=0.01)
    assert [step(other, graph, moved)[0] for _ in range(_REGROW_EVERY)] == [
        step(model, graph, optimizer)[0] for _ in range(_REGROW_EVERY)
    ]
    model.load_state_dict(early)
    assert step(model, graph, optimizer)[0] == [True]


def test_phases_that_only_remove_decide_in_every_pass(graph):
    model = sparsified()
    uf.set_schedule(model, "monotone")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(RAMP * _SETTLED + 3):
        assert step(model, graph, optimizer)[0] == [False]
    assert session_of(model).weights[0].rows == N
