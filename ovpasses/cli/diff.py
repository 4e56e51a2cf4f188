"""``ovpasses diff``: whether two graphs are the same."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ovpasses.cli._app import AsJson, make_console
from ovpasses.cli._arguments import model_path
from ovpasses.equivalence import compare_structure
from ovpasses.importers import read_model


def diff(
    a: Annotated[str, typer.Argument(help="A model.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
    names: Annotated[bool, typer.Option(help="Compare friendly names and tensor names too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Whether two graphs are the same but for names and order; exit code 1 when not, with the first differences."""
    found = compare_structure(read_model(model_path(a)), read_model(model_path(b)), names=names)
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        make_console().print(str(found), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if found.same else 1)
