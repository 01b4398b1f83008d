"""A user's own files: every format gives the same dataset, repairs are counted, mistakes are told in a sentence."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from unifews.datasets.dataset import Split
from unifews.datasets.user_files import read_dataset
from unifews.errors import FileFormatError, InputError, MissingFileError, ShapeError, UnifewsError

N = 8
EDGES = np.array([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]])  # a path; node 7 is isolated
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3) / 4
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1])
MANY = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1]])
SETS = ["train", "train", "train", "val", "test", "none", "test", "val"]
PARTS = ([0, 1, 2], [3, 7], [4, 6])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("edges.csv").write_text("".join(f"{a},{b}\n" for a, b in EDGES.T))
    np.save("x.npy", X)
    np.save("y.npy", Y)
    return tmp_path


def text(path, lines):
    """Write lines, compressed where the name says so."""
    content = "".join(f"{line}\n" for line in lines)
    if path.endswith(".gz"):
        with gzip.open(path, "wt") as file:
            file.write(content)
    else:
        Path(path).write_text(content)
    return path


def parquet(path, **columns):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path)
    return path


def read(edges="edges.csv", features="x.npy", labels="y.npy", **options):
    return read_dataset(edges, features, labels, **options)


def wrong(error, *parts, **options):
    """The sentence of the mistake, on one line, which holds all `parts`."""
    with pytest.raises(error) as caught:
        read(**options)
    sentence = str(caught.value)
    assert isinstance(caught.value, UnifewsError) and "\n" not in sentence and sentence.endswith((".", "?"))
    for part in parts:
        assert part in sentence
    return sentence


class TestGraph:
    def test_the_rows_of_the_features_are_the_nodes(self):
        data = read()
        assert data.graph.num_nodes == N and data.graph.num_edges == 12 and data.graph.is_symmetric
        assert np.array_equal(data.x, X) and data.x.dtype == np.float32
        assert np.array_equal(data.y, Y) and data.y.dtype == np.int64
        assert data.about.source == "edges.csv, x.npy, y.npy" and data.about.split == "stratified"
        assert data.about.metric == "accuracy" and not data.splits

    def test_directed_edges_stay_so_on_request(self):
        data = read(undirected=False)
        assert np.array_equal(data.graph.to_edge_index(), EDGES)
        assert data.about.notes == ("1 isolated node",)

    def test_what_was_repaired_is_counted(self):
        text("edges.csv", ["0,1", "1,0", "2,2", "3,3", "3,4", "3,4", "3,4"])
        labels = text("y.txt", [0, 1, -1, 1, 0, -1, 0, 1])
        assert read(labels=labels).about.notes == (
            "2 self-loops dropped",
            "2 copies of an edge merged",
            "1 reverse edge added",
            "2 unlabelled nodes",
            "4 isolated nodes",
        )

    def test_every_format_of_edges_gives_the_same_graph(self):
        text("edges.tsv.gz", [f"{a}\t{b}" for a, b in EDGES.T])
        np.save("edges.npy", EDGES)
        np.savez("edges.npz", edge_index=EDGES, num_nodes=N)
        parquet("edges.parquet", source=EDGES[0], target=EDGES[1])
        read().graph.save("graph")
        expected = read().graph.to_edge_index()
        for name in ("edges.tsv.gz", "edges.npy", "edges.npz", "edges.parquet", "graph"):
            assert np.array_equal(read(edges=name).graph.to_edge_index(), expected)

    def test_it_is_named_after_its_edges_or_their_folder(self, folder):
        assert read().name == folder.name and read(name="mine").name == "mine"
        Path("edges.csv").rename("friends.csv")
        assert read(edges="friends.csv").name == "friends"

    def test_edges_that_do_not_fit(self):
        text("far.csv", ["0,1", "1,8"])
        wrong(ShapeError, "x.npy has 8 rows, but far.csv has 9 nodes", edges="far.csv")
        np.savez("small.npz", indptr=np.array([0, 1, 2, 3]), indices=np.array([1, 0, 1]))
        wrong(ShapeError, "x.npy has 8 rows, but small.npz has 3 nodes", "transposed", edges="small.npz")
        wrong(ShapeError, "num_nodes is 9", num_nodes=9)
        wrong(MissingFileError, "nowhere.csv", edges="nowhere.csv")


class TestFeatures:
    @pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.txt", "x.csv.gz"])
    @pytest.mark.parametrize("header", [[], ["a", "b", "c"]])
    def test_text(self, name, header):
        mark = {"x.tsv": "\t", "x.txt": " "}.get(name, ",")
        rows = [header] if header and name != "x.txt" else []
        text(name, [mark.join(map(str, row)) for row in [*rows, *X.tolist()]])
        assert np.array_equal(read(features=name).x, X)

    def test_a_node_column_says_whose_row_it_is(self):
        order = np.array([3, 0, 7, 1, 2, 6, 5, 4])
        text("x.csv", ["node,a,b,c", *(f"{i},{','.join(map(str, X[i]))}" for i in order)])
        assert np.array_equal(read(features="x.csv").x, X)
        parquet("x.parquet", id=order, a=X[order, 0], b=X[order, 1], c=X[order, 2])
        assert np.array_equal(read(features="x.parquet").x, X)
        text("x.csv", ["node,a", *(f"{i},1" for i in [0, 1, 2, 3, 4, 5, 6, 6])])
        wrong(InputError, "x.csv", "node 6 twice", "0 … 7", features="x.csv")

    def test_what_pandas_writes(self):
        rows = [",".join(map(str, row)) for row in X.tolist()]
        text("plain.csv", ["0,1,2", *rows])
        text("indexed.csv", [",a,b,c", *(f"{i},{row}" for i, row in enumerate(rows))])
        text("both.csv", [",0,1,2", *(f"{i},{row}" for i, row in enumerate(rows))])
        for name in ("plain.csv", "indexed.csv", "both.csv"):
            assert np.array_equal(read(features=name).x, X)
        assert np.array_equal(read(labels=text("y.csv", [",subject", *(f"{i},{c}" for i, c in enumerate(Y))])).y, Y)
        # Two columns called 0 and 1 may be two values just as well.
        wrong(ShapeError, "8 labels", "9 nodes", "numbers their columns", features=text("x.csv", ["0,1", *["5,6"] * N]))

    def test_parquet_of_columns_or_lists(self):
        parquet("columns.parquet", a=X[:, 0], b=X[:, 1].astype(np.float64), c=X[:, 2])
        parquet("lists.parquet", x=X.tolist())
        for name in ("columns.parquet", "lists.parquet"):
            assert np.array_equal(read(features=name).x, X)

    def test_sparse_features_stay_sparse(self):
        sp.save_npz("x.npz", sp.csr_matrix(X))
        assert sp.issparse(read(features="x.npz").x) and np.array_equal(read(features="x.npz").x.toarray(), X)

    def test_a_large_matrix_stays_on_the_disk(self):
        assert isinstance(read().x, np.memmap)
        np.save("x.npy", X.astype(np.float64))
        assert read().x.dtype == np.float32

    @pytest.mark.parametrize(
        "lines, says",
        [
            (["1,2", "3,", "4,5"], ["x.csv is empty in line 2, column 2"]),
            (["1,2", "3,four"], ["holds 'four' in line 2, column 2"]),
            (["1,2", "3"], ["x.csv cannot be read as a table: line 2 has 1 values, and its first line has 2"]),
            (["1,2", "nan,4"], ["missing or infinite", "row 1"]),
            (["1,2", "1e99,4"], ["missing or infinite", "row 1"]),
            ([], ["x.csv is empty"]),
        ],
    )
    def test_gaps_and_words(self, lines, says):
        wrong(UnifewsError, *says, features=text("x.csv", lines))

    def test_missing_values_in_arrays(self):
        bad = X.copy()
        bad[5, 1] = np.nan
        np.save("bad.npy", bad)
        wrong(InputError, "bad.npy", "row 5", features="bad.npy")
        sp.save_npz("bad.npz", sp.csr_matrix(bad))
        wrong(InputError, "bad.npz", "row 5", features="bad.npz")
        parquet("bad.parquet", a=[1.0, None, 2.0])
        wrong(FileFormatError, "1 empty cells in column 'a', the first in row 1", features="bad.parquet")
        parquet("words.parquet", a=["x", "y"])
        wrong(FileFormatError, "column 'a'", "features are numbers", features="words.parquet")

    def test_files_that_are_no_features(self):
        Path("x.xlsx").write_text("")
        wrong(FileFormatError, "x.xlsx", features="x.xlsx")
        Path("x.parquet").write_text("PAR1")
        wrong(FileFormatError, "x.parquet cannot be read", features="x.parquet")
        Path("x.csv.gz").write_bytes(gzip.compress(b"1,2\n" * 9999)[:40])
        wrong(FileFormatError, "x.csv.gz cannot be read", features="x.csv.gz")
        np.save("v.npy", X[:, 0])
        wrong(ShapeError, "v.npy has shape [8]", features="v.npy")
        wrong(MissingFileError, "nowhere.csv", features="nowhere.csv")


class TestLabels:
    def test_one_column_in_every_format(self):
        np.savez("y.npz", y=Y, x=X)
        np.save("column.npy", Y[:, None].astype(np.float64))
        text("y.csv", Y)
        text("named.csv", ["label", *Y])
        text("y.txt", Y)
        parquet("y.parquet", subject=Y)
        for name in ("y.npz", "column.npy", "y.csv", "named.csv", "y.txt", "y.parquet"):
            assert np.array_equal(read(labels=name).y, Y)

    @pytest.mark.parametrize("name", ["y.csv", "y.txt"])
    def test_text_becomes_classes_in_sorted_order(self, name):
        words = np.array(["Theory", "Case based", "C#"])
        data = read(labels=text(name, words[Y]))
        assert np.array_equal(data.y, np.array([2, 1, 0])[Y])
        assert "classes were given numbers: 0 = C#, 1 = Case based, 2 = Theory" in data.about.notes
        np.save("words.npy", words[Y])
        parquet("words.parquet", label=words[Y].tolist())
        for other in ("words.npy", "words.parquet"):
            assert np.array_equal(read(labels=other).y, data.y)

    def test_gaps_between_class_numbers_are_closed(self):
        data = read(labels=text("y.txt", Y * 10 + 5))
        assert np.array_equal(data.y, Y) and "classes were given numbers: 0 = 5, 1 = 15, 2 = 25" in data.about.notes

    @pytest.mark.parametrize("header", [[], ["node,label"], ["id,anything"]])
    def test_pairs_label_the_nodes_they_name(self, header):
        data = read(labels=text("y.csv", [*header, "6,0", "1,1", "4,2"]))
        assert np.array_equal(data.y, [-1, 1, -1, -1, 2, -1, 0, -1]) and "5 unlabelled nodes" in data.about.notes

    def test_pairs_of_node_and_word(self):
        assert np.array_equal(read(labels=text("y.csv", ["1,b", "0,a"])).y, [0, 1, -1, -1, -1, -1, -1, -1])

    def test_columns_of_zero_and_one_are_labels_each(self):
        np.save("many.npy", MANY)
        text("many.csv", [",".join(map(str, row)) for row in MANY])
        text("by_node.csv", ["node,a,b,c", *(f"{i},{','.join(map(str, MANY[i]))}" for i in reversed(range(N)))])
        parquet("many.parquet", a=MANY[:, 0], b=MANY[:, 1] == 1, c=MANY[:, 2].astype(float))
        for name in ("many.npy", "many.csv", "by_node.csv", "many.parquet"):
            data = read(labels=name)
            assert (
                data.is_multilabel and data.y.dtype == np.uint8 and np.array_equal(data.y, MANY) and data.about.metric == "f1"
            )
        np.save("two.npy", MANY[:, :2])
        assert np.array_equal(read(labels="two.npy").y, MANY[:, :2])

    @pytest.mark.parametrize(
        "lines, says",
        [
            ([0, 1, 2], ["y.csv has 3 labels", "8 nodes", "called node"]),
            (["subject", *"abcabcab"], ["9 labels", "subject", "call it label"]),
            (["a", "b", "", "a", "b", "a", "b", "a"], ["empty cell in line 3"]),
            ([0, 1, 0.5, 0, 1, 0, 1, 0], ["row 2 of y.csv is 0.5"]),
            ([0, 1, "nan", 0, 1, 0, 1, 0], ["row 2 of y.csv is missing"]),
            ([0, 1, -7, 0, 1, 0, 1, 0], ["the label -7"]),
            ([0, 1, 10**30, 0, 1, 0, 1, 0], ["row 2 of y.csv is 1e+30"]),
            ([-1] * N, ["labels no node"]),
            (["0,1", "0,2"], ["names node 0 2 times"]),
            (["0,1", "8,2"], ["names node 8", "0 to 7"]),
            (["2,1,0"] * N, ["not all 0 or 1"]),
            (["node,a,b", "0,1,0"], ["1 node,"]),
            (["1,2", "3"], ["1 values where line 1 has 2 in line 2"]),
            ([], ["y.csv is empty"]),
            (["label"], ["holds no values"]),
        ],
    )
    def test_labels_that_cannot_work(self, lines, says):
        wrong(UnifewsError, *says, labels=text("y.csv", lines))

    def test_files_that_are_no_labels(self):
        np.savez("two.npz", a=Y, b=Y)
        wrong(FileFormatError, "two.npz holds a, b", "y or labels", labels="two.npz")
        np.save("cube.npy", np.zeros((2, 2, 2)))
        wrong(ShapeError, "cube.npy has shape [2, 2, 2]", labels="cube.npy")
        np.save("objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
        wrong(FileFormatError, "pickled", labels="objects.npy")
        np.savez("objects.npz", y=np.array([{}, []], dtype=object))
        wrong(FileFormatError, "y in objects.npz holds pickled Python objects", labels="objects.npz")
        Path("pickle.npy").write_bytes(pickle.dumps(Y))
        wrong(FileFormatError, "not a .npy file", labels="pickle.npy")


class TestSplit:
    def check(self, split):
        data = read(split=split)
        assert len(data.splits) == 1 and data.about.split == "stored"
        assert data.about.convention == "as given"
        for part, expected in zip(data.split(), PARTS, strict=True):
            assert np.array_equal(part, expected)

    def test_the_set_of_each_node(self):
        self.check(text("split.csv", SETS))
        self.check(text("split.txt", ["set", *SETS]))
        self.check(parquet("split.parquet", which=SETS))

    @pytest.mark.parametrize("val", ["val", "valid", "Validation"])
    def test_nodes_and_their_sets(self, val):
        rows = [f"{i},{name.replace('val', val)}" for i, name in enumerate(SETS) if name != "none"]
        self.check(text("split.csv", ["node,set", *reversed(rows)]))
        self.check(text("split.csv", rows))

    def test_three_files_of_numbers_or_masks(self, folder):
        masks = [np.isin(np.arange(N), part) for part in PARTS]
        for name, part, mask in zip(Split._fields, PARTS, masks, strict=True):
            np.save(f"{name}.npy", np.array(part))
            np.save(f"{name}_mask.npy", mask)
            text(f"{name}.txt", part)
            text(f"{name}_mask.csv", mask.astype(int))
            text(f"{name}_words.csv", mask)
        for pattern in ("{}.npy", "{}.txt", "{}_mask.npy", "{}_mask.csv", "{}_words.csv"):
            self.check([pattern.format(name) for name in Split._fields])

    def test_a_folder_of_three(self):
        Path("split").mkdir()
        for name, part in zip(("train", "valid", "test"), PARTS, strict=True):
            text(f"split/{name}.csv.gz", part)
        self.check("split")
        Path("split/test.csv.gz").unlink()
        wrong(MissingFileError, "split holds no split", split="split")

    def test_archives(self):
        masks = [np.isin(np.arange(N), part) for part in PARTS]
        np.savez("numbers.npz", **{f"{name}_idx": np.array(part) for name, part in zip(Split._fields, PARTS, strict=True)})
        np.savez(
            "masks.npz", **{f"{name}_mask": mask.astype(np.uint8) for name, mask in zip(Split._fields, masks, strict=True)}
        )
        self.check("numbers.npz")
        self.check("masks.npz")
        np.savez(
            "several.npz", **{f"{name}_masks": np.stack([mask, mask]) for name, mask in zip(Split._fields, masks, strict=True)}
        )
        assert len(read(split="several.npz").splits) == 2
        wrong(FileFormatError, "holds no split", "train_idx", split=np.savez("none.npz", y=Y) or "none.npz")

    def test_a_class_that_is_never_trained_is_noted(self):
        assert (
            "no training node is of class 2" in read(split=text("s.csv", ["0,train", "1,train", "2,val", "3,test"])).about.notes
        )

    @pytest.mark.parametrize(
        "lines, says",
        [
            (["0,train", "0,test", "1,val"], ["names node 0 2 times"]),
            (["0,train", "1,val"], ["test set is empty"]),
            (["0,train", "1,val", "9,test"], ["names node 9"]),
            (["0,train", "1,val", "2,tset"], ["'tset'", "train, val, test"]),
            (["train", "val", "test"], ["3 lines", "8 nodes"]),
            (["0", "1", "2"], ["is not a split"]),
            (["0,1,train"], ["is not a split"]),
        ],
    )
    def test_splits_that_cannot_work(self, lines, says):
        wrong(UnifewsError, *says, split=text("s.csv", lines))

    def test_sets_that_overlap_or_have_no_labels(self):
        for name, part in zip(Split._fields, ([0, 1], [1, 2], [3]), strict=True):
            text(f"{name}.txt", part)
        wrong(InputError, "overlaps", "first 1", split=["train.txt", "val.txt", "test.txt"])
        wrong(InputError, "one file, or three", split=["train.txt", "val.txt"])
        labels = text("y.csv", ["0,1", "3,0"])
        wrong(InputError, "1 unlabelled nodes", labels=labels, split=text("s.csv", ["0,train", "3,val", "5,test"]))
        np.save("short.npy", np.ones(5, dtype=bool))
        wrong(ShapeError, "mask has 5 values", split=["short.npy", "val.txt", "test.txt"])
