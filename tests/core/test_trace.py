"""The trace: exact counts, one definition of sparsity, a table and a dictionary."""

from __future__ import annotations

import json

import pytest

from unifews.core.trace import HopTrace, LayerTrace, Trace
from unifews.nn.trace import ConvTrace, ModelTrace


def hop(index, kept, *, entries=100, zeros=0, width=16, threshold=0.5, seconds=0.25):
    return HopTrace(index, entries, kept, zeros, kept * width, entries * width, zeros * width, threshold, seconds)


def test_sparsity_is_the_share_of_nonzero_products_removed():
    assert hop(0, 25).sparsity == 0.75
    assert hop(0, 25, zeros=50).sparsity == 0.5
    assert hop(0, 25, zeros=50).removed == 25
    assert hop(0, 0, zeros=100).sparsity == 0.0  # nothing there to remove
    assert hop(0, 0, entries=0).sparsity == 0.0


def test_edge_sparsity_is_the_plain_mean_over_hops():
    # Not pooled: the second hop has a tenth of the products and counts as much.
    trace = Trace((hop(0, 50, entries=100), hop(1, 1, entries=10)))
    assert trace.edge_sparsity == pytest.approx((0.5 + 0.9) / 2)
    assert Trace(()).edge_sparsity == 0.0


def test_sums():
    trace = Trace((hop(0, 50), hop(1, 30)), basis_seconds=1.0, setup_seconds=2.0)
    assert trace.macs == 80 * 16 and trace.dense_macs == 200 * 16
    assert trace.seconds == pytest.approx(3.5)


@pytest.mark.parametrize("edges", [2**32 + 1, 2**53 + 1, 2**62 + 1])
def test_counts_are_exact_however_large(edges):
    """papers100M × 20 hops is past what 32 bits hold; floats would lose the last digit past 2^53."""
    trace = Trace(tuple(hop(index, edges, entries=edges, width=128) for index in range(20)))
    assert isinstance(trace.macs, int)
    assert trace.macs == 20 * 128 * edges == trace.dense_macs
    assert trace.edge_sparsity == 0
    assert json.loads(json.dumps(trace.to_dict()))["macs"] == 20 * 128 * edges
    assert f"{128 * edges:,}" in str(trace) and f"{20 * 128 * edges:,}" in str(trace)


def test_one_product_less_out_of_many_is_seen_in_the_counts():
    edges = 2**60
    assert hop(0, edges - 1, entries=edges).removed == 1


def test_it_prints_as_a_table():
    text = str(Trace((hop(0, 50), hop(1, 30, threshold=None)), notes=("a remark",)))
    lines = text.splitlines()
    assert lines[0].split() == ["hop", "entries", "kept", "MACs", "removed", "threshold", "seconds"]
    assert lines[1].split() == ["0", "100", "50", "800", "50.0%", "0.5", "0.250"]
    assert lines[2].split()[5] == "-"
    assert lines[3].split()[:5] == ["all", "200", "80", "1,280", "60.0%"]
    assert lines[-1] == "a remark" and len({len(line) for line in lines[:4]}) == 1


def test_exact_zeros_have_a_column_where_there_are_some():
    lines = Trace((hop(0, 50), hop(1, 30, zeros=20))).table()
    assert lines[0].split()[:4] == ["hop", "entries", "kept", "zero"]
    assert [line.split()[3] for line in lines[1:]] == ["0", "20", "20"]
    assert "zero" not in Trace((hop(0, 50),)).table()[0]


def test_columns_are_as_wide_as_their_widest_cell():
    lines = Trace((hop(0, 2**80, entries=2**80), hop(1, 30))).table()
    assert len({len(line) for line in lines}) == 1 and f"{2**80:,}" in lines[1]


def test_a_model_prints_in_the_same_way():
    about = dict(name="a.very.long.path.to.a.layer", kind="GCNConv", edges=100, edges_kept=40, width=8)
    trace = ModelTrace((ConvTrace(0, 100, 40, 0, 320, 800, 0, None, 0.1, **about),), layers=(layer(0, 90, 9),), notes=("x",))
    assert str(trace).splitlines() == [
        "layer                                      edges         kept  width             MACs  removed",
        "a.very.long.path.to.a.layer GCNConv          100           40      8              320    60.0%",
        "propagation: 320 of 800 MACs, 60.0% removed (60.0% by the mean over layers)",
        "weights 0: 9 of 90 kept, 90 MACs",
        "transformation: 90 of 900 MACs, 90.0% of weights removed",
        "x",
    ]
    assert len(ModelTrace(()).table()) == 1


def test_the_basis_is_listed_apart():
    text = str(Trace((hop(0, 50),), rank=16, basis_macs=12_345, dropped_norm=0.5))
    assert "basis: 16 principal components, 12,345 MACs" in text


def test_a_dictionary_for_machines():
    trace = Trace((hop(0, 50), hop(1, 30, threshold=None)), requested="threshold 0.5", kernel="avx2", rank=3, notes=("x",))
    data = json.loads(json.dumps(trace.to_dict()))
    assert data["edge_sparsity"] == trace.edge_sparsity and data["macs"] == trace.macs
    assert data["requested"] == "threshold 0.5" and data["rank"] == 3 and data["notes"] == ["x"]
    assert [one["kept"] for one in data["hops"]] == [50, 30]
    assert data["hops"][1]["threshold"] is None
    assert set(data["hops"][0]) >= {"index", "entries", "kept", "zeros", "macs", "sparsity", "threshold", "seconds"}


# ----------------------------------------------------------------------------------------------------- the transformation


def layer(index, weights, kept, rows=10):
    return LayerTrace(index, weights, kept, rows * kept, rows * weights)


def test_weight_sparsity_is_pooled_over_layers():
    """Unlike that of edges: zeros over all weights, not a mean of means."""
    trace = Trace((), layers=(layer(0, 900, 90), layer(1, 100, 100)))
    assert trace.weight_sparsity == pytest.approx(1 - 190 / 1000)
    assert [one.sparsity for one in trace.layers] == [0.9, 0.0]
    assert Trace(()).weight_sparsity == 0.0 and layer(0, 0, 0).sparsity == 0.0


def test_the_macs_of_layers_stand_beside_those_of_hops():
    trace = Trace((hop(0, 50),), layers=(layer(0, 900, 90), layer(1, 100, 100)))
    assert trace.macs == 800 and trace.transform_macs == 1900 and trace.dense_transform_macs == 10_000
    huge = Trace((), layers=(layer(0, 2**31, 2**31 - 1, rows=2**40 + 1),))
    assert huge.transform_macs == (2**31 - 1) * (2**40 + 1)


def test_layers_are_printed_and_listed():
    trace = Trace((hop(0, 50),), layers=(layer(0, 9000, 1234),), notes=("a remark",))
    assert str(trace).splitlines()[-2:] == ["weights 0: 1,234 of 9,000 kept, 12,340 MACs", "a remark"]
    data = json.loads(json.dumps(trace.to_dict()))
    assert data["layers"] == [{"index": 0, "weights": 9000, "kept": 1234, "macs": 12_340, "dense_macs": 90_000}]
    assert (data["transform_macs"], data["dense_transform_macs"]) == (12_340, 90_000)
    assert data["weight_sparsity"] == trace.weight_sparsity
    assert "layers" not in Trace((hop(0, 50),)).to_dict()  # a propagation has none
