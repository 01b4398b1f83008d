"""Edges between identifiers: any spelling and format gives the graph of numbering by hand, in memory and through files."""

from __future__ import annotations

import csv
import gzip
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unifews as uf
from unifews.core.graph import Graph
from unifews.datasets.convert import convert_dataset, convert_edges
from unifews.errors import FileFormatError, GraphError, InputError, MissingFileError
from unifews.io import node_numbering
from unifews.io.ids import IdMap, check_ids

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(67)
NUMBERS = RNG.integers(-(10**12), 10**12, 60)
NAMES = [f"{'ÄÖß漢🙂ab'[i % 7]}{i % 13}-{i}" for i in range(60)]
CODES = RNG.integers(0, 60, (2, 400))
WEIGHT = RNG.integers(1, 9, 400) / 4


@pytest.fixture(autouse=True)
def swift(monkeypatch, tmp_path):
    """Nobody pulls the plug in these tests, so the disk need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("unifews.resources.resident", lambda: 60_000_000)  # tests may have loaded anything
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small(monkeypatch):
    """Many chunks, and many ranges."""
    monkeypatch.setattr("unifews.resources.Memory.chunk", 64)
    monkeypatch.setattr(node_numbering, "_PER_TEXT", 10_000_000)
    monkeypatch.setattr(node_numbering, "_PER_INTEGER", 10_000_000)


def by_hand(source, target, weight=None, undirected=True):
    """The graph and the identifiers, without anything of the library that handles identifiers."""
    ids = sorted({*source, *target}, key=lambda value: value.encode() if isinstance(value, str) else value)
    place = {value: i for i, value in enumerate(ids)}
    graph = Graph.from_edge_index(np.array([[place[v] for v in source], [place[u] for u in target]]), len(ids), weight)
    return (graph.undirected() if undirected else graph), ids


def assert_same(graph, ids, expected):
    wanted, listed = expected
    assert np.array_equal(graph.indptr, wanted.indptr) and np.array_equal(graph.indices, wanted.indices)
    assert (graph.weight is None) == (wanted.weight is None)
    assert graph.weight is None or np.array_equal(graph.weight, wanted.weight)
    assert (graph.dropped_self_loops, graph.merged_duplicates) == (wanted.dropped_self_loops, wanted.merged_duplicates)
    assert ids.tolist() == listed and ids.dtype == (object if isinstance(listed[0], str) else np.int64)


def assert_both(files, expected, undirected=True, **options):
    """In memory and through files."""
    graph, ids = uf.read_edges(files, ids=True, directed=not undirected)
    assert_same(graph, ids, expected)
    graph = convert_edges(files, "g", ids=True, undirected=undirected, overwrite=True, **options)
    assert_same(Graph.open("g", verify=True), uf.read_ids("g"), expected)
    assert check_ids(Path("g"), graph.num_nodes) and not Path("g.work").exists()


def table(source, target, weight=None, mark=",", names="", end="\n"):
    out = io.StringIO()
    rows = zip(source, target, *([] if weight is None else [weight]), strict=True)
    csv.writer(out, delimiter=mark, lineterminator=end).writerows(rows)
    return names + (end if names else "") + out.getvalue()


def parquet(path, **columns):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=90)


FORMATS = {
    "e.csv": lambda p, v, u, w: p.write_text(table(v, u, w)),
    "e.tsv": lambda p, v, u, w: p.write_text("# of old\n\n" + table(v, u, w, "\t")),
    "e.txt": lambda p, v, u, w: p.write_text(table(v, u, w, " ")),
    "semicolon.csv": lambda p, v, u, w: p.write_text(table(v, u, w, ";")),
    "bom.csv": lambda p, v, u, w: p.write_bytes(b"\xef\xbb\xbf" + table(v, u, w, end="\r\n").encode()),
    "named.csv": lambda p, v, u, w: p.write_text(table(v, u, w, names="source,target" + ("" if w is None else ",weight"))),
    "e.csv.gz": lambda p, v, u, w: p.write_bytes(gzip.compress(table(v, u, w).encode())),
    "e.parquet": lambda p, v, u, w: parquet(p, src=list(v), dst=list(u), **({} if w is None else {"weight": w})),
}


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("ids", [NUMBERS.tolist(), NAMES], ids=["integers", "text"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(small, name, ids, weight, undirected):
    source, target = ([ids[i] for i in row] for row in CODES)
    FORMATS[name](Path(name), source, target, weight)
    assert_both(name, by_hand(source, target, weight, undirected), undirected)


@pytest.mark.parametrize("array", [NUMBERS[CODES], NUMBERS[CODES].T, NUMBERS[CODES].astype(np.float64), np.array(NAMES)[CODES]])
def test_arrays(small, array):
    np.save("e.npy", array)
    upright = array if len(array) == 2 else array.T
    source, target = (row.tolist() for row in (upright.astype(np.int64) if array.dtype.kind == "f" else upright))
    assert_both("e.npy", by_hand(source, target))
    np.savez("e.npz", edge_index=upright, edge_weight=WEIGHT)
    assert_both("e.npz", by_hand(source, target, WEIGHT))
    np.savez_compressed("f.npz", row=upright[0], col=upright[1], num_nodes=5)  # which is about numbers
    assert_both("f.npz", by_hand(source, target))


def test_several_files_and_text_beside_integers(small):
    np.save("a.npy", NUMBERS[CODES[:, :100]])
    source, target = ([str(NUMBERS[i]) if i % 2 else NAMES[i] for i in row] for row in CODES[:, 100:])
    Path("b.csv").write_text(table(source[:150], target[:150]))
    Path("c.txt").write_text(table(source[150:], target[150:], mark=" "))
    before = [[str(value) for value in row] for row in NUMBERS[CODES[:, :100]].tolist()]
    assert_both(["a.npy", "b.csv", "c.txt"], by_hand(before[0] + source, before[1] + target))


def test_a_column_of_integers_beside_one_of_text():
    parquet("e.parquet", user=[5, 70], item=["a", "b"])
    assert_both("e.parquet", by_hand(["5", "70"], ["a", "b"]))


def test_categories_of_parquet():
    import pyarrow

    parquet("e.parquet", src=pyarrow.array(["x", "y", "x"]).dictionary_encode(), dst=["y", "z", "z"])
    assert_both("e.parquet", by_hand(["x", "y", "x"], ["y", "z", "z"]))


@pytest.mark.parametrize(
    "text, source, target",
    [
        ("10000000000,10000000007\n5,10000000000\n", [10_000_000_000, 5], [10_000_000_007, 10_000_000_000]),
        ("7,007\n7,8\n", ["7", "7"], ["007", "8"]),
        ("1,+1\n", ["1"], ["+1"]),
        ("0,-0\n", ["0"], ["-0"]),
        ("1,1.0\n", ["1"], ["1.0"]),
        ('"1","2"\n"2",3\n', [1, 2], [2, 3]),
        ("-5,3\n", [-5], [3]),
        ("9223372036854775807,-9223372036854775808\n", [2**63 - 1], [-(2**63)]),
        ("9223372036854775808,1\n", ["9223372036854775808"], ["1"]),
        ("alice,bob\nbob,carol\n", ["alice", "bob"], ["bob", "carol"]),
        ("src,dst\nalice,bob\n", ["alice"], ["bob"]),
        ("user,item\nalice,bob\n", ["alice"], ["bob"]),
        ("follower_id,followee_id\nalice,bob\n", ["alice"], ["bob"]),
        ("u,v\nv,w\n", ["u", "v"], ["v", "w"]),
        ("node1,node2\nnode2,node3\n", ["node1", "node2"], ["node2", "node3"]),
        ("who,whom\n1,2\n", [1], [2]),
        ("who,whom,weight\na,b,1\n", ["a"], ["b"]),
        ("target,source,time\nb,a,noon\n", ["a"], ["b"]),
        ("  alice ,\tbob  \n\n   \n# a,b\n carol,dora", ["alice", "carol"], ["bob", "dora"]),
        ('"Doe, John","a ""b"" c"\n', ["Doe, John"], ['a "b" c']),
        ("C#,C\nF#,C#\n", ["C#", "F#"], ["C", "C#"]),
        ("a,a\na,b\na,b\n", ["a", "a", "a"], ["a", "b", "b"]),
        ("a\u2028b,c\x85d\n", ["a\u2028b"], ["c\x85d"]),
        ("nan,inf\n", ["nan"], ["inf"]),
    ],
)
def test_what_an_identifier_is(text, source, target):
    Path("e.csv").write_bytes(text.encode())
    assert_both("e.csv", by_hand(source, target))


def test_quotes_among_white_space():
    Path("e.txt").write_text('"New York"   Paris\nParis "Rio de Janeiro"\n')
    assert_both("e.txt", by_hand(["New York", "Paris"], ["Paris", "Rio de Janeiro"]))


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1, max_size=5)
NAME = TEXT.map(str.strip).filter(lambda text: text and not text.startswith("#") and "\x00" not in text)
INTEGER = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=25, deadline=None)
@given(
    st.one_of(*(st.lists(st.tuples(kind, kind), min_size=1, max_size=30) for kind in (NAME, INTEGER))),
    st.booleans(),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_list(tmp_path_factory, pairs, undirected, mark, end):
    os.chdir(tmp_path_factory.mktemp("any"))
    source, target = (list(column) for column in zip(*pairs, strict=True))
    quoted = io.StringIO()
    csv.writer(quoted, delimiter=mark, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(pairs)
    Path("e.csv").write_bytes((f"source{mark}target{end}" + quoted.getvalue()).encode())
    texts = [str(value) for value in source + target]
    if all(str(value).isascii() and str(value).lstrip("-").isdigit() for value in texts) and isinstance(source[0], str):
        return  # text that is integers is read as such
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unifews.resources.Memory.chunk", 16)
        patch.setattr(node_numbering, "_PER_TEXT", 10_000_000)
        patch.setattr(node_numbering, "_PER_INTEGER", 10_000_000)
        patch.setattr("unifews.resources.resident", lambda: 60_000_000)
        assert_both("e.csv", by_hand(source, target, None, undirected), undirected)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("a,b\nc\n", "line 2 has 1 values, and its first line has 2"),
        ("a,b\nc,d,e\n", "line 2 has 3 values"),
        ("a,b\nc,\n", "line 2 has an empty identifier"),
        ('a,b\nc,""\n', "line 2 has an empty identifier"),
        ('a,b\nc,"d\ne"\n', "line 2 has quotation marks that do not match"),
        ("a,b,1\nb,c,x\n", "line 2 holds 'x' for a weight"),
        ("a,b,1\nb,c,-1\n", "edge 1 of e.csv has the weight -1.0"),
        ("a,b,c,d\n", "4 columns in its first line"),
        ("a\n", "1 columns in its first line"),
        ("source,target\n", "holds no edges"),
        ("", "holds no edges"),
        ("a,b\n" + "c" * (1 << 20) + ",d\n", "line 2 is longer than 1,048,576 bytes"),
    ],
)
def test_lists_that_cannot_be_read_say_where(text, sentence):
    Path("e.csv").write_text(text)
    for read in (lambda: uf.read_edges("e.csv", ids=True), lambda: convert_edges("e.csv", "g", ids=True)):
        with pytest.raises((FileFormatError, InputError), match=sentence) as told:
            read()
        assert "\n" not in str(told.value) and "e.csv" in str(told.value)
    assert [path.name for path in Path().iterdir()] == ["e.csv"]


def test_other_values_are_no_identifiers():
    np.save("half.npy", CODES + 0.5)
    np.save("far.npy", np.array([[0], [2**64 - 1]], dtype=np.uint64))
    np.save("flags.npy", CODES > 3)
    parquet("lists.parquet", src=[[1], [2]], dst=["a", "b"])
    parquet("bytes.parquet", src=[b"\xff", b"a"], dst=["a", "b"])
    parquet("breaks.parquet", src=["a\nb", "a"], dst=["a", "b"])
    parquet("empty.parquet", src=["a", None], dst=["a", "b"])
    for name, sentence in (
        ("half.npy", r"row 0 of half.npy has the identifier \d+.5"),
        ("far.npy", r"has the identifier 18446744073709551615; integers are below 2\^63; write larger ones as text"),
        ("flags.npy", "are bool values"),
        ("lists.parquet", "identifiers are integers or text"),
        ("bytes.parquet", "identifiers are integers or text"),
        ("breaks.parquet", "row 0 of breaks.parquet contains a line break"),
        ("empty.parquet", "1 empty cells in column 'src'"),
    ):
        with pytest.raises((InputError, FileFormatError), match=sentence):
            uf.read_edges(name, ids=True)
    Graph.from_edge_index(CODES).save("graph")
    with pytest.raises(InputError, match="graph holds a graph between node numbers"):
        convert_edges("graph", "g", ids=True)
    Path("e.csv").write_text("a,b\n")
    for read in (
        lambda: uf.read_edges("e.csv", ids=True, num_nodes=5),
        lambda: convert_edges("e.csv", "g", ids=True, num_nodes=5),
    ):
        with pytest.raises(InputError, match="num_nodes=5 cannot be given with ids=True"):
            read()


# ------------------------------------------------------------------------------------------------- read_edges, in numbers


def test_reading_edges_between_numbers():
    np.save("a.npy", CODES[:, :100])
    Path("b.csv").write_text(table(*CODES[:, 100:]))
    expected = Graph.from_edge_index(CODES).undirected()
    graph = uf.read_edges(["a.npy", "b.csv"])
    assert np.array_equal(graph.indices, expected.indices) and graph.merged_duplicates == expected.merged_duplicates
    assert uf.read_edges("a.npy", directed=True).num_edges == Graph.from_edge_index(CODES[:, :100]).num_edges
    assert uf.read_edges("a.npy", num_nodes=99).num_nodes == 99
    expected.save("g")
    assert np.array_equal(uf.read_edges("g").indices, expected.indices)
    np.savez("n.npz", edge_index=CODES, num_nodes=77)
    assert uf.read_edges("n.npz").num_nodes == 77
    Path("h.csv").write_text("0,3000000000\n")
    with pytest.raises(GraphError, match=r"h.csv has 1 edge, but node numbers up to 3,000,000,000.*ids=True"):
        uf.read_edges("h.csv")
    assert uf.read_edges("h.csv", ids=True)[1].tolist() == [0, 3_000_000_000]


def test_weights_on_request():
    Path("w.csv").write_text("0,1,0.5\n")
    Path("e.csv").write_text("0,1\n")
    assert uf.read_edges("w.csv").is_weighted and uf.read_edges("w.csv", weights=True).is_weighted
    assert not uf.read_edges("w.csv", weights=False).is_weighted and not uf.read_edges("e.csv").is_weighted
    with pytest.raises(InputError, match=r"weights=True was given, but e.csv has none"):
        uf.read_edges("e.csv", weights=True)
    with pytest.raises(InputError, match="some of the edge files have weights"):
        uf.read_edges(["e.csv", "w.csv"])
    assert not uf.read_edges(["e.csv", "w.csv"], weights=False).is_weighted
    Graph.from_edge_index([[0], [1]], edge_weight=[0.5]).save("g")
    assert not uf.read_edges("g", weights=False).is_weighted and uf.read_edges("g").is_weighted


# --------------------------------------------------------------------------------------------------------- what is stored


def test_identifiers_are_read_from_a_folder_that_has_them():
    Graph.from_edge_index([[0], [1]]).save("bare")
    with pytest.raises(MissingFileError, match="bare holds no identifiers"):
        uf.read_ids("bare")
    assert not check_ids(Path("bare"), 2)
    Path("bare/ids.txt").write_text("a\nb")
    with pytest.raises(FileFormatError, match="truncated"):
        uf.read_ids("bare")
    for text, sentence in (
        ("a\n", "1 identifiers for 2 nodes"),
        ("b\na\n", "not distinct and in order"),
        ("a\na\n", "distinct"),
    ):
        Path("bare/ids.txt").write_text(text)
        with pytest.raises(FileFormatError, match=sentence):
            check_ids(Path("bare"), 2)
    Path("bare/ids.txt").write_bytes(b"\xff\n")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        uf.read_ids("bare")
    np.save("bare/ids.npy", np.zeros((2, 2)))
    with pytest.raises(FileFormatError, match=r"identifiers are int64 \[n\]"):
        uf.read_ids("bare")


def test_numbers_of_identifiers():
    integers, text = IdMap(np.array([-4, 7, 10**12])), IdMap(np.array(["007", "7", "a"], dtype=object))
    assert integers.numbers(np.array(["7", "-4"]), "f").tolist() == [1, 0]
    assert text.numbers(np.array(["7", "007"]), "f").tolist() == [1, 0] and text.numbers(np.array([7]), "f").tolist() == [1]
    for known, unknown in (
        (integers, ["007"]),
        (integers, ["x"]),
        (integers, [8]),
        (integers, [10**13]),
        (text, [8]),
        (text, ["b"]),
    ):
        with pytest.raises(InputError, match="which is not the identifier of a node of this graph"):
            known.numbers(np.array(unknown), "f")


# --------------------------------------------------------------------------------------------------- interrupted, memory


SLOWLY = """
import os
from unifews import resources
from unifews.datasets import convert
from unifews.io import node_numbering
from unifews.storage import journal
journal.SAVE_INTERVAL = 0
resources._CHUNK = (1024, 1024)
node_numbering._PER_TEXT = node_numbering._PER_INTEGER = 300_000
os.fsync = lambda descriptor: None
convert.convert_edges(['e.csv', 'f.csv.gz'], 'g', ids=True, memory='200MB', progress=lambda *event: print(*event, flush=True))
"""


def child(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()}


@pytest.mark.parametrize("kind", ["integers", "text", "both"])
def test_a_killed_conversion_goes_on_and_ends_with_the_same_bytes(kind):
    codes = np.random.default_rng(71).integers(0, 900, (2, 4_000))
    names = [f"n{i * 7919 % 900}" if kind == "text" or (kind == "both" and i > 800) else str(i**4) for i in range(900)]
    source, target = ([names[i] for i in sorted(row)] for row in codes)
    Path("e.csv").write_text(table(source[:2000], target[:2000]))
    Path("f.csv.gz").write_bytes(gzip.compress(table(source[2000:], target[2000:]).encode()))
    convert_edges(["e.csv", "f.csv.gz"], "expected", ids=True)
    stages = set()
    for step in (3, 14, 26):
        process = child(SLOWLY)
        for _ in range(step):
            line = process.stdout.readline()
            stages.add(" ".join(line.split()[:2]))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait(timeout=60)
        if Path("g").exists() and not Path("g.work").exists():
            break
    if not Path("g").exists() or Path("g.work").exists():
        child(SLOWLY).communicate(timeout=60)
    assert {"reading e.csv", "numbering identifiers"} <= stages
    assert contents("g") == contents("expected") and not Path("g.work").exists()


def test_work_that_was_planned_for_more_memory(monkeypatch):
    Path("e.csv").write_text("a,b\nb,c\n")

    def stop(stage, done, total):
        if stage == "numbering identifiers":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_edges("e.csv", "g", ids=True, memory="400MB", progress=stop)
    with pytest.raises(InputError, match=r"was planned for more than 200 MB\. Give .*--restart"):
        convert_edges("e.csv", "g", ids=True, memory="200MB")
    assert convert_edges("e.csv", "g", ids=True, memory="400MB").num_nodes == 3
    Path("f.csv").write_text("a,b\n")
    with pytest.raises(KeyboardInterrupt):
        convert_edges("f.csv", "h", ids=True, progress=stop)
    with pytest.raises(InputError, match="begun with ids True and not False"):
        convert_edges("f.csv", "h")
    Path("h.work/pieces/0.run").write_bytes(b"x")
    with pytest.raises(FileFormatError, match=r"0.run has changed since the interrupted call"):
        convert_edges("f.csv", "h", ids=True)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
@pytest.mark.parametrize("kind", ["integers", "text"])
def test_memory_stays_below_what_is_allowed(kind):
    rng = np.random.default_rng(73)
    numbers = rng.integers(10**9, 10**10, (2, 300_000))  # almost all of them distinct
    if kind == "integers":
        np.save("e.npy", numbers)
    else:
        Path("e.csv").write_text("".join(f"u{v:x},u{u:x}\n" for v, u in numbers[:, :150_000].T.tolist()))
    name = "e.npy" if kind == "integers" else "e.csv"
    code = (
        "from unifews.datasets.convert import convert_edges\n"
        f"convert_edges('{name}', 'g', ids=True, memory='140MB')\n"
        "print(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    out, _ = child(code).communicate(timeout=300)
    assert int(out.split()[1]) * 1024 < 140e6
    assert (
        Graph.open("g", verify=True).num_nodes
        == len(uf.read_ids("g"))
        == len(np.unique(numbers[:, : 150_000 * (1 + (kind == "integers"))]))
    )


# ------------------------------------------------------------------------------------------------------------ datasets


@pytest.mark.parametrize("kind", ["text", "integers"])
def test_a_dataset(kind):
    ids = [f"user {i % 7}-{i}" for i in range(30)] if kind == "text" else [10**10 + 13 * (i * 11 % 30) for i in range(30)]
    order = np.random.default_rng(79).permutation(30)
    Path("e.csv").write_text(table([ids[i] for i in range(28)], [ids[i + 1] for i in range(28)]))  # the last is isolated
    Path("x.csv").write_text("id,a,b\n" + "".join(f"{ids[i]},{i},{i % 3}\n" for i in order))
    Path("y.csv").write_text("id,label\n" + "".join(f"{ids[i]},{'xyz'[i % 3]}\n" for i in reversed(order)))
    Path("s.csv").write_text("node,set\n" + "".join(f"{ids[i]},{['train', 'val', 'test'][i % 3]}\n" for i in range(30)))
    for i, part in enumerate(("train", "val", "test")):
        Path(f"{part}.txt").write_text("".join(f"{ids[j]}\n" for j in range(i, 30, 3)))
    data = convert_dataset("e.csv", "x.csv", "y.csv", "d", split="s.csv", ids=True)
    stored = uf.read_ids("d").tolist()
    assert stored == sorted(ids) and check_ids(Path("d"), 30)
    original = np.array([ids.index(value) for value in stored])
    assert np.array_equal(data.x[:, 0], original) and np.array_equal(data.y, original % 3)
    assert [sorted(original[part] % 3)[::9] for part in data.split()] == [[0, 0], [1, 1], [2, 2]]
    edges = data.graph.to_edge_index()
    assert {abs(original[v] - original[u]) for v, u in edges.T} == {1} and data.graph.num_edges == 56
    three = convert_dataset("e.csv", "x.csv", "y.csv", "t", split=["train.txt", "val.txt", "test.txt"], ids=True)
    assert all(np.array_equal(a, b) for a, b in zip(three.split(), data.split(), strict=True))


def test_a_dataset_of_tables_in_parquet():
    parquet("e.parquet", src=["a", "b"], dst=["b", "c"])
    parquet("x.parquet", id=["c", "a", "b"], f=[3.0, 1.0, 2.0])
    parquet("y.parquet", id=["c", "a", "b"], label=[1, 0, 1])
    data = convert_dataset("e.parquet", "x.parquet", "y.parquet", "d", ids=True)
    assert data.x[:, 0].tolist() == [1, 2, 3] and data.y.tolist() == [0, 1, 1]


def test_tables_that_do_not_name_their_nodes():
    Path("e.csv").write_text("a,b\nb,c\n")
    good = {"x": "id,f\na,1\nb,2\nc,3\n", "y": "id,label\na,0\nb,1\nc,0\n", "s": "id,set\na,train\nb,val\nc,test\n"}
    np.save("x.npy", np.eye(3))
    np.savez("s.npz", train_idx=[0], val_idx=[1], test_idx=[2])
    files = {"x": "x.csv", "y": "y.csv", "s": "s.csv"}
    for change, sentence in (
        (dict(x="x.npy"), r"x.npy has no identifiers of its rows: with ids=True, features are in a table"),
        (dict(x="f,g\n1,2\n2,3\n3,4\n"), "x.csv has no identifiers of its rows"),
        (dict(x="id,f\na,1\na,2\nc,3\n"), "x.csv has 2 rows of a"),
        (dict(x="id,f\na,1\nb,2\n"), "c occurs in e.csv, but has no row in x.csv"),
        (dict(x="id,f\na,1\nb,x\nc,2\n"), "x.csv holds 'x' in line 3, column 2"),
        (dict(y="label\n0\n1\n0\n"), "y.csv has no identifiers of its rows: with ids=True, labels"),
        (dict(y="id,label\na,0\nd,1\n"), "y.csv names d, which is not the identifier of a node"),
        (dict(y="id,label\na,0\na,1\n"), "y.csv names node a 2 times"),
        (dict(s="set\ntrain\nval\ntest\n"), "s.csv has no identifiers of its rows"),
        (dict(s="s.npz"), "s.npz has no identifiers of its rows"),
    ):
        for name, text in {**good, **change}.items():
            if "\n" in text:
                Path(files[name]).write_text(text)
        given = {name: change[name] if "." in change.get(name, "")[:6] else file for name, file in files.items()}
        with pytest.raises((InputError, FileFormatError), match=sentence):
            convert_dataset("e.csv", given["x"], given["y"], "d", split=given["s"], ids=True, restart=True)
    for name, text in good.items():
        Path(files[name]).write_text(text)
    assert convert_dataset("e.csv", "x.csv", "y.csv", "d", split="s.csv", ids=True, restart=True).num_nodes == 3
