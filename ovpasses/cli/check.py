"""``ovpasses check``: whether two models give the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ovpasses.cli._app import AsJson, InfoFile, make_console
from ovpasses.cli._arguments import info_of, model_path
from ovpasses.equivalence import CheckError, compare_numbers
from ovpasses.importers import GraphInfo, ImportedModel, read_model


def check(
    a: Annotated[str, typer.Argument(help="A model, or a static pair as PREFILL,DECODE.")],
    b: Annotated[str, typer.Argument(help="Another one, of any form of the same model.")],
    steps: Annotated[str, typer.Option(help="Tokens of each step, as 7,1,1.")] = "7,1,1",
    seed: Annotated[int, typer.Option(help="Of the inputs.", min=0)] = 0,
    nmse: Annotated[
        float | None, typer.Option(help="Tolerance; by default it follows from the types of states and caches.", min=0)
    ] = None,
    info: InfoFile = None,
    as_json: AsJson = False,
) -> None:
    """Whether two models give the same numbers on the same inputs, states included; exit code 1 when not.

    Both run on the CPU in f32, through several steps.
    """
    known = info_of(info)
    models = [_models(argument, known) for argument in (a, b)]
    report = compare_numbers(*models, steps=_steps(steps), seed=seed, nmse=nmse)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        console = make_console()
        if report.comparisons:
            console.print(report.table())
        console.print(str(report), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if report.equivalent else 1)


def _models(argument: str, info: GraphInfo | None) -> ImportedModel | tuple[ImportedModel, ...]:
    paths = [argument] if Path(argument).exists() else argument.split(",")
    found = tuple(read_model(model_path(path), info=info) for path in paths)
    return found[0] if len(found) == 1 else found


def _steps(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise CheckError(f"--steps {text}: wanted numbers of tokens, as 7,1,1") from error
