"""``ovpasses inspect``: what is in a model, and what each pass would do to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ovpasses import inspection
from ovpasses.cli._app import AsJson, InfoFile, Model, Preset, make_console
from ovpasses.cli._arguments import info_of, model_path
from ovpasses.importers import ImportedModel, read_model
from ovpasses.pipeline import Pipeline
from ovpasses.visualize import Picture, PictureError, open_in_netron, rewrite, subgraph
from ovpasses.visualize._picture import needed


def inspect(
    model: Model,
    info: InfoFile = None,
    as_json: AsJson = False,
    picture: Annotated[
        Path | None, typer.Option(help="Write a picture (.svg) instead, of what --node or --pass names.")
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="What to picture: a node, tensor or state; with --pass a place it rewrites.")
    ] = None,
    chosen: Annotated[
        str | None, typer.Option("--pass", help="The pass whose work to picture, before and after.")
    ] = None,
    preset: Preset = None,
    hops: Annotated[int, typer.Option(help="How far around --node the picture goes, in edges.", min=0)] = 2,
    netron: Annotated[bool, typer.Option("--netron", help="Show the whole model in netron, if installed.")] = False,
) -> None:
    """Inputs, outputs, states, layers, and for every pass what it would match and what not, and why.

    With --preset the pass of a picture is pictured as part of that preset's run.
    """
    path = model_path(model)
    if path.suffix.lower() == ".safetensors":
        from ovpasses.cli._state_file import print_state_file

        print_state_file(path, as_json)
        return
    if picture is None and (node or chosen or preset):
        raise PictureError("--node, --pass and --preset are of a picture: wanted --picture OUT.svg too")
    imported = read_model(path, info=info_of(info))
    if netron:
        print(f"{open_in_netron(imported)} (Ctrl-C ends it)", flush=True)
        needed("netron").wait()
    elif picture is not None:
        made = _picture(imported, node, chosen, preset, hops)
        made.save(picture)
        print(json.dumps({"picture": str(picture), "title": made.title}) if as_json else f"{picture}: {made.title}")
    else:
        _print(inspection.inspect_model(imported), as_json)


def _picture(imported: ImportedModel, node: str | None, chosen: str | None, preset: str | None, hops: int) -> Picture:
    if chosen is None:
        if node is None:
            raise PictureError("--picture needs what to picture: --node NAME, or --pass NAME")
        return subgraph(imported, node, hops)
    if preset is None:
        return rewrite(imported, chosen, site=node)
    return rewrite(Pipeline.preset(preset).run(imported), chosen, site=node)


def _print(found: inspection.Inspection, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    console = make_console()
    for table in found.tables():
        console.print(table)
