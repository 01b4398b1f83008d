"""`.npy` headers, sound, damaged and hostile: an array, or one sentence that names the file."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from unifews.errors import FileFormatError
from unifews.storage.npy import open_array


def written(path, header, data=bytes(24), version=(1, 0)):
    text = header if isinstance(header, bytes) else header.encode()
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    path.write_bytes(b"\x93NUMPY" + bytes(version) + length + text + data)
    return path


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(5),
        np.empty((0, 4), np.float16),
        np.array([True, False]),
        np.array(["a", "bc"]),
        np.arange(3, dtype=">i4"),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_what_numpy_saves_is_opened(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    found = open_array(tmp_path / "a.npy")
    assert found.dtype == array.dtype and np.array_equal(found, array)
    assert isinstance(found, np.memmap) == (array.size > 0)
    assert found.flags.f_contiguous == array.flags.f_contiguous


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "header",
    ["{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3), }\n", '{"shape":(2,3),"descr":"<f4","fortran_order":False}'],
)
def test_headers_of_other_writers(tmp_path, version, header):
    assert open_array(written(tmp_path / "a.npy", header, version=version)).shape == (2, 3)


def described(shape="(2, 3)", descr="'<f4'", fortran="False"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


HEADERS = {
    "empty": b"",
    "unclosed bracket": described("(2, 3"),
    "indented": "  " + described() + "\n   1",
    "nested": "[" * 5000,
    "deep": "(" * 90 + ")" * 90,
    "zero byte": described().replace("2", "\0"),
    "not text": b"\xff" * 40,
    "a list": "[1, 2, 3]",
    "unhashable key": "{[]: 1}",
    "code": "__import__('os').abort()",
    "a key too many": described().replace("}", "'a': 1}"),
    "a key missing": "{'descr': '<f4', 'shape': (6,)}",
    "negative": described("(-2, -3)"),
    "minus one": described("(-1,)"),
    "flags": described("(True, 6)"),
    "float": described("(6.0,)"),
    "a number": described("6"),
    "beyond 64 bits": described(f"({2**64}, 0)"),
    "too many dimensions": described("(" + "1," * 40 + ")"),
    "order": described(fortran="0"),
    "order of text": described(fortran="'no'"),
}
TYPES = [
    "'O'",
    "'|O8'",
    "'<c8'",
    "'<M8[s]'",
    "'V4'",
    "[('a', '<f4')]",
    "'<f5'",
    "'<U0'",
    "'f4,f4'",
    "7",
    "'nonsense'",
    "('<f4', (2,))",
]


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_bad_header_is_one_sentence(tmp_path, header):
    with pytest.raises(FileFormatError, match=r"a\.npy is not a \.npy file, or its header is damaged") as caught:
        open_array(written(tmp_path / "a.npy", header))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("descr", TYPES)
def test_types_that_are_neither_numbers_nor_text(tmp_path, descr):
    with pytest.raises(FileFormatError, match=r"a\.npy (holds|cannot be read)"):
        open_array(written(tmp_path / "a.npy", described(descr=descr)))


@pytest.mark.parametrize(
    "begin", [b"\x93NUMPY\x09\x09", b"\x93NUMPY\x01", b"\x93NUMPZ\x01\x00", b"", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f"]
)
def test_another_magic_version_or_length(tmp_path, begin):
    (tmp_path / "a.npy").write_bytes(begin + bytes(200))
    with pytest.raises(FileFormatError, match=r"a\.npy is not a \.npy file"):
        open_array(tmp_path / "a.npy")


@pytest.mark.parametrize(
    "shape, sentence",
    [
        ("(2, 4)", "8 bytes are missing"),
        ("(2, 2)", "8 bytes more"),
        (f"({2**40},)", "bytes are missing"),
        (f"(0, {2**62})", "a.npy"),
    ],
)
def test_the_length_is_that_of_the_header(tmp_path, shape, sentence):
    with pytest.raises(FileFormatError, match=sentence):
        open_array(written(tmp_path / "a.npy", described(shape), bytes(0 if "0, " in shape else 24)))
