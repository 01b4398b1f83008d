"""Which entries may go without hurting what comes after? Accuracy of an MLP on pruned embeddings of real graphs.

    python benchmarks/accuracy.py default                 # the default at .9 and .95 beside the unpruned embedding
    python benchmarks/accuracy.py forms --datasets photo  # node, block, feature; nested or not; input or principal axes

Protocol: stratified 50/25/25 split by seed; columns standardised by the training rows (coordinates: one common scale, since
standardising principal axes would blow their noise up); one hidden layer of 512, ReLU, BatchNorm, dropout .5; Adam; the epoch
with the best validation accuracy; mean and standard deviation over seeds. Pruned and unpruned get the same treatment.
"""

from __future__ import annotations

import argparse
import json
import sys
from time import perf_counter

import numpy as np
import torch
from data import SMOKE, Real, arguments, load
from torch import nn

from unifews import Appnp, Sgc, propagate
from unifews.datasets.dataset import split_stratified

SMALL = ["cora-lcc", "citeseer", "pubmed", "photo"]
WIDE = ["cs", "physics"]


def accuracy(embedding: np.ndarray, y: np.ndarray, seed: int, *, one_scale: bool = False, epochs: int = 60) -> float:
    """Test accuracy in percent of the epoch that is best on validation."""
    train, val, test = split_stratified(y, seed=seed)
    torch.manual_seed(seed)
    p, labels = torch.from_numpy(embedding), torch.from_numpy(y)
    centred = p - p[train].mean(0)
    spread = centred[train].pow(2).mean().sqrt() if one_scale else centred[train].std(0)
    p = centred / torch.where(spread > 1e-12, spread, 1.0)
    net = nn.Sequential(
        nn.Linear(p.shape[1], 512), nn.ReLU(), nn.BatchNorm1d(512), nn.Dropout(0.5), nn.Linear(512, int(y.max()) + 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-5)
    rows, targets = p[train], labels[train]
    best, at_best, since = -1.0, 0.0, 0
    for _ in range(epochs):
        net.train()
        for batch in torch.randperm(len(rows)).split(512):
            if len(batch) > 1:
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(rows[batch]), targets[batch]).backward()
                optimizer.step()
        net.eval()
        with torch.no_grad():
            val_now, test_now = ((net(p[part]).argmax(1) == labels[part]).float().mean().item() for part in (val, test))
        since += 1
        if val_now > best:
            best, at_best, since = val_now, test_now, 0
        if since >= 12:
            break
    return 100 * at_best


def over_seeds(embedding: np.ndarray, y: np.ndarray, seeds: int, **options: object) -> dict[str, float]:
    scores = [accuracy(np.ascontiguousarray(embedding), y, 101 + 2 * k, **options) for k in range(seeds)]  # type: ignore[arg-type]
    return {"mean": float(np.mean(scores)), "std": float(np.std(scores))}


def default(names: list[str], seeds: int, epochs: int) -> list[dict[str, object]]:
    rows = []
    for name in names:
        real = load(name)
        exact = propagate(real.graph, real.x)
        wide = real.x.shape[1] > 4096
        baseline = over_seeds(exact.embedding, real.y, seeds, epochs=min(epochs, 20) if wide else epochs)
        report(rows, name, "unpruned", exact, baseline, 0.0)
        for sparsity in (0.9, 0.95):
            out = propagate(real.graph, real.x, edge_sparsity=sparsity)
            error = float(np.linalg.norm(out.embedding - exact.embedding) / np.linalg.norm(exact.embedding))
            if not wide:
                report(
                    rows,
                    name,
                    f"default {sparsity}, embedding",
                    out,
                    over_seeds(out.embedding, real.y, seeds, epochs=epochs),
                    error,
                )
            scores = over_seeds(out.coordinates, real.y, seeds, one_scale=True, epochs=epochs)
            report(rows, name, f"default {sparsity}, coordinates", out, scores, error)
    return rows


FORMS: dict[str, dict[str, object]] = {
    "node": {"entries": "node", "basis": "input"},
    "node, nested (the paper's form)": {"entries": "node", "basis": "input", "inherit": True},
    "block": {"entries": "block", "basis": "input"},
    "feature": {"entries": "feature", "basis": "input"},
    "feature, nested": {"entries": "feature", "basis": "input", "inherit": True},
    "block, principal, equal shares": {"entries": "block"},
    "block, principal (default)": {"entries": "block"},
    "block, principal, nested": {"entries": "block", "inherit": True},
}


class EqualShares(Appnp):
    focus = 0.0


SCHEMES = {"appnp": Appnp(), "sgc": Sgc()}


def forms(names: list[str], seeds: int, schemes: list[str], epochs: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in names:
        real = load(name)
        for label in schemes:
            scheme = SCHEMES[label]
            exact = propagate(real.graph, real.x, scheme)
            report(rows, name, f"{label}, unpruned", exact, over_seeds(exact.embedding, real.y, seeds, epochs=epochs), 0.0)
            for form, options in FORMS.items():
                rule = EqualShares() if form.endswith("equal shares") and label == "appnp" else scheme  # SGC has equal shares
                for sparsity in (0.5, 0.9, 0.95):
                    out = propagate(real.graph, real.x, rule, edge_sparsity=sparsity, **options)  # type: ignore[arg-type]
                    error = float(np.linalg.norm(out.embedding - exact.embedding) / np.linalg.norm(exact.embedding))
                    scores = over_seeds(out.embedding, real.y, seeds, epochs=epochs)
                    report(rows, name, f"{label}, {form}, {sparsity}", out, scores, error)
    return rows


def report(rows: list[dict[str, object]], name: str, what: str, out: object, scores: dict[str, float], error: float) -> None:
    trace = out.trace  # type: ignore[attr-defined]
    row = {"dataset": name, "what": what, **scores, "error": error, "sparsity": trace.edge_sparsity, "rank": trace.rank}
    rows.append(row)
    print(
        f"{name:10} {what:58} {scores['mean']:6.2f} ± {scores['std']:4.2f}   removed {trace.edge_sparsity:.3f}  "
        f"error {error:.3f}  rank {trace.rank or '-'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["default", "forms"])
    parser.add_argument("--datasets", default=None, help="comma-separated names")
    parser.add_argument("--schemes", default="appnp,sgc", help="of the forms")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", default=None, help="also write the rows to this file")
    parser.add_argument("--epochs", type=int, default=60, help="at most, and 20 for the unpruned embedding of wide features")
    options = arguments(parser, datasets=SMOKE, seeds=1, epochs=2, schemes="appnp")
    names = options.datasets.split(",") if options.datasets else SMALL + (WIDE if options.table == "default" else [])
    began = perf_counter()
    if options.table == "default":
        rows = default(names, options.seeds, options.epochs)
    else:
        rows = forms(names, options.seeds, options.schemes.split(","), options.epochs)
    print(f"{perf_counter() - began:.0f} s", file=sys.stderr)
    if options.json:
        with open(options.json, "w") as file:  # noqa: PTH123
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()


__all__ = ["Real", "accuracy", "over_seeds"]
