"""OpenVINO IR, dumps that hold internal operations included."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from openvino import Core, Model

from ovpasses._openvino import RELEASE, upgrade
from ovpasses.errors import ModelReadError, one_line
from ovpasses.importers.internal_ops import INTERNAL_OPS, register


def read_ir(path: Path) -> Model:
    """Read an ``.xml`` with its ``.bin`` beside it.

    Raises:
        ModelReadError: no IR, no ``.bin``, or an extension op that is not known.
    """
    needed = 0
    internal = ""
    root: ElementTree.Element | None = None
    known = {op.class_type_info.name for op in INTERNAL_OPS}
    try:
        for event, element in ElementTree.iterparse(path, ("start", "end")):
            if event == "start":
                if root is None and element.tag != "net":
                    raise ModelReadError(f"{path}: no IR, its root element is {element.tag}, wanted net")
                root = element if root is None else root
                continue
            if element.tag == "data" and element.get("offset") is not None:
                needed = max(needed, int(element.get("offset", 0)) + int(element.get("size", 0)))
            if element.tag != "layer":
                continue
            if element.get("version") == "extension" and element.get("type") not in known:
                raise ModelReadError(
                    f"{path}: layer {element.get('name')} is of the unknown extension op {element.get('type')}; "
                    f"known are {', '.join(sorted(known))}"
                )
            if element.get("version") == "extension" and not internal:
                internal = f"layer {element.get('name')} is the internal op {element.get('type')}"
    except ElementTree.ParseError as error:
        raise ModelReadError(f"{path}: no IR, the XML is damaged: {error}") from error
    weights = path.with_suffix(".bin")
    if needed and not weights.is_file():
        raise ModelReadError(f"{path}: its weights are missing, wanted {weights.name} beside it")
    if needed and weights.stat().st_size < needed:
        found = weights.stat().st_size
        raise ModelReadError(f"{path}: its weights {weights.name} are truncated: {found} bytes, wanted {needed}")
    core = Core()
    if not register(core) and internal:
        raise ModelReadError(f"{path}: {internal}, which OpenVINO {RELEASE} cannot be taught; {upgrade()}")
    try:
        return core.read_model(str(path))
    except Exception as error:
        why = one_line(error)
        hint = f" (this is OpenVINO {RELEASE}); {upgrade()}" if "unsupported opset" in why else ""
        raise ModelReadError(f"{path}: OpenVINO cannot read this IR: {why}{hint}") from error
