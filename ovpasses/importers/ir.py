"""OpenVINO IR, dumps that hold internal operations included."""

from __future__ import annotations

from pathlib import Path
from xml.parsers import expat

from openvino import Core, Model

from ovpasses._openvino import RELEASE, upgrade
from ovpasses.errors import ModelReadError, one_line
from ovpasses.importers.internal_ops import INTERNAL_OPS, register


def read_ir(path: Path) -> Model:
    """Read an ``.xml`` with its ``.bin`` beside it.

    Raises:
        ModelReadError: no IR, no ``.bin``, or an extension op that is not known.
    """
    found = _Layers(path)
    needed, internal = found.needed, found.internal
    weights = path.with_suffix(".bin")
    if needed and not weights.is_file():
        raise ModelReadError(f"{path}: its weights are missing, wanted {weights.name} beside it")
    if needed and weights.stat().st_size < needed:
        size = weights.stat().st_size
        raise ModelReadError(f"{path}: its weights {weights.name} are truncated: {size} bytes, wanted {needed}")
    core = Core()
    if not register(core) and internal:
        raise ModelReadError(f"{path}: {internal}, which OpenVINO {RELEASE} cannot be taught; {upgrade()}")
    try:
        return core.read_model(str(path))
    except Exception as error:
        why = one_line(error)
        hint = f" (this is OpenVINO {RELEASE}); {upgrade()}" if "unsupported opset" in why else ""
        raise ModelReadError(f"{path}: OpenVINO cannot read this IR: {why}{hint}") from error


class _Layers:
    """What an IR's text says of its layers; read without building a tree, which would take longer than all the rest.

    Attributes:
        needed: bytes of weights that its constants lie in.
        internal: the first layer that is an internal op, in words; "" without one.

    Raises:
        ModelReadError: no IR, or an extension op that is not known.
    """

    def __init__(self, path: Path) -> None:
        self.needed = 0
        self.internal = ""
        self._path = path
        self._rooted = False
        self._constant = False
        self._known = sorted(op.class_type_info.name for op in INTERNAL_OPS)
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        try:
            with path.open("rb") as file:
                parser.ParseFile(file)
        except (expat.ExpatError, ValueError) as error:
            raise ModelReadError(f"{path}: no IR, the XML is damaged: {error}") from error

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._rooted and tag != "net":
            raise ModelReadError(f"{self._path}: no IR, its root element is {tag}, wanted net")
        self._rooted = True
        if tag == "layer":
            self._constant = attributes.get("type") == "Const"
        if tag == "data" and self._constant and "offset" in attributes:
            self.needed = max(self.needed, int(attributes["offset"]) + int(attributes.get("size", 0)))
        if tag != "layer" or attributes.get("version") != "extension":
            return
        name, kind = attributes.get("name"), attributes.get("type")
        if kind not in self._known:
            raise ModelReadError(
                f"{self._path}: layer {name} is of the unknown extension op {kind}; known are {', '.join(self._known)}"
            )
        self.internal = self.internal or f"layer {name} is the internal op {kind}"
