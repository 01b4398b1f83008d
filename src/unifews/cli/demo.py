"""`unifews demo`: what pruning does, in one go."""

from __future__ import annotations

from typing import Annotated

import typer

from unifews.cli import output


def demo(as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False) -> None:
    """Make a graph with classes, propagate it unpruned and pruned, and compare cost, error and accuracy. No download."""
    from unifews import demo as module

    with output.stage() as say:
        result = module.run(say)
    if as_json:
        output.print_json(result.to_dict())
        return
    table = module.table(result)
    console = output.console(table)
    console.print(module.before(result), soft_wrap=True)
    console.print(table)
    console.print(module.AFTER, soft_wrap=True)
