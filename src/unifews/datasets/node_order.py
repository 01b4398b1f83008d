"""One node order for a dataset, whichever source it comes from: a seed then draws the same split of the same nodes.

Sources of cora number its nodes differently, so the nodes of cora and cora-lcc are sorted by their content (`by_content`). All
sources of citeseer and pubmed have Planetoid's order, as PyG does; `Record.order` is the digest of the dataset in that order.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unifews.datasets.dataset import Dataset, Split
from unifews.datasets.registry import CONTENT, Record

_ROUNDS = 3  # of neighbourhoods that distinguish nodes of equal features; more do not change the order of cora


def in_known_order(dataset: Dataset, record: Record) -> Dataset:
    """The dataset with its nodes in the order of the record, or with a note where they are in an unknown one.

    Features are compressed rows, sorted and without explicit zeros.
    """
    if record.order == CONTENT:
        return by_content(dataset)
    if record.order is None or digest(dataset) == record.order:
        return dataset
    note = (
        f"its nodes are in another order than the known one of {record.name}, so a seed draws other training nodes than "
        f"with other sources"
    )
    return replace(dataset, about=replace(dataset.about, notes=(*dataset.about.notes, note)))


def digest(dataset: Dataset) -> str:
    """Hex digits that change with the order of the nodes: a hash of edges, labels and where features are not zero."""
    arrays: list[NDArray[Any]] = [dataset.graph.indptr, dataset.graph.indices, dataset.y, dataset.x.indptr, dataset.x.indices]
    found = blake2b(digest_size=8)
    for array in arrays:
        found.update(np.ascontiguousarray(array, dtype="<i8").data.cast("B"))
    return found.hexdigest()


def by_content(dataset: Dataset) -> Dataset:
    """The dataset with its nodes sorted by a hash of label, places of nonzero features, and those of their neighbourhoods.

    The result does not depend on their order before: nodes of equal hashes are alike.
    """
    graph, x, y = dataset.graph, dataset.x, np.asarray(dataset.y, dtype="<i8")
    colour = np.array([_hash(y[u].tobytes(), x.indices[x.indptr[u] : x.indptr[u + 1]]) for u in range(len(y))], dtype=np.uint64)
    for _ in range(_ROUNDS):  # Weisfeiler and Leman's refinement
        around = (np.sort(colour[graph.indices[graph.indptr[u] : graph.indptr[u + 1]]]) for u in range(len(y)))
        colour = np.array([_hash(own.tobytes(), others) for own, others in zip(colour, around, strict=True)], dtype=np.uint64)
    order = np.argsort(colour, kind="stable")
    if np.array_equal(order, np.arange(len(order))):
        return dataset
    number = np.argsort(order)
    splits = tuple(Split(*(np.sort(number[part]) for part in split)) for split in dataset.splits)
    return replace(dataset, graph=graph.permute(order), x=x[order], y=dataset.y[order], splits=splits)


def _hash(own: bytes, others: NDArray[Any]) -> int:
    whole = others.astype("<u8" if others.dtype == np.uint64 else "<i8").tobytes()
    return int.from_bytes(blake2b(own + whole, digest_size=8).digest(), "little")
