"""`max_error` where workers share the nodes: the result of one process but for rounding, and few bytes sent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from error_cases import CASES
from torchrun import torchrun

import unifews as uf
from unifews import Graph, propagate
from unifews.core.schemes import SpectralFilter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("estimates_on_any_size")]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Graphs with isolated nodes, features in two tiles with zero, constant and single-entry columns; 2 and 3 workers."""
    place = tmp_path_factory.mktemp("parts")
    data, rng = uf.powerlaw(600, 5_000, num_features=140, num_classes=5, seed=17), np.random.default_rng(23)
    source, target = (np.asarray(each) for each in data.graph.to_edge_index())
    connected = (source < 570) & (target < 570)
    edges = np.stack([source[connected], target[connected]])
    once = edges[:, edges[0] < edges[1]]
    weight = rng.uniform(0.2, 3, once.shape[1]).astype(np.float32)
    Graph.from_edge_index(edges, 600).save(place / "plain")
    both = np.concatenate([once, once[::-1]], axis=1)
    Graph.from_edge_index(both, 600, np.concatenate([weight, weight])).save(place / "weighted")
    Graph.from_edge_index(np.array([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]), 6).save(place / "few")
    x = data.x.copy()
    x[:, 3], x[:, 4], x[:, 5] = 0, 1, 0
    x[7, 5] = 1
    x[:, 6] += 1000
    np.save(place / "plain.npy", x)
    np.save(place / "weighted.npy", x[:, :40] * np.float32(2.0**60))
    np.save(place / "few.npy", rng.standard_normal((6, 3)).astype(np.float32))
    for count in (2, 3):
        np.save(place / f"parts-{count}.npy", rng.integers(0, count, 600))
        np.save(place / f"few-parts-{count}.npy", np.array([0, 0, 0, 0, max(count - 2, 0), count - 1]))
        done = torchrun(count, HERE / "error_cases.py", place)
        assert done.code == 0, done.err[-3000:]
    return place


@pytest.fixture(scope="module")
def expected(folder):
    """Of one process."""
    results = {}

    def made(name):
        if name not in results:
            data, how = CASES[name]
            how = {key: value for key, value in how.items() if key != "partition"}
            results[name] = propagate(Graph.open(folder / data), np.load(folder / f"{data}.npy"), threads=1, **how)
        return results[name]

    return made


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_result_of_one_process(folder, expected, name, workers):
    """Sums over rows are added up in another order, so that a value may be rounded otherwise: ε/20, a column 3 ε/20."""
    one, got = expected(name), np.load(folder / f"{name} of {workers}.npy")
    allowed = CASES[name][1]["max_error"] / 20
    scale = np.linalg.norm(one.embedding.astype(np.float64), axis=0)
    apart = np.linalg.norm(got.astype(np.float64) - one.embedding, axis=0)
    assert (apart <= 3 * allowed * scale).all()
    active = scale > 0
    assert np.sqrt(np.square(apart[active] / scale[active]).mean()) <= allowed
    everybody = [json.loads((folder / f"told-{rank}-of-{workers}.json").read_text())[name] for rank in range(workers)]
    assert all(each == everybody[0] for each in everybody)
    assert everybody[0]["error"] == pytest.approx(one.error, abs=allowed)
    np.testing.assert_allclose(everybody[0]["column_errors"], one.column_errors, atol=3 * allowed)
    assert (one.plan.method == "unpruned") == (name == "unpruned") == (", unpruned" in everybody[0]["plan"])


@pytest.mark.parametrize("workers", [2, 3])
def test_isolated_nodes_are_exact(folder, expected, workers):
    for name in ("appnp", "r 0", "identity+loop"):
        one = expected(name).embedding
        alone = Graph.open(folder / "plain").degree == 0
        assert np.array_equal(np.load(folder / f"{name} of {workers}.npy")[alone], one[alone])


@pytest.mark.parametrize("workers", [2, 3])
def test_bytes_sent(folder, workers):
    """Against 20 hops of float32 rows. One byte a value in a third of the hops is a twelfth, sums are the rest."""
    told = json.loads((folder / f"told-0-of-{workers}.json").read_text())
    for name in ("appnp", "none"):
        traffic = told[name]["traffic"]
        assert traffic["workers"] == workers and len(traffic["hops"]) == 20
        assert 0.05 < traffic["share"] <= 0.15
        assert traffic["share"] == traffic["sent_bytes"] / traffic["unpruned_bytes"]
    wider = {name: told[name]["traffic"]["sent_bytes"] for name in ("appnp", "bfloat16")}
    assert 1.5 * wider["appnp"] < wider["bfloat16"] < 2.1 * wider["appnp"]
    assert told["unpruned"]["traffic"]["share"] == 1
    for name in ("pagerank", "heat"):  # as many hops unpruned as were run
        assert isinstance(CASES[name][1]["scheme"], SpectralFilter)
        assert all(hop["sent_bytes"] > 0 for hop in told[name]["traffic"]["hops"])
