"""Wrong calls of every command: each is answered by one sentence that names the flag or file and what to write instead."""

from __future__ import annotations

import numpy as np
import pytest
from commands import fine, work_in, wrong

PROPAGATE = "propagate edges.csv --out p.npy "


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """A ring of 50 nodes, and files that do not fit it."""
    work_in(tmp_path, monkeypatch)
    (tmp_path / "edges.csv").write_text("".join(f"{i},{(i + 1) % 50}\n" for i in range(50)))
    (tmp_path / "names.csv").write_text("1,2\nann,bob\n")
    (tmp_path / "y.csv").write_text("".join(f"{i % 3}\n" for i in range(50)))
    x = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    np.save("x.npy", x)
    np.save("short.npy", x[:40])
    x[3, 2] = np.nan
    np.save("nan.npy", x)


@pytest.mark.parametrize(
    "call, says",
    [
        ("propagate", "missing argument 'GRAPH' (see unifews propagate --help)"),
        (PROPAGATE, "edges.csv holds no features; give them with --features X.npy"),
        (PROPAGATE + "-x short.npy", "short.npy has 40 rows, but edges.csv has 50 nodes; each has one row"),
        (PROPAGATE + "-x nan.npy --directed", "nan.npy has 1 NaN or infinite value, the first in row 3"),
        ("propagate names.csv --out p.npy -x x.npy", ["line 2 names node 'ann'", "run unifews data convert --ids"]),
        (PROPAGATE + "-x x.npy --sparsity .5", "no such option: --sparsity. Did you mean --edge-sparsity? (see"),
        (PROPAGATE + "-x x.npy --config run.toml", "no such option: --config (see unifews propagate --help)"),
        (PROPAGATE + "-x x.npy --edge-sparsity 50", "For 50 percent write --edge-sparsity 0.5"),
        (PROPAGATE + "-x x.npy --edge-sparsity half", "--edge-sparsity must be a number; got 'half'"),
        (PROPAGATE + "-x x.npy --memory lots", "--memory is an amount such as 500MB, 2GB or 1.5GiB; got 'lots'"),
        (
            PROPAGATE + "-x x.npy --threads 0 --directed",
            "--threads must be an integer of at least 1 (default: all cores); got 0",
        ),
        (PROPAGATE + "-x x.npy --max-error 5", "For 5 percent write --max-error 0.05"),
        (PROPAGATE + "-x x.npy --edge-sparsity .5 --max-error .1", "exclude each other; give one of them"),
        ("train x.npy", "x.npy is not a dataset: expected a dataset folder or .npz. unifews data convert makes one"),
        ("train cora --lr 0", "--lr must be a number in (0, 1e+38)"),
        ("train cora --epochs 2.5", "--epochs must be an integer; got '2.5'"),
        ("train cora --epochs", "option '--epochs' requires an argument"),
        ("train cora pubmed", "unexpected argument pubmed (see unifews train --help)"),
        ("train cora --model gcn --hops 3", "gcn propagates in every layer; leave it out, or take --model appnp or sgc"),
        (
            "train cora --model gcn --method glt:rounds=x",
            "in 'glt:rounds=x', `rounds` must be an integer of at least 1; got 'x'",
        ),
        ("compare cora --methods random --model mlp", "for mlp take --methods unifews"),
        ("compare cora --edge-sparsity .5,50", "For 50 percent write --edge-sparsity 0.5"),
        ("compare cora --latex t.html", "--latex t.html must end in .tex"),
        ("infer x.npy cora --out p.csv", "x.npy is a file; expected a model folder, which FrozenModel.save writes"),
        ("infer nowhere cora --out p.csv", "there is no model folder nowhere"),
        ("report x.npy", "x.npy is neither a ledger nor a result of unifews reproduce: it is not JSON"),
        ("reproduce tab:decc", "Did you mean 'tab:dec'?"),
        ("reproduce tab:dec --scale tiny", "no scale named 'tiny'. Known: paper, small, smoke"),
        ("data convert --edges edges.csv --out d --labels y.csv", "only --labels is given; add --features, or leave it out"),
        (
            "data convert --edges edges.csv --features short.npy --labels y.csv --out d",
            "short.npy has 40 rows, but edges.csv has 50 nodes",
        ),
        ("data verify x.npy", "x.npy is not a graph or dataset folder"),
        ("data generate gencat --num-classes 0 --out g", "--num-classes must be at least 1; got 0"),
        ("bench propagation --trials none", "--trials must be an integer; got 'none'"),
        ("methods foo", "unexpected argument foo (see unifews methods --help)"),
        ("demo --out page", "--out page must end in .html"),
        ("trane cora", "no such command 'trane'. Did you mean 'train'? (see unifews --help)"),
    ],
)
def test_a_wrong_call(call, says):
    wrong(*call.split(), says=says)


def test_right_calls_with_the_same_files():
    assert "wrote p.npy: float32 [50, 8]" in fine(*PROPAGATE.split(), "-x", "x.npy", "--max-error", "0.05").out
    fine("data", "convert", "--edges", "edges.csv", "--features", "x.npy", "--labels", "y.csv", "--out", "mine")
    fine("data", "verify", "mine")
    fine("data", "info", "mine", "--json")
    out = fine("train", "mine", "--edge-sparsity", ".5", "--epochs", "2", "--seeds", "1").out
    assert "unpruned" in out
