"""Datasets in one .npz file: our names, two published collections' names, and files that hold none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from tiny import assert_same, tiny, write_npz

from unifews.datasets.npz import read_npz
from unifews.errors import FileFormatError, MissingFileError


@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_written_is_read(tmp_path, sparse):
    dataset = tiny(sparse=sparse)
    write_npz(tmp_path / "mine.npz", dataset)
    read = read_npz(tmp_path / "mine.npz")
    assert_same(read, dataset)
    assert read.name == "mine" and read.about.split == "stored" and read.about.source.endswith("mine.npz")


def test_features_of_half_precision_are_widened(tmp_path):
    graph, x, y = tiny().graph, tiny().x.astype(np.float16), tiny().y
    np.savez(tmp_path / "a.npz", indptr=graph.indptr, indices=graph.indices, x=x, y=y)
    read = read_npz(tmp_path / "a.npz")
    assert read.x.dtype == np.float32 and read.about.split == "stratified" and read.splits == ()


def test_ten_masks_are_ten_splits(tmp_path):
    dataset = tiny(splits=10)
    masks = np.zeros((3, 10, 24), dtype=np.uint8)
    for i, split in enumerate(dataset.splits):
        for part, nodes in enumerate(split):
            masks[part, i, nodes] = 1
    np.savez(
        tmp_path / "a.npz",
        indptr=dataset.graph.indptr,
        indices=dataset.graph.indices,
        x=dataset.x,
        y=dataset.y,
        train_masks=masks[0],
        val_masks=masks[1],
        test_masks=masks[2],
    )
    assert_same(read_npz(tmp_path / "a.npz"), dataset)


@pytest.mark.parametrize("kind", [bool, np.uint8])
def test_a_mask_per_part_is_one_split(tmp_path, kind):
    dataset = tiny()
    masks = {f"{part}_mask": np.isin(np.arange(24), nodes).astype(kind) for part, nodes in dataset.splits[0]._asdict().items()}
    write_npz(tmp_path / "a.npz", tiny(splits=0))
    with np.load(tmp_path / "a.npz") as file:
        np.savez(tmp_path / "b.npz", values=[1], **dict(file), **masks)
    read = read_npz(tmp_path / "b.npz")
    assert_same(read, dataset)
    assert read.about.split == "stored" and read.about.convention == "1 stored in the file"


def test_the_authors_own_split_comes_before_the_public_one(tmp_path):
    ours, public = tiny(splits=2).splits
    write_npz(tmp_path / "a.npz", tiny())
    with np.load(tmp_path / "a.npz") as file:
        arrays = dict(file)
    for part, nodes, other in zip(("train", "val", "test"), ours, public, strict=True):
        arrays |= {f"unifews_{part}_idx": nodes, f"{part}_idx": other}
    np.savez(tmp_path / "a.npz", **arrays)
    (split,) = read_npz(tmp_path / "a.npz").splits
    assert all(np.array_equal(p, q) for p, q in zip(split, ours, strict=True))


def test_a_file_of_the_gnn_benchmark(tmp_path):
    dataset = tiny(sparse=True, splits=0)
    upper = dataset.graph.to_edge_index()
    upper = upper[:, upper[0] < upper[1]]  # published one way only, with self-loops
    adjacency = csr_array((np.ones(upper.shape[1] + 1), ([*upper[1], 3], [*upper[0], 3])), shape=(24, 24))
    np.savez(
        tmp_path / "a.npz",
        adj_data=adjacency.data,
        adj_indices=adjacency.indices,
        adj_indptr=adjacency.indptr,
        adj_shape=adjacency.shape,
        attr_data=dataset.x.data,
        attr_indices=dataset.x.indices,
        attr_indptr=dataset.x.indptr,
        attr_shape=dataset.x.shape,
        labels=dataset.y,
        node_names=np.array([object()]),
    )
    assert_same(read_npz(tmp_path / "a.npz"), dataset)


def test_a_file_of_the_heterophilous_graphs(tmp_path):
    dataset = tiny(splits=3)
    edges = dataset.graph.to_edge_index()
    masks = {
        f"{part}_masks": [np.isin(np.arange(24), split[i]) for split in dataset.splits]
        for i, part in enumerate(("train", "val", "test"))
    }
    one_way = edges[:, edges[0] < edges[1]].T
    np.savez(tmp_path / "a.npz", edges=one_way, node_features=dataset.x, node_labels=dataset.y, **masks)
    assert_same(read_npz(tmp_path / "a.npz"), dataset)


def test_a_missing_file(tmp_path):
    with pytest.raises(MissingFileError, match=r"there is no file .*none\.npz"):
        read_npz(tmp_path / "none.npz")


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.97])
def test_a_truncated_file(tmp_path, keep):
    write_npz(tmp_path / "a.npz", tiny())
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[: int(keep * len(content))])
    with pytest.raises(FileFormatError, match=r"a\.npz is not a \.npz archive.*half-downloaded"):
        read_npz(tmp_path / "a.npz")


def test_one_flipped_byte_is_noticed(tmp_path):
    write_npz(tmp_path / "a.npz", tiny())
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(b"y.npy") + 200] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(FileFormatError, match="Bad CRC-32"):
        read_npz(tmp_path / "a.npz")


def test_a_pickle_inside_is_not_loaded(tmp_path):
    write_npz(tmp_path / "a.npz", tiny())
    with np.load(tmp_path / "a.npz") as file:
        arrays = dict(file) | {"y": np.array([{"a": 1}], dtype=object)}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(FileFormatError, match=r"y in .*a\.npz holds pickled Python objects"):
        read_npz(tmp_path / "a.npz")


def test_a_file_without_labels(tmp_path):
    np.savez(tmp_path / "a.npz", indptr=[0, 0], indices=[], x=np.ones((1, 1)))
    with pytest.raises(FileFormatError, match="holds no labels: it has indices, indptr, x"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "masks, sentence",
    [
        ((range(12), range(11, 18), range(18, 24)), "the split overlaps: 1 nodes, first 11, are in both train and val"),
        ((range(12), range(12, 24), ()), "the test set is empty"),
    ],
)
@pytest.mark.parametrize("several", [False, True])
def test_masks_that_are_no_split(tmp_path, masks, sentence, several):
    arrays = {
        f"{part}_mask{'s' if several else ''}": np.tile(np.isin(np.arange(24), list(nodes)), (2, 1) if several else 1)
        for part, nodes in zip(("train", "val", "test"), masks, strict=True)
    }
    write_npz(tmp_path / "a.npz", tiny(splits=0))
    with np.load(tmp_path / "a.npz") as file:
        np.savez(tmp_path / "b.npz", **dict(file), **arrays)
    with pytest.raises(FileFormatError, match=sentence):
        read_npz(tmp_path / "b.npz")


def test_as_many_masks_of_each_part(tmp_path):
    write_npz(tmp_path / "a.npz", tiny(splits=0))
    masks = {f"{part}_masks": np.eye(3, 24)[: 3 - i] for i, part in enumerate(("train", "val", "test"))}
    with np.load(tmp_path / "a.npz") as file:
        np.savez(tmp_path / "b.npz", **dict(file), **masks)
    with pytest.raises(FileFormatError, match="test_masks hold 3, 2, 1 splits; each has a row per split"):
        read_npz(tmp_path / "b.npz")


@pytest.mark.parametrize(
    "change, sentence",
    [
        (dict(y=np.zeros(7, int)), "7 rows of labels"),
        (dict(y=np.zeros(24)), "whole numbers from 0"),
        (dict(x=np.ones((7, 2))), "7 rows of features"),
        (dict(train_idx=[0, 1, 2], val_idx=[2], test_idx=[3]), "the split overlaps: 1 nodes, first 2"),
        (dict(train_idx=[0], val_idx=[1], test_idx=[99]), "names node 99"),
        (dict(indices=np.full(3, 99)), "does not hold a dataset"),
        (dict(train_mask=np.ones(24, bool)), "it has train_mask, but no val_mask and no test_mask; a split has all three"),
        (dict(train_masks=[[1]], val_masks=[[1]]), "it has train_masks and val_masks, but no test_masks;"),
        (dict(unifews_val_idx=[0]), "it has unifews_val_idx, but no unifews_train_idx and no unifews_test_idx;"),
        (dict(valid_idx=[0]), "valid_idx is not the name of a part of a split; call them train_idx, val_idx, test_idx"),
    ],
)
def test_parts_that_do_not_fit_together(tmp_path, change, sentence):
    write_npz(tmp_path / "a.npz", tiny())
    with np.load(tmp_path / "a.npz") as file:
        arrays = dict(file) | change
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(FileFormatError, match=sentence):
        read_npz(tmp_path / "a.npz")
