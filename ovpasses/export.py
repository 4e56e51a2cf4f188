"""Write a rewritten model as an IR that plain OpenVINO opens."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import openvino

from ovpasses.errors import ModelReadError, RewriteError
from ovpasses.importers import ImportedModel
from ovpasses.importers._walk import all_ops
from ovpasses.importers.graph_info import INFO_KEY


def save_ir(imported: ImportedModel, path: Path) -> None:
    """Write ``path`` (.xml) and its .bin; what is known of the model (``info``) goes along in its rt_info.

    Both files appear whole or not at all: they are written beside the target and renamed.

    Args:
        imported: the model.
        path: the .xml to write.

    Raises:
        RewriteError: the model holds an internal operation, which no OpenVINO reads back.
        ModelReadError: the path does not end in .xml or its folder is not there.
    """
    if path.suffix != ".xml":
        raise ModelReadError(f"{path}: an IR ends in .xml")
    if not path.parent.is_dir():
        raise ModelReadError(f"{path}: the folder {path.parent} is not there")
    held = [op for op in all_ops(imported.model) if op.get_type_info().version_id == "extension"]
    if held:
        kinds = ", ".join(sorted({op.get_type_name() for op in held}))
        lowered = all(op.get_type_name() == "GatedDeltaNet" for op in held)
        advice = "lower it first, with LowerGatedDeltaNet or a portable preset" if lowered else "no pass lowers it yet"
        raise RewriteError(
            f"{held[0].get_friendly_name()}: OpenVINO cannot read back the internal op {kinds} ({len(held)} of them); "
            f"{advice}"
        )
    imported.model.set_rt_info(json.dumps(imported.info.to_dict()), list(INFO_KEY))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}.") as folder:
        written = Path(folder) / path.name
        openvino.save_model(imported.model, written, compress_to_fp16=False)
        written.with_suffix(".bin").replace(path.with_suffix(".bin"))
        written.replace(path)
