"""`unifews data generate`: datasets that are made up; and how a dataset is written and reported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unifews.cli import output
from unifews.cli.run import Interrupted, group, help_if_alone
from unifews.errors import InputError, MissingFileError

if TYPE_CHECKING:
    from unifews.datasets.dataset import Dataset, Summary

app = group()

_Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The dataset folder to write.")]
_Seed = Annotated[int, typer.Option(metavar="N", help="Same seed, same dataset.")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing dataset.")]
_Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
Memory = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory this may take, such as 500MB; 2GB unless given.")]
Again = Annotated[bool, typer.Option("--again", help="Start afresh instead of going on with what was interrupted.")]

_SUMMED_UP = 200_000_000  # edges and features that a summary may look at: some ten seconds


@app.callback(invoke_without_command=True)
def generate(context: typer.Context) -> None:
    """Make up a dataset."""
    help_if_alone(context)


@app.command()
def powerlaw(
    out: _Out,
    nodes: Annotated[str, typer.Option(metavar="N", help="Nodes; 5e7 is a number too.")] = "10000",
    edges: Annotated[str, typer.Option(metavar="M", help="Directed edges: an undirected one counts twice.")] = "200000",
    features: Annotated[int, typer.Option(metavar="F", help="Features.")] = 128,
    classes: Annotated[int, typer.Option(metavar="K", help="Classes.")] = 16,
    exponent: Annotated[float, typer.Option(metavar="G", help="Nodes of degree d are as frequent as d^-G.")] = 2.5,
    homophily: Annotated[float, typer.Option(metavar="H", help="Share of the edges within a class.")] = 0.7,
    seed: _Seed = 907,
    memory: Memory = None,
    overwrite: _Overwrite = False,
    again: Again = False,
    as_json: _Json = False,
) -> None:
    """A graph of any size, larger than memory too, with power-law degrees, communities and dense features."""
    from unifews.datasets.powerlaw_files import write_powerlaw
    from unifews.resources import parse_count

    check_out(out, overwrite)
    with output.stages("generating") as progress, resumable(out):
        dataset = write_powerlaw(
            out, parse_count(nodes, "nodes"), parse_count(edges, "edges"), num_features=features, num_classes=classes,
            exponent=exponent, homophily=homophily, seed=seed, memory=memory, overwrite=overwrite, again=again,
            progress=progress,
        )  # fmt: skip
    tell(dataset, out, as_json)


@app.command()
def gencat(
    out: _Out,
    nodes: Annotated[int, typer.Option(metavar="N", help="Nodes.")] = 1000,
    edges: Annotated[int, typer.Option(metavar="M", help="Undirected edges, each stored twice; 0: as alpha has it.")] = 5000,
    alpha: Annotated[float, typer.Option(metavar="A", help="Nodes of degree d are as frequent as d^-A.")] = 2.1,
    sigma: Annotated[float, typer.Option(metavar="S", help="Noise on the features.")] = 1.0,
    features: Annotated[int | None, typer.Option(metavar="F", help="Features, those of LIKE unless given.")] = None,
    classes: Annotated[int | None, typer.Option(metavar="K", help="Classes, those of LIKE unless given.")] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Dataset whose classes and features it follows; Cora's, built in, unless given."),
    ] = None,
    binary: Annotated[bool, typer.Option("--binary", help="Features 0 or 1, stored sparse.")] = False,
    compat: Annotated[bool, typer.Option("--compat", help="Degrees and class sizes as in the authors' code.")] = False,
    seed: _Seed = 907,
    overwrite: _Overwrite = False,
    as_json: _Json = False,
) -> None:
    """A GenCAT graph: classes, edges and features go together as in Cora, or as in LIKE."""
    from unifews.datasets.gencat import gencat as generate
    from unifews.datasets.gencat import statistics
    from unifews.datasets.load import load_dataset

    check_out(out, overwrite)
    with output.stage() as say:
        say("generating")
        known = statistics(load_dataset(like)) if like is not None else None
        dataset = generate(
            nodes, edges or None, alpha, sigma, statistics=known, features=features, classes=classes,
            attributes="bernoulli" if binary else "normal", seed=seed, compat=compat, name=out.name,
        )  # fmt: skip
    if like is not None:
        dataset = replace(dataset, about=replace(dataset.about, notes=(f"follows {like}", *dataset.about.notes)))
    write(dataset, out, overwrite, as_json)


@app.command("cora-like")
def like_cora(out: _Out, seed: _Seed = 907, overwrite: _Overwrite = False, as_json: _Json = False) -> None:
    """A stand-in for Cora where it cannot be had: as many nodes, edges, words and classes, mixed as there."""
    from unifews.datasets.gencat import cora_like

    check_out(out, overwrite)
    write(cora_like(seed), out, overwrite, as_json)


# -------------------------------------------------------------------------------------------------- writing and showing


def check_out(out: Path, overwrite: bool, noun: str = "dataset") -> None:
    """A folder that cannot be written should come to light before the work is done."""
    from unifews.core.graph_folder import KIND as GRAPH
    from unifews.datasets.folder import KIND as DATASET
    from unifews.storage.journal import folder_of

    kind = DATASET if noun == "dataset" else GRAPH
    parent = out.resolve().parent
    if not parent.is_dir():
        raise MissingFileError(f"cannot write {out}: there is no folder {parent}.")
    if not os.access(parent, os.W_OK):
        raise InputError(f"cannot write {out}: the folder {parent} is write-protected.")
    if out.exists() and not kind.describes(out):
        raise InputError(f"{out} already exists and is no {noun}, so it is not replaced; give --out another name.")
    if out.exists() and not overwrite and not folder_of(out).exists():
        raise InputError(f"{out} already exists; add --overwrite to replace it, or give --out another name.")


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Ctrl-C in work that the next call goes on with."""
    from unifews.storage.journal import folder_of

    try:
        yield
    except KeyboardInterrupt as error:
        kept = f"what is done is kept in {folder_of(out)}, and the same command goes on with it"
        raise Interrupted(f"interrupted; {kept if folder_of(out).exists() else 'nothing was written'}.") from error


