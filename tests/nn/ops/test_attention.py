"""The operators of attention against plain torch with one message per edge; forward, backward, and as torch wants them."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from unifews.nn.edges import Adjacency
from unifews.nn.ops import attention
from unifews.nn.ops.attention import Lanes
from unifews.nn.products import attention as heads
from unifews.nn.products.attention import HeadRows

SHAPES = [(1, 0, 1, 3), (1, 4, 4, 8), (40, 300, 1, 7), (40, 300, 8, 8), (50, 400, 8, 32), (30, 200, 3, 5), (30, 200, 16, 3)]


def problem(n, m, heads_, channels, seed=0, dtype=torch.float32):
    """Edges with copies and isolated nodes among them, rows of senders and receivers, attention, and loops of some nodes."""
    g = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, max(1, n - n // 5), (2, m), generator=g)
    x, y = (torch.randn(n, heads_ * channels, generator=g).to(dtype).requires_grad_() for _ in range(2))
    att = torch.randn(heads_, channels, generator=g).to(dtype).requires_grad_()
    loop = torch.randint(0, 3, (n,), generator=g).to(dtype)
    return Adjacency.build(edge_index, n), x, y, att, loop


def attended(a, x, y, att, loop, columns=None, at=None, on=None):
    """All of it by `heads`, which picks its path by the precision of x."""
    left, right = HeadRows.of(x, len(att)), HeadRows.of(y, len(att))
    score, own = heads.scores(left, right, att, 0.2, a, loops=True)
    alpha, mine = heads.softmax(score, own, loop, a)
    return score, alpha, mine, heads.gather(left, alpha, mine, on or a, columns=columns, at=at)


def compare(shape, **how):
    results = []
    for dtype in (torch.float32, torch.float64):
        a, x, y, att, loop = problem(*shape, dtype=dtype)
        found = attended(a, x, y, att, loop, **{k: v(a) if callable(v) else v for k, v in how.items()})
        g = torch.Generator().manual_seed(1)
        total = sum((value * torch.randn(value.shape, generator=g).to(dtype)).sum() for value in found)
        results.append([*found, *torch.autograd.grad(total, (x, y, att))])
    for ours, exact in zip(*results, strict=True):
        scale = float(exact.detach().abs().max()) + 1e-3 if exact.numel() else 1.0
        torch.testing.assert_close(ours.double() / scale, exact / scale, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_and_portable_path_agree_with_all_gradients(shape):
    compare(shape)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1]])
def test_some_columns(shape):
    width = shape[2] * shape[3]
    picked = torch.randperm(width, generator=torch.Generator().manual_seed(2))
    for count in (0, 1, width // 3, width):
        compare(shape, columns=picked[:count].sort().values)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1]])
def test_some_edges(shape):
    keep = torch.rand(shape[1], generator=torch.Generator().manual_seed(2)) < 0.4
    compare(shape, at=keep.nonzero().flatten(), on=lambda a: a.only(keep))


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_of_columns(shape):
    a, x, _, _, _ = problem(*shape)
    alpha = torch.rand(a.num_edges, shape[2])
    message = (alpha[:, :, None] * x.detach().view(-1, *shape[2:])[a.indices.long()]).flatten(1)
    size = heads.column_sizes(HeadRows.of(x, shape[2]), alpha, a)
    torch.testing.assert_close(size, message.norm(dim=0), rtol=1e-4, atol=1e-5)
    slow = heads.column_sizes(HeadRows.of(x.double(), shape[2]), alpha.double(), a)
    torch.testing.assert_close(slow.float(), size, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "heads_, channels, columns, blocks",
    [
        (8, 32, None, 16),
        (1, 7, None, 1),
        (4, 8, None, 2),
        (16, 3, None, 3),
        (3, 5, None, 1),
        (8, 32, [0, 1, 2, 200], 1),
        (8, 32, list(range(20)), 2),
        (2, 40, list(range(50)), 4),
    ],
)
def test_every_column_has_a_slot_in_a_lane_of_its_head(heads_, channels, columns, blocks):
    lanes = Lanes.of(heads_, channels, columns)
    assert len(lanes.slots) == 16 * blocks
    wanted = list(range(heads_ * channels)) if columns is None else columns
    for column in range(heads_ * channels):
        slot = int(lanes.places[column])
        assert (slot >= 0) == (column in wanted)
        if slot >= 0:
            assert lanes.slots[slot] == column and lanes.lane[slot % 16] == column // channels
    assert int((lanes.slots >= 0).sum()) == len(wanted)


def test_large_scores_stay_finite():
    a, x, y, att, loop = problem(40, 300, 4, 8)
    _, alpha, mine, out = attended(a, 100 * x, 100 * y, att, loop)
    assert bool(out.isfinite().all()) and float(alpha.max()) <= 1.0001 and float(mine.min()) >= 0


@pytest.mark.slow
def test_torch_accepts_the_operators():
    a, x, y, att, loop = problem(40, 200, 4, 8)
    lanes = attention.all_lanes(4, 8)
    slots = [attention.take_columns(v, lanes.slots, lanes.places).detach().requires_grad_() for v in (x, y, att.view(1, -1))]
    ends = (a.start, a.end, a.indices, a.back_start, a.back_end)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    ops, (score, own) = torch.ops.unifews, (torch.randn(rows, 4, requires_grad=True) for rows in (200, 40))
    alpha, layout = torch.rand(200, 4, requires_grad=True), (lanes.slots, lanes.lane, lanes.slots, lanes.places, lanes.lane)
    for operator, arguments in (
        (ops.head_scores, (slots[0], slots[1], slots[2][0], 0.2, 4, lanes.lane, True, True, *ends, a.back_order)),
        (ops.row_softmax, (score, own, loop, a.start, a.end)),
        (ops.head_diffuse, (slots[0], alpha, own.sigmoid(), None, a.back_order, None, *layout, *ends, a.back_indices)),
        (ops.take_columns, (x, lanes.slots, lanes.places)),
    ):
        torch.library.opcheck(operator.default, arguments, test_utils=checks)


@pytest.mark.slow
def test_compiled_and_counted():
    a, x, y, att, loop = problem(40, 200, 4, 8)
    lanes = attention.all_lanes(4, 8)

    def attend(x, y, att):
        rows = [attention.take_columns(v, lanes.slots, lanes.places) for v in (x, y, att.reshape(1, -1))]
        score, own = attention.head_scores(rows[0], rows[1], rows[2][0], 0.2, 4, lanes.lane, a, loops=True)
        alpha, mine = attention.row_softmax(score, own, loop, a)
        return attention.head_diffuse(rows[0], alpha, mine, lanes, lanes, a).relu()

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    ours, plain = compiled(x, y, att), attend(x, y, att)
    torch.testing.assert_close(ours, plain)
    for one, other in zip(*(torch.autograd.grad(v.square().sum(), (x, y, att)) for v in (ours, plain)), strict=True):
        torch.testing.assert_close(one, other)
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            torch.testing.assert_close(compiled(x, y, att), plain)
            torch.testing.assert_close(attend(x, y, att), plain)  # without gradients, the kernels themselves
            with FlopCounterMode(display=False) as counter:
                attend(x, y, att)
        assert counter.get_total_flops() == 2 * 2 * (200 + 40) * 32
