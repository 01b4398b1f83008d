"""`.npz` archives, sound, damaged and hostile; what they may unpack to."""

from __future__ import annotations

import gzip
import io
import resource
import struct
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp

from unifews.errors import FileFormatError, ShapeError
from unifews.io.graphs import read_graph, read_matrix
from unifews.io.tables import read_columns, read_numbers
from unifews.storage import reading
from unifews.storage.archive import Archive

ARRAYS = dict(
    a=np.arange(12.0).reshape(3, 4), f=np.asfortranarray(np.eye(3, 2)), n=np.array(7), e=np.empty((0, 2)), t=np.array("csr")
)


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_saves_is_read(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    archive = Archive(tmp_path / "a.npz")
    assert set(archive) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert archive[name].dtype == array.dtype and np.array_equal(archive[name], array)


def encrypted(data):
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + place] |= 1


def another_method(data):
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        data[data.index(mark) + place] = 77


def another_offset(data):
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 42, 2**31)


def another_name(data):
    data[data.rindex(b"indptr.npy")] ^= 1


def hidden_members(data):
    struct.pack_into("<H", data, data.index(b"PK\x01\x02") + 32, 999)  # the comment of the first one


@pytest.mark.parametrize("damage", [encrypted, another_method, another_offset, another_name, hidden_members])
def test_a_damaged_directory_is_one_sentence(tmp_path, damage):
    path = tmp_path / "a.npz"
    np.savez(path, indptr=np.array([0, 1, 1]), indices=np.array([1]), x=np.eye(2), y=np.zeros(2, int))
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    for read in (read_graph, read_matrix, Archive):
        with pytest.raises(FileFormatError, match=r"a\.npz cannot be read as a \.npz archive") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_a_member_that_is_no_array(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("indptr.npy", b"text")
        file.writestr("indices", b"")
        file.writestr("x.npy", saved(np.eye(3))[:-1])
    with pytest.raises(FileFormatError, match=r"indptr in .*a\.npz is not a \.npy file"):
        read_graph(tmp_path / "a.npz")
    with pytest.raises(FileFormatError, match=r"x in .*a\.npz is not as long as"):
        read_matrix(tmp_path / "a.npz")


def test_two_members_of_one_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", saved(np.eye(3)))
        file.writestr("x", saved(np.eye(2)))
    with pytest.raises(FileFormatError, match="two arrays called 'x'"):
        read_matrix(tmp_path / "a.npz")


EDGES = np.array([[0, 1], [1, 0]])


@pytest.mark.parametrize(
    "arrays, error, sentence",
    [
        (dict(edge_index=EDGES, num_nodes=[2, 2]), FileFormatError, "num_nodes in .* is one whole number"),
        (dict(edge_index=EDGES, num_nodes="two"), FileFormatError, "num_nodes in .* is one whole number"),
        (dict(edge_index=EDGES, num_nodes=np.nan), FileFormatError, "num_nodes in .* is one whole number"),
        (dict(row=[0, 1], col=[1]), ShapeError, r"row of shape \[2\] and col of shape \[1\]"),
        (dict(row=EDGES, col=EDGES), ShapeError, "both are vectors"),
        (dict(format="csr", shape=[2], data=[1]), FileFormatError, "shape in .* two whole numbers"),
        (dict(format="csr", shape=[2, -2], data=[1]), FileFormatError, "shape in .* two whole numbers"),
        (dict(format="lil", shape=[2, 2], data=[1]), FileFormatError, "unknown format 'lil'"),
        (dict(format=[1, 2], shape=[2, 2], data=[1]), FileFormatError, "cannot be read as a scipy sparse matrix"),
        (dict(format="csr", shape=[2, 2], data=[1]), FileFormatError, "cannot be read as a scipy sparse matrix"),
        (dict(format="coo", shape=[2**50, 2**50], data=[1], row=[0], col=[0]), FileFormatError, "takes .* TB in memory"),
    ],
)
def test_archives_that_are_no_graph(tmp_path, arrays, error, sentence):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(error, match=sentence) as caught:
        read_graph(tmp_path / "a.npz")
    assert "a.npz" in str(caught.value)


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
@pytest.mark.parametrize("number", [2**30, 9, -1])
def test_an_index_outside_a_scipy_matrix(tmp_path, kind, number):
    matrix = sp.eye_array(6, format=kind, dtype=np.float32)
    matrix.indices[3] = number
    sp.save_npz(tmp_path / "a.npz", matrix)
    for read in (read_graph, read_matrix):
        with pytest.raises(FileFormatError, match=r"a\.npz cannot be read as a scipy sparse matrix"):
            read(tmp_path / "a.npz")


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
@pytest.mark.parametrize("place, number", [(slice(4, None), 0), (-1, -1), (-1, 99), (2, 5), (0, 1), (slice(None), 1.5)])
def test_offsets_that_fall_or_lead_outside(tmp_path, kind, place, number):
    """Where the last one is 0, scipy looks at none of the others, and its kernels read and write outside."""
    matrix = sp.eye_array(6, format=kind, dtype=np.float32)
    offsets = matrix.indptr.astype(type(number) if isinstance(number, float) else matrix.indptr.dtype)
    offsets[place] = number
    parts = dict(indices=matrix.indices, indptr=offsets, data=matrix.data)
    np.savez(tmp_path / "a.npz", format=kind.encode(), shape=matrix.shape, **parts)
    for read in (read_graph, read_matrix):
        with pytest.raises(FileFormatError, match=r"a\.npz cannot be read as a scipy sparse matrix.*indptr"):
            read(tmp_path / "a.npz")
    if kind == "csr":
        np.savez(tmp_path / "b.npz", x_shape=matrix.shape, **{f"x_{name}": array for name, array in parts.items()})
        with pytest.raises(FileFormatError, match=r"b\.npz cannot be read as compressed rows.*indptr"):
            read_matrix(tmp_path / "b.npz")


def test_every_format_of_scipy(tmp_path):
    expected = np.float32([[0, 1, 0], [2, 0, 0], [0, 0.5, 0]])
    for kind in ("csr", "csc", "bsr", "dia", "coo"):
        for made in (sp.csr_array(expected), sp.csr_matrix(expected)):
            sp.save_npz(tmp_path / "a.npz", made.asformat(kind))
            assert np.array_equal(read_matrix(tmp_path / "a.npz"), expected)
            assert np.array_equal(read_graph(tmp_path / "a.npz").to_scipy().toarray(), expected)


# ------------------------------------------------------------------------------------------------- what may be unpacked


@pytest.fixture
def small(monkeypatch):
    """Archives and texts beyond a megabyte count as large."""
    monkeypatch.setattr(reading, "_SMALL", 1 << 20)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    path, size = tmp_path / "bomb.npz", 288 << 20
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("x.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (size // 4, 4)})
            for _ in range(size >> 24):
                member.write(bytes(1 << 24))
        file.writestr("indptr.npy", saved(np.array([0, 0])))
        file.writestr("indices.npy", saved(np.array([], dtype=int)))
    before = peak()
    with pytest.raises(FileFormatError, match=r"bomb\.npz is not unpacked: x would grow from \d+ kB to 302 MB.*numpy\.savez"):
        read_matrix(path)
    assert peak() - before < 100_000_000


def test_a_bomb_by_its_ratio(tmp_path, small):
    np.savez_compressed(tmp_path / "zeros.npz", edge_index=np.zeros((2, 10**6), np.int64))
    with pytest.raises(FileFormatError, match=r"more than 500 times.*unifews data convert"):
        read_graph(tmp_path / "zeros.npz")
    np.savez(tmp_path / "plain.npz", edge_index=np.zeros((2, 10**6), np.int64))
    assert read_graph(tmp_path / "plain.npz").num_nodes == 1
    rng = np.random.default_rng(0)
    np.savez_compressed(tmp_path / "sparse.npz", x=(rng.random((3000, 300)) < 0.01).astype(np.float32))
    assert read_matrix(tmp_path / "sparse.npz").shape == (3000, 300)


def test_more_than_memory_is_refused(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((1000, 10)))
    monkeypatch.setattr(reading, "available", lambda: 50_000)
    with pytest.raises(FileFormatError, match=r"x unpacks to 80 kB, and 50 kB of memory are free; save its arrays"):
        read_matrix(tmp_path / "a.npz")
    sp.save_npz(tmp_path / "b.npz", sp.csr_array((1000, 1000), dtype=np.float32))
    with pytest.raises(FileFormatError, match=r"takes 4\.0 MB in memory, and 50 kB are free"):
        read_matrix(tmp_path / "b.npz")


def test_a_length_that_is_a_lie(tmp_path):
    """The directory and the header promise more than the packed bytes hold."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(1000.0).reshape(10, 100))
    data = bytearray(path.read_bytes())
    size = len(saved(np.arange(1000.0).reshape(10, 100)))
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, size + 8000)
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=r"x in .* is not as long as"):
        read_matrix(path)


@pytest.mark.parametrize("read", [read_columns, read_numbers])
@pytest.mark.parametrize("text", [b"0\n" * 600_000, b"0" * 2 * 10**6])
def test_a_packed_text_that_grows_without_end(tmp_path, small, read, text):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    with pytest.raises(FileFormatError, match=r"a\.csv\.gz is not unpacked: its text would grow .*gunzip"):
        read(tmp_path / "a.csv.gz")