def write(dataset: Dataset, out: Path, overwrite: bool, as_json: bool) -> None:
    """Write a dataset and say what is in it."""
    from unifews.datasets.folder import save_dataset

    save_dataset(dataset, out, overwrite=overwrite)
    tell(dataset, out, as_json)


def tell(dataset: Dataset, out: Path, as_json: bool) -> None:
    """Say what is in a dataset that was written: a summary, or the counts alone of one that is too large to look through."""
    from unifews.datasets.dataset import summarise

    if dataset.graph.num_edges + dataset.num_nodes * dataset.num_features > _SUMMED_UP:
        counts = {
            "name": dataset.name, "source": dataset.about.source, "num_nodes": dataset.num_nodes,
            "num_edges": dataset.graph.num_edges, "num_features": dataset.num_features, "num_classes": dataset.num_classes,
            "notes": list(dataset.about.notes),
        }  # fmt: skip
        if as_json:
            output.print_json({**counts, "out": str(out)})
        else:
            output.console().print(f"{dataset!r}: wrote {out}; unifews data info {out} tells more", soft_wrap=True)
        return
    summary = summarise(dataset)
    if as_json:
        output.print_json({**summary.to_dict(), "out": str(out)})
        return
    show(summary)
    output.console().print(f"wrote {out}", soft_wrap=True)


def show(summary: Summary) -> None:
    """Print a summary, a fact per line."""
    degrees = summary.degrees
    kind = f"{'undirected' if summary.undirected else 'directed'}{', weighted' if summary.weighted else ''}"
    component = ", the largest component" if summary.component == "largest" else ""
    values = "dense" if summary.nonzero is None else f"{summary.nonzero:.2%} of them not 0"
    train, val, test = summary.split_sizes
    sizes = sorted(summary.class_sizes)
    spread = f" of {sizes[0]:,} to {sizes[-1]:,} nodes" if sizes else ""  # nothing to span where no node has a label
    facts = {
        "nodes": f"{summary.num_nodes:,}{component}",
        "edges": f"{summary.num_edges:,}, {kind}, self-loops not counted",
        "degrees": f"{degrees.least:,} to {degrees.most:,}, median {degrees.median:g}, mean {degrees.mean:.2f}; "
        f"{degrees.isolated:,} isolated",
        "features": f"{summary.num_features:,}, {values}",
        "labels" if summary.multilabel else "classes": f"{summary.num_classes}{spread}; {summary.labelled:,} nodes labelled",
        "homophily": "-" if summary.homophily is None else f"{summary.homophily:.3f} of the edges join a class to itself",
        "split": f"{train:,} / {val:,} / {test:,} nodes; {summary.convention}",
        "metric": summary.metric,
        "source": summary.source,
    }
    console = output.console()
    console.print(summary.name)
    for name, value in facts.items():
        console.print(f"  {name:<10} {value}", soft_wrap=True)
    for note in summary.notes:
        console.print(f"  {'note':<10} {note}", soft_wrap=True)
