"""OpenVINO IR, dumps that hold internal operations included."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from openvino import Core, Model

from ovpasses.errors import ModelReadError, one_line
from ovpasses.importers.internal_ops import INTERNAL_OPS, register


def read_ir(path: Path) -> Model:
    """Read an ``.xml`` with its ``.bin`` beside it.

    Raises:
        ModelReadError: no IR, no ``.bin``, or an extension op that is not known.
    """
    needs_weights = False
    known = {op.class_type_info.name for op in INTERNAL_OPS}
    try:
        for _, element in ElementTree.iterparse(path):
            if element.tag != "layer":
                continue
            needs_weights = needs_weights or element.get("type") == "Const"
            if element.get("version") == "extension" and element.get("type") not in known:
                raise ModelReadError(
                    f"{path}: layer {element.get('name')} is of the unknown extension op {element.get('type')}; "
                    f"known are {', '.join(sorted(known))}"
                )
    except ElementTree.ParseError as error:
        raise ModelReadError(f"{path}: no IR, the XML is damaged: {error}") from error
    weights = path.with_suffix(".bin")
    if needs_weights and not weights.is_file():
        raise ModelReadError(f"{path}: its weights are missing, wanted {weights.name} beside it")
    core = Core()
    register(core)
    try:
        return core.read_model(str(path))
    except Exception as error:
        raise ModelReadError(f"{path}: OpenVINO cannot read this IR: {one_line(error)}") from error
