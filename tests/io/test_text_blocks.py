"""Blocks of lines: the same lines whatever the size of a block, with bounded memory, and errors that name the line."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifews.errors import FileFormatError
from unifews.io.edge_lists import read_table
from unifews.io.graphs import read_graph
from unifews.io.text_blocks import MAX_LINE, blocks, opened


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=6), max_size=8),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.integers(1, 9),
)
def test_any_line_end_and_any_size_of_a_block(tmp_path_factory, lines, end, bom, size):
    path = tmp_path_factory.mktemp("any") / "a.txt"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + "".join(line + end for line in lines).encode())
    with opened(path) as (file, _):
        found, ends = [], []
        for block in blocks(path, file, size):
            assert block.before == len(found)
            found += block.lines[:-1]
            ends.append(block.end)
            assert block.lines[-1] == ""
        assert found == lines
        if len(ends) > 1:  # going on from a position gives the rest
            rest = [line for block in blocks(path, file, 3, ends[0]) for line in block.lines[:-1]]
            assert rest == lines[ends[0][1] :]


@pytest.mark.parametrize("before", ["", "source,target\n", "0,1\n" * 3])
@pytest.mark.parametrize("name", ["e.csv", "e.txt", "e.csv.gz"])
def test_a_line_without_an_end_is_refused(tmp_path, name, before):
    path = tmp_path / name
    data = before.encode() + b"1" * (MAX_LINE + 1)
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    for read in (read_table, read_graph):
        with pytest.raises(FileFormatError, match=rf"{name} .*line {before.count(chr(10)) + 1} is longer than 1,048,576 bytes"):
            read(path)


def test_a_long_line_among_many_is_refused(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text("0,1\n" * 300_000 + "#" + "x" * MAX_LINE + "\n" + "0,1\n" * 10)
    with pytest.raises(FileFormatError, match="line 300,001 is longer"):
        read_table(path)


def test_text_that_is_not_utf_8_names_the_line(tmp_path):
    path = tmp_path / "e.csv"
    path.write_bytes(b"0,1\r\n1,2\r\n2,\xff\r\n")
    with pytest.raises(FileFormatError, match="line 3 is not UTF-8"):
        read_table(path)
