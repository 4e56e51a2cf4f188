"""``ovpasses inspect``: what is in a model, and what each pass would do to it."""

from __future__ import annotations

import json

from ovpasses import inspection
from ovpasses.cli._app import AsJson, InfoFile, Model, make_console
from ovpasses.cli._arguments import info_of, model_path
from ovpasses.importers import read_model


def inspect(model: Model, info: InfoFile = None, as_json: AsJson = False) -> None:
    """Inputs, outputs, states, layers, and for every pass what it would match and what not, and why."""
    found = inspection.inspect_model(read_model(model_path(model), info=info_of(info)))
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        for table in found.tables():
            make_console().print(table)
