"""``ovpasses passes``: the passes and presets."""

from __future__ import annotations

import json

from rich.table import Table

from ovpasses.cli._app import AsJson, make_console
from ovpasses.pipeline import PASSES, PRESETS


def list_passes(as_json: AsJson = False) -> None:
    """The passes and presets, one line each."""
    lines = {name: (kind.__doc__ or "").strip().splitlines()[0] for name, kind in PASSES.items()}
    presets = {name: [type(p).__name__ for p in make(False, False)] for name, make in PRESETS.items()}
    if as_json:
        print(json.dumps({"passes": lines, "presets": presets}))
        return
    table = Table("pass", "does")
    for name, line in lines.items():
        table.add_row(f"{name}\n{PASSES[name].cli_name()}", line)
    chosen = Table("preset", "passes, in order")
    for name, members in presets.items():
        chosen.add_row(name, ", ".join(members))
    console = make_console()
    console.print(table)
    console.print(chosen)
