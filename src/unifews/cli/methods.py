"""`unifews methods`: who can decide what goes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from unifews.cli import output


def methods(as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """List the methods: what each removes, from which models, and whose it is; and its settings."""
    from unifews.methods import registry

    cards, broken = registry.cards()
    rows: list[dict[str, Any]] = [
        {
            "name": card.name,
            "prunes": list(card.prunes),
            "backbones": list(card.backbones),
            "paper": card.paper,
            "settings": registry.settings_of(card.name),
        }
        for card in cards
    ]
    if as_json:
        output.print_json({"methods": rows, "broken": broken})
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for title in ("method", "removes", "models", "paper"):
        table.add_column(title, no_wrap=title == "method")
    for row in rows:
        table.add_row(row["name"], ", ".join(row["prunes"]), ", ".join(row["backbones"]), row["paper"])
    console = output.console()
    console.print(table)
    for row in rows:
        if row["settings"]:
            written = ",".join(f"{name}={str(value).lower()}" for name, value in row["settings"].items())
            console.print(f"{row['name']}:{written}", markup=False, soft_wrap=True)
    console.print("Settings are given with the name, --method ndls:epsilon=0.05; those above are the defaults.", soft_wrap=True)
    for sentence in broken.values():
        output.note(sentence)
