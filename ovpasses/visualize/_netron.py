"""A whole model in netron, a viewer in the browser."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import openvino
from openvino import Model

from ovpasses.importers import ImportedModel
from ovpasses.visualize._picture import needed


def open_in_netron(model: ImportedModel | Model, *, browse: bool = True) -> str:
    """Show a whole model, as it is now, in netron; the program goes on.

    The graph is written, with its weights, to a temporary folder that goes when the program ends.

    Args:
        model: the model.
        browse: open a browser; without it netron only serves.

    Returns:
        The address that netron serves at.

    Raises:
        PictureError: netron is not installed.
    """
    netron = needed("netron", "pip install netron")
    imported = model if isinstance(model, ImportedModel) else ImportedModel(model)
    folder = Path(tempfile.mkdtemp(prefix="ovpasses-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"{imported.source.stem if imported.source else 'model'}.xml"
    openvino.serialize(imported.model, path)
    host, port = netron.start(str(path), browse=browse)
    return f"http://{host}:{port}"
