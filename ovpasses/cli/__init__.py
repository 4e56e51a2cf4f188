"""The command line, a module per command."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ovpasses import __version__
from ovpasses.cli import bench, check, convert, diff, inspect, passes, run
from ovpasses.cli._app import app
from ovpasses.errors import OvpassesError, one_line

# In the order that --help lists them.
app.command("run")(run.run)
app.command("convert")(convert.convert)
app.command("inspect")(inspect.inspect)
app.command("diff")(diff.diff)
app.command("check")(check.check)
app.command("bench")(bench.bench)
app.command("passes")(passes.list_passes)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: 0 done, 2 bad input or usage, with one line on stderr that says what is wrong."""
    try:
        code = app(args=arguments, standalone_mode=False)
    except typer.Abort:
        _fail("interrupted", 130)
    except OvpassesError as error:
        _fail(str(error))
    except (OSError, MemoryError) as error:
        _fail(f"{type(error).__name__}: {error}")
    except Exception as error:
        if hasattr(error, "format_message"):  # click's and typer's own usage errors
            _fail(f"{error.format_message()} (see ovpasses --help)")
        if os.environ.get("OVPASSES_DEBUG"):
            raise
        kind = type(error).__name__
        _fail(f"internal error, {kind}: {one_line(error)}; OVPASSES_DEBUG=1 shows where, please report it")
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int = 2) -> None:
    print(f"ovpasses: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit
