"""One node order for a dataset, whichever source it comes from: a seed then draws the same split of the same nodes.

The order of cora, citeseer and pubmed is Planetoid's (test nodes at the places that test.index names), as PyG has it; that of
cora-lcc is the same with the other nodes left out. `Record.order` is the digest of a dataset in that order.
"""

from __future__ import annotations

from base64 import b85decode
from dataclasses import replace
from hashlib import blake2b
from typing import Any
from zlib import decompress

import numpy as np
from numpy.typing import NDArray

from unifews.datasets.dataset import Dataset
from unifews.datasets.records import Record
from unifews.datasets.splits import Split

_PUBLIC = (140, 640, 1_708, 2_708)  # of cora: nodes before these are for training, validation, nothing and test


def in_known_order(dataset: Dataset, record: Record) -> Dataset:
    """The dataset with its nodes in the order of the record, or with a note where they are in an unknown one.

    Features are compressed rows, sorted and without explicit zeros.
    """
    if record.order is None or digest(dataset) == record.order:
        return dataset
    if record.name == "cora":
        known = _from_content(dataset)
        if digest(known) == record.order:
            return known
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


def _from_content(dataset: Dataset) -> Dataset:
    """Cora out of cora.content, which has its own order and no split, in Planetoid's order with the public split."""
    order = np.frombuffer(decompress(b85decode("".join(_CORA))), dtype="<u2").astype(np.int64)
    train, val, rest, end = _PUBLIC
    split = Split(np.arange(train), np.arange(train, val), np.arange(rest, end))
    notes = tuple(note for note in dataset.about.notes if not note.startswith("nodes in the order of cora.content"))
    return replace(
        dataset, graph=dataset.graph.permute(order), x=dataset.x[order], y=dataset.y[order], splits=(split,),
        about=replace(dataset.about, notes=notes),
    )  # fmt: skip


# The line of cora.content that holds node 0, 1, … of Planetoid's order: uint16, little-endian, compressed.
