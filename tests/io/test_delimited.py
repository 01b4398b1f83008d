"""Delimited text: pyarrow and the parser of single lines read the same values, and refuse the same lines."""

from __future__ import annotations

import numpy as np
import pytest

from unifews.errors import FileFormatError
from unifews.io import delimited
from unifews.io.edge_lists import read_table
from unifews.io.id_edge_lists import stream_ids
from unifews.io.tables import read_columns, read_numbers

EDGES = [[0, 7, 12], [1, 2, 30]]


@pytest.fixture(params=["pyarrow", "line by line"])
def parser(request, monkeypatch):
    if request.param == "line by line":
        monkeypatch.setattr(delimited, "parse", lambda *arguments, **options: None)
        monkeypatch.setattr("unifews.io.tables.parse", lambda *arguments, **options: None)


@pytest.mark.parametrize(
    "text",
    [
        "0,1\n7,2\n12,30\n",
        "0, 1\n 7 ,2\n12,30",
        "0 1\n7\t 2\n  12   30  \n",
        "0;1\n\n7;2 # seven\n# none\n12;30\n",
        "source,target,time\n0,1,noon\n7,2,\n12,30,x\n",
        "target,source\r\n1,0\r\n2,7\r\n30,12\r\n",
        "+0,1\n007,2\n12,+30\n",
    ],
)
def test_edges(tmp_path, parser, text):
    path = tmp_path / "e.csv"
    path.write_bytes(text.encode())
    edges = read_table(path)
    assert [edges.source.tolist(), edges.target.tolist()] == EDGES and edges.source.dtype == np.int64


@pytest.mark.parametrize(
    "line, problem",
    [
        ("0x1f,1", "line 2 names node '0x1f'"),
        ("1.0,1", "line 2 names node '1.0'"),
        ("1_0,1", "line 2 names node '1_0'"),
        ("NA,1", "line 2 names node 'NA'"),
        (",1", "line 2 names node ''"),
        ("9223372036854775808,1", "names node '9223372036854775808', and nodes are numbered from 0, below 2"),
        ("1", "line 2 has 1 values, and its first line has 2"),
        ("1,2,3", "line 2 has 3 values"),
    ],
)
def test_lines_that_are_no_edge(tmp_path, parser, line, problem):
    path = tmp_path / "e.csv"
    path.write_text(f"0,1\n{line}\n")
    with pytest.raises(FileFormatError, match=problem):
        read_table(path)


def test_weights(tmp_path, parser):
    path = tmp_path / "e.csv"
    path.write_text("0,1,.5\n1,2,1e-3\n2,3,+4\n")
    assert read_table(path).weight.tolist() == [np.float32(0.5), np.float32(1e-3), 4]
    path.write_text("0,1,.5\n1,2,1_0\n")
    with pytest.raises(FileFormatError, match="line 2 holds '1_0' for a weight"):
        read_table(path)


def test_identifiers(tmp_path, parser):
    path = tmp_path / "e.tsv"
    path.write_text("a b\tC#\n# no edge\n007\t é \n")
    ((edges, _),) = stream_ids(path, 10)
    assert edges.source.tolist() == ["a b", "007"] and edges.target.tolist() == ["C#", "é"]
    path.write_text("a\tb\n\tc\n")
    with pytest.raises(FileFormatError, match="line 2 has an empty identifier"):
        list(stream_ids(path, 10))


def test_columns_and_numbers(tmp_path, parser):
    path = tmp_path / "t.csv"
    path.write_text("node,label\n3,x\n# none\n4, y\n\n")
    table = read_columns(path)
    assert table.names == ["node", "label"] and [column.tolist() for column in table.values] == [[3, 4], ["x", "y"]]
    path.write_text("node,a,b\n3,1,2\n\n4,0.5,nan\n")
    matrix, nodes = read_numbers(path)
    assert nodes.tolist() == [3, 4] and matrix.dtype == np.float32
    assert np.array_equal(matrix, np.array([[1, 2], [0.5, np.nan]], np.float32), equal_nan=True)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("1,2\n3,4,5\n", "line 2 has 3 values, and its first line has 2"),
        ("1 2\n3 4\n", "holds '1 2' in line 1, column 1"),
        ("1,2\n3,\n", "is empty in line 2, column 2"),
    ],
)
def test_no_value_of_a_matrix_is_dropped(tmp_path, parser, text, problem):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=problem):
        read_numbers(path)
