"""Mutations of files: the bytes of any, and what the text, JSON, arrays and archives in them say."""

from __future__ import annotations

import copy
import gzip
import io
import json
import re
import struct
import zipfile
from pathlib import PurePath

Files = dict[str, bytes]  # contents by path within a folder

ODD = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    7,
    1.5,
    -0.0,
    1e300,
    2**31,
    2**40,
    2**63,
    10**40,
    "",
    "x",
    "linear",
    "gat",
    "cat",
    "sum",
    "dense",
    "mask",
    "rows",
    "sorted",
    "floats",
    "flags",
    "edges",
    "block",
    [],
    [0],
    [0, 0],
    [1, 2, 3],
    {},
    {"as": "dense"},
    {"name": "appnp"},
    [[[]]],
    "\x00",
    "é" * 99,
    float("nan"),
    float("inf"),
    "../x",
    "/etc/passwd",
)
NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "True",
    "nan",
    "inf",
    "1e300",
    "1.5",
    str(2**31 - 1),
    str(2**31),
    str(2**62),
    str(2**63),
    "9" * 30,
    "x",
)
PATTERNS = [struct.pack("<q", n) for n in (-1, 0, 1, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))]
PATTERNS += [struct.pack("<i", n) for n in (-1, 0, 1, 61, 2**30, 2**31 - 1)]
PATTERNS += [struct.pack("<f", v) for v in (float("nan"), float("inf"), -1.0, 0.0, 1e38)]


def damaged(files: Files, rng) -> tuple[Files, bool]:
    """The files after one mutation, and whether checksums in them were made to fit it, as nothing but intent does."""
    name = rng.choice(sorted(files))
    if rng.random() < 0.02:
        return {other: data for other, data in files.items() if other != name}, False
    changed, fits = change(name, files[name], rng)
    return files | {name: changed}, fits


def change(name: str, data: bytes, rng) -> tuple[bytes, bool]:
    """One mutation of a file, by its suffix."""
    kind = PurePath(name).suffix
    if rng.random() < 0.4 or not data:
        return flip(data, rng), False
    if kind == ".npy":
        return array(data, rng), False
    if kind == ".npz":
        return archive(data, rng), True
    if kind == ".gz":
        return gzip.compress(text(gzip.decompress(data), rng)), True
    if kind in (".json", ".jsonl"):
        return lines_of_json(data, rng), False
    if kind in (".csv", ".tsv", ".txt", ".toml", ".index"):
        return text(data, rng), False
    return flip(data, rng), False


def flip(data: bytes, rng) -> bytes:
    """A few bytes changed, left out, put in or repeated; or the end cut off."""
    data = bytearray(data)
    if rng.random() < 0.1:
        return bytes(data[: rng.randrange(len(data) + 1)])
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(max(len(data), 1))
        span = rng.choice([1, 4, 8, 30, 100])
        what = rng.randrange(6)
        if what == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1 and data:
            data[at] = rng.choice([0, 255, 34, 91, 123, 125, rng.randrange(256)])
        elif what == 2:
            del data[at : at + span]
        elif what == 3:
            data[at:at] = data[at : at + span]
        elif what == 4:
            data[at : at + span] = bytes(len(data[at : at + span]))
        else:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 4, 30])))
    return bytes(data)


def text(data: bytes, rng) -> bytes:
    """A number replaced by another, or a line left out, repeated or moved."""
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if numbers and rng.random() < 0.6:
        found = rng.choice(numbers)
        return data[: found.start()] + rng.choice(NUMBERS).encode() + data[found.end() :]
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(4)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(at, lines[other])
    elif what == 2:
        lines[at] = lines[at] + rng.choice([b",", b" 1", b"#", b"\t", b'"', b"[" * 3000, b"= {", b"\r", b"\0"])
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return b"\n".join(lines)


def array(data: bytes, rng) -> bytes:
    """Another number in the header of a `.npy`, another word in it, or another value among its data."""
    end = 10 + int.from_bytes(data[8:10], "little")
    header, values = data[10:end], data[end:]
    what = rng.random()
    if what < 0.35:
        header = text(header.rstrip(), rng)
    elif what < 0.5:
        old, new = rng.choice(
            [
                (b"<", b">"),
                (b"False", b"True"),
                (b"'shape'", b"'shap'"),
                (b"<f4", b"|O"),
                (b"i8", b"f8"),
                (b"(", b"(((("),
                (b",)", b""),
                (b"}", b""),
                (b"<", b"<M"),
                (b"4", b"0"),
            ]
        )
        header = header.rstrip().replace(old, new, 1)
    elif values:
        pattern = rng.choice(PATTERNS)
        at = rng.randrange(len(values)) // len(pattern) * len(pattern)
        return data[: end + at] + pattern + data[end + at + len(pattern) :]
    header = header.rstrip().ljust(len(header) - 1) + b"\n"
    return data[:8] + struct.pack("<H", len(header) & 0xFFFF) + header + values


def archive(data: bytes, rng) -> bytes:
    """A member of a `.npz` changed, left out, renamed or written twice, with checksums that fit."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    name = rng.choice(sorted(members))
    what = rng.randrange(6)
    if what <= 2:
        members[name] = array(members[name], rng) if rng.random() < 0.8 else flip(members[name], rng)
    elif what == 3:
        del members[name]
    elif what == 4:
        members[rng.choice([*members, "num_nodes.npy", "weight.npy", "x", "odd"])] = members.pop(name)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as file:
        for member, content in members.items():
            file.writestr(member, content)
        if what == 5:
            file.writestr(name.removesuffix(".npy"), members[name])
    return out.getvalue()


def lines_of_json(data: bytes, rng) -> bytes:
    """One change in a JSON document, or in one of the documents of a file with one per line."""
    lines = data.rstrip(b"\n").split(b"\n")
    try:
        documents, at = [json.loads(line) for line in lines], rng.randrange(len(lines))
    except ValueError:
        documents, at = [json.loads(data)], 0
    if rng.random() < 0.03:
        return b"[" * 9999
    documents[at] = edit(documents[at], rng)
    return b"\n".join(json.dumps(document).encode() for document in documents) + b"\n"


def edit(tree, rng):
    """One change somewhere in a tree of JSON."""
    tree = copy.deepcopy(tree)
    places, stack = [], [tree]
    while stack:
        here = stack.pop()
        for key in here if isinstance(here, dict) else range(len(here)):
            places.append((here, key))
            if isinstance(here[key], dict | list):
                stack.append(here[key])
    if not places:
        return rng.choice(ODD)
    here, key = rng.choice(places)
    what = rng.randrange(6)
    if what == 0:
        del here[key]
    elif what == 1 and isinstance(here[key], int | float) and not isinstance(here[key], bool):
        here[key] += rng.choice([-1, 1, 2, 100, -100, 2**20, 2**33])
    elif what == 2 and isinstance(here, list):
        here.insert(key, copy.deepcopy(rng.choice(here)))
    elif what == 3:
        there, other = rng.choice(places)
        here[key] = copy.deepcopy(there[other])
    elif what == 4 and isinstance(here, dict):
        here[rng.choice(["op", "of", "settings", "arrays", "weight", "bias", "x"])] = copy.deepcopy(here[key])
    else:
        here[key] = copy.deepcopy(rng.choice(ODD))
    return tree
