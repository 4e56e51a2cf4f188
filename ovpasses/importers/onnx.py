"""ONNX files, through OpenVINO's ONNX frontend."""

from __future__ import annotations

from pathlib import Path

from openvino import Model
from openvino.frontend import FrontEndManager

from ovpasses.errors import ModelReadError, one_line


def read_onnx(path: Path) -> Model:
    """Read an ``.onnx`` with its external data beside it.

    Raises:
        ModelReadError: no ONNX, a missing external file, or an op that OpenVINO does not know.
    """
    try:
        frontend = FrontEndManager().load_by_framework("onnx")  # Core would ask every frontend, and they log
        return frontend.convert(frontend.load(str(path)))
    except Exception as error:
        raise ModelReadError(f"{path}: OpenVINO cannot read this ONNX model: {one_line(error)}") from error
