"""``ovpasses check``: whether two models give the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ovpasses.cli._app import AsJson, InfoFile, make_console
from ovpasses.cli._arguments import info_of, model_path
from ovpasses.equivalence import CheckError, compare_numbers
from ovpasses.equivalence.numbers import STEPS
from ovpasses.errors import ModelReadError
from ovpasses.importers import GraphInfo, ImportedModel, read_model

# As llama.cpp's OpenVINO backend names the two models of a static dump.
PAIR = ("model_prefill.xml", "model_decode.xml")


def check(
    a: Annotated[
        str, typer.Argument(help=f"A model, 'demo', or a static pair: PREFILL,DECODE or a folder with {PAIR[0]}.")
    ],
    b: Annotated[str, typer.Argument(help="Another one, of any form of the same model.")],
    steps: Annotated[str, typer.Option(help="Tokens of each step.")] = ",".join(map(str, STEPS)),
    seed: Annotated[int, typer.Option(help="Of the inputs.", min=0)] = 0,
    nmse: Annotated[
        float | None, typer.Option(help="Tolerance; by default it follows from the types of states and caches.", min=0)
    ] = None,
    stateful: Annotated[
        bool,
        typer.Option(
            "--stateful", help="Run what cannot run as it is, such as a GGUF, through the preset stateful first."
        ),
    ] = False,
    info: InfoFile = None,
    info_a: Annotated[Path | None, typer.Option("--info-a", help="The same, of A alone.")] = None,
    info_b: Annotated[Path | None, typer.Option("--info-b", help="The same, of B alone.")] = None,
    as_json: AsJson = False,
) -> None:
    """Whether two models give the same numbers on the same inputs, states included; exit code 1 when not.

    Both run on the CPU in f32, through several steps. Neither file is changed.
    """
    models = [_models(argument, info_of(own or info)) for argument, own in ((a, info_a), (b, info_b))]
    report = compare_numbers(*models, steps=_steps(steps), seed=seed, nmse=nmse, stateful=stateful)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        console = make_console()
        if report.comparisons:
            console.print(report.table())
        for line in report.lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if report.equivalent else 1)


def _models(argument: str, info: GraphInfo | None) -> ImportedModel | tuple[ImportedModel, ...]:
    path = Path(argument)
    if path.is_dir():
        paths = [str(path / name) for name in PAIR]
        missing = [name for name in PAIR if not (path / name).is_file()]
        if missing:
            raise ModelReadError(f"{path}: is a folder without {missing[0]}; give a model file or PREFILL,DECODE")
    else:
        paths = [argument] if path.exists() else argument.split(",")
    found = tuple(read_model(model_path(one), info=info) for one in paths)
    return found[0] if len(found) == 1 else found


def _steps(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise CheckError(f"--steps {text}: wanted numbers of tokens, as 7,1,3,1") from error
