"""Whether ``ovpasses check`` finds rewrites gone wrong: rewritten models are changed in ways that it must find.

``.venv/bin/python scripts/mutants.py`` prints what finds each change, and exits with 1 when one is not found.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ovpasses import OvpassesError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.equivalence.mutants import MUTANTS, killed_by


def main(only: Annotated[str, typer.Option(help="A word of the mutants' names.")] = "") -> None:
    chosen = [one for one in MUTANTS if only in one.name]
    table = Table("mutant", "of", "killed by")
    survivors, started = [], perf_counter()
    for one in chosen:
        try:
            found = killed_by(one.check())
        except OvpassesError as error:
            found = f"refused: {error}"
        survivors += [] if found else [one.name]
        table.add_row(one.name, one.base, found or "NOTHING")
    console = Console()
    console = console if console.is_terminal else Console(width=160)
    console.print(table)
    console.print(f"{len(chosen) - len(survivors)} of {len(chosen)} killed in {perf_counter() - started:.0f} s")
    raise typer.Exit(1 if survivors or not chosen else 0)


if __name__ == "__main__":
    typer.run(main)
