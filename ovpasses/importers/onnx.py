"""ONNX files, through OpenVINO's ONNX frontend."""

from __future__ import annotations

from pathlib import Path

from openvino import Core, Model

from ovpasses.errors import ModelReadError, one_line


def read_onnx(path: Path) -> Model:
    """Read an ``.onnx`` with its external data beside it.

    Raises:
        ModelReadError: no ONNX, a missing external file, or an op that OpenVINO does not know.
    """
    try:
        return Core().read_model(str(path))
    except Exception as error:
        raise ModelReadError(f"{path}: OpenVINO cannot read this ONNX model: {one_line(error)}") from error
