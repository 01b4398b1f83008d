"""`unifews methods`: the pruning methods and their settings."""

from __future__ import annotations

from unifews.cli import console
from unifews.cli.options import AsJson


def methods(as_json: AsJson = False) -> None:
    """List the pruning methods with their models, papers and settings."""
    from unifews.methods import registry

    cards, broken = registry.cards()
    rows: list[console.Json] = []
    for card in cards:
        about = {"name": card.name, "prunes": list(card.prunes), "backbones": list(card.backbones), "paper": card.paper}
        rows.append({**about, "settings": registry.settings_of(card.name)})
    if as_json:
        console.print_json({"methods": rows, "broken": broken})
        return
    table = console.new_table(("method", "prunes", "models", "paper"), wrap=("prunes", "models", "paper"))
    for row in rows:
        table.add_row(row["name"], ", ".join(row["prunes"]), ", ".join(row["backbones"]), row["paper"])
    console.print_table(table, wrap=True)
    for row in rows:
        if row["settings"]:
            settings = ",".join(f"{name}={str(value).lower()}" for name, value in row["settings"].items())
            console.echo(f"{row['name']}:{settings}")
    console.echo("These are the default settings; change them as in --method ndls:epsilon=0.05.")
    for reason in broken.values():
        console.note(reason)
