"""`unifews data generate`: synthetic datasets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from unifews.cli import console
from unifews.cli.data import check_folder, report_dataset, write_dataset
from unifews.cli.errors import help_if_alone, resumable
from unifews.cli.options import (
    GRAPH,
    NUM_NODES,
    AsJson,
    Memory,
    Overwrite,
    Restart,
    Seed,
    command,
    command_group,
    flag,
    out_flag,
)

app = command_group()

Out = Annotated[Path, out_flag("DIR")]
NumNodes = Annotated[str, NUM_NODES]
NumEdges = Annotated[
    str, flag("--num-edges", panel=GRAPH, metavar="M", help="Number of edges (powerlaw: directed, gencat: undirected).")
]
NumFeatures = Annotated[int | None, flag("--num-features", panel=GRAPH, metavar="F", help="Number of features.")]
NumClasses = Annotated[int | None, flag("--num-classes", panel=GRAPH, metavar="K", help="Number of classes.")]
Exponent = Annotated[
    float, flag("--exponent", panel=GRAPH, metavar="G", help="Power law: the frequency of degree d is proportional to d^-G.")
]


@app.callback(invoke_without_command=True, epilog="Example: unifews data generate cora-like --out cora-like")
def generate(context: typer.Context) -> None:
    """Generate a synthetic dataset."""
    help_if_alone(context)


@command(app, example="unifews data generate powerlaw --num-nodes 1e6 --num-edges 2e7 --out big")
def powerlaw(
    out: Out,
    num_nodes: NumNodes = "10000",
    num_edges: NumEdges = "200000",
    num_features: NumFeatures = 128,
    num_classes: NumClasses = 16,
    exponent: Exponent = 2.5,
    homophily: Annotated[
        float, flag("--homophily", panel=GRAPH, metavar="H", help="Fraction of the edges that join nodes of one class.")
    ] = 0.7,
    seed: Seed = 907,
    memory: Memory = None,
    overwrite: Overwrite = False,
    restart: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Generate a graph with power-law degrees, communities and dense features.

    It is written within 2GB of memory, or the given limit, and may be larger than that.
    """
    from unifews.datasets.powerlaw_files import write_powerlaw
    from unifews.resources import parse_count

    check_folder(out, overwrite)
    with console.progress_bar("generating") as progress, resumable(out):
        dataset = write_powerlaw(
            out,
            parse_count(num_nodes, "num_nodes"),
            parse_count(num_edges, "num_edges"),
            num_features=num_features or 0,
            num_classes=num_classes or 0,
            exponent=exponent,
            homophily=homophily,
            seed=seed,
            memory=memory,
            overwrite=overwrite,
            restart=restart,
            progress=progress,
        )
    report_dataset(dataset, out, as_json)


@command(app, example="unifews data generate gencat --num-nodes 5000 --num-edges 20000 --like citeseer --out made")
def gencat(
    out: Out,
    nodes: NumNodes = "1000",
    edges: NumEdges = "5000",
    alpha: Exponent = 2.1,
    sigma: Annotated[float, flag("--sigma", panel=GRAPH, metavar="S", help="Standard deviation of the feature noise.")] = 1.0,
    features: NumFeatures = None,
    classes: NumClasses = None,
    like: Annotated[
        str | None,
        flag("--like", panel=GRAPH, metavar="DATASET", help="Follow the classes and features of it; default: Cora."),
    ] = None,
    binary: Annotated[bool, flag("--binary", panel=GRAPH, help="Binary features in a sparse matrix.")] = False,
    compat: Annotated[bool, flag("--compat", panel=GRAPH, help="Degrees and class sizes as in the authors' code.")] = False,
    seed: Seed = 907,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Generate a GenCAT graph: classes, edges and features are correlated as in Cora or another dataset.

    Numbers of features and classes default to those of that dataset; --num-edges 0 derives the edges from --exponent.
    """
    from unifews.datasets.gencat import gencat as generate
    from unifews.datasets.gencat import statistics
    from unifews.datasets.load import load_dataset
    from unifews.resources import parse_count

    check_folder(out, overwrite)
    with console.status() as show:
        show("generating")
        known = statistics(load_dataset(like)) if like is not None else None
        dataset = generate(
            parse_count(nodes, "nodes"),
            parse_count(edges, "edges") or None,
            alpha,
            sigma,
            statistics=known,
            features=features,
            classes=classes,
            attributes="bernoulli" if binary else "normal",
            seed=seed,
            compat=compat,
            name=out.name,
        )
    if like is not None:
        dataset = replace(dataset, about=replace(dataset.about, notes=(f"follows {like}", *dataset.about.notes)))
    write_dataset(dataset, out, overwrite, as_json)


@command(app, "cora-like", example="unifews data generate cora-like --out cora-like")
def cora_like(out: Out, seed: Seed = 907, overwrite: Overwrite = False, as_json: AsJson = False) -> None:
    """Generate a substitute for Cora: as many nodes, edges, words and classes, with similar statistics."""
    from unifews.datasets import gencat

    check_folder(out, overwrite)
    write_dataset(gencat.cora_like(seed), out, overwrite, as_json)
