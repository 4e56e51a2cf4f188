"""``ovpasses convert``: import, rewrite, write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ovpasses.cli._app import AsJson, InfoFile, Model, Pairs, Passes, Preset, Strict, make_console
from ovpasses.cli._arguments import info_of, model_path, pipeline_of
from ovpasses.cli._stages import Stages
from ovpasses.export import save_ir
from ovpasses.importers import read_model


def convert(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The .xml to write; its .bin goes beside it.")],
    preset: Preset = None,
    passes: Passes = None,
    pairs: Pairs = None,
    strict: Strict = False,
    chunk: Annotated[int | None, typer.Option(help="Tokens of the preset static-prefill.", min=1)] = None,
    context: Annotated[int | None, typer.Option(help="Cells of the static presets, in tokens.", min=1)] = None,
    info: InfoFile = None,
    as_json: AsJson = False,
) -> None:
    """Import, rewrite, write an IR that plain OpenVINO opens, with the report beside it."""
    figures: dict[str, float] = {}
    with Stages(figures, quiet=as_json) as stages:
        path = model_path(model)
        imported = stages.timed("load", lambda: read_model(path, info=info_of(info)))
        pipeline = pipeline_of(preset, passes, pairs, strict, portable=True, chunk=chunk, context=context)
        report = stages.timed("rewrite", lambda: pipeline.run(imported))
        stages.timed("write", lambda: save_ir(imported, output))
    beside = output.with_suffix(".report.json")
    beside.write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    if as_json:
        print(
            json.dumps(
                {"output": str(output), "report_file": str(beside), "figures": figures, "report": report.to_dict()}
            )
        )
    else:
        console = make_console()
        console.print(report.table())
        console.print(
            f"wrote {output}, {output.with_suffix('.bin').name} and {beside.name}", highlight=False, soft_wrap=True
        )
