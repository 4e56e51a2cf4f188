"""From a file to an :class:`ImportedModel`: GGUF, IR (dumps with internal ops included), ONNX, or an ``ov.Model``."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from openvino import Model

from ovpasses._tables import html_table
from ovpasses.errors import ModelReadError
from ovpasses.importers.cgraph import FILE_NAME as CGRAPH_FILE
from ovpasses.importers.cgraph import info_from_cgraph
from ovpasses.importers.graph_info import ATTENTION, GraphInfo, LayerInfo, info_from_graph, info_from_rt_info, merged
from ovpasses.importers.input_roles import input_roles
from ovpasses.importers.sliding_mask import separate_sliding_masks

__all__ = ["GraphInfo", "ImportedModel", "LayerInfo", "read_model"]

log = logging.getLogger(__name__)

SUFFIXES = (".gguf", ".xml", ".onnx")


@dataclass
class ImportedModel:
    """A graph and what is known of it.

    Attributes:
        model: the graph; passes and pipelines rewrite it in place.
        info: per-layer heads, sizes and windows, position planes, vocabulary.
        source: the file it came from, None for a model given in memory.
    """

    model: Model
    info: GraphInfo = field(default_factory=GraphInfo)
    source: Path | None = None

    def _repr_html_(self) -> str:
        model = self.model
        counts = {"ops": len(model.get_ops()), "inputs": len(model.inputs), "outputs": len(model.outputs)}
        rows = [[name, str(count)] for name, count in {**counts, "states": len(model.get_variables())}.items()]
        name = self.source.name if self.source else model.get_friendly_name()
        return html_table(name, ("holds", "number"), rows) + self.info._repr_html_()


def read_model(source: str | os.PathLike[str] | Model, *, info: GraphInfo | None = None) -> ImportedModel:
    """Read a model.

    Args:
        source: path of a ``.gguf``, ``.xml`` (``cgraph_ov.txt`` beside it is read too) or ``.onnx``, or an
            ``ov.Model`` (used as it is, not copied).
        info: what the caller knows of the model; it wins over what file and graph say. The roles of the inputs are
            always the graph's own. Sliding layers that an IR masks as it masks full ones, as llama.cpp's dumps do, get
            a mask input of their own, ``<name>_swa``, when this says which they are.

    Returns:
        The model with its :class:`GraphInfo`.

    Raises:
        ModelReadError: the file is missing, damaged, of no known format, or holds what cannot be read.
    """
    if isinstance(source, Model):
        if info is not None:
            separate_sliding_masks(source, info)
        return ImportedModel(source, _of_graph(info, source) if info else _info(source))
    path = Path(source)
    try:
        there, folder = path.is_file(), path.is_dir()
    except OSError as error:  # as of a name that no disk takes
        raise ModelReadError(f"{path}: cannot be read: {error.strerror}") from error
    if not there:
        kind = "a folder" if folder else "not there"
        raise ModelReadError(f"{path}: is {kind}, wanted a {', '.join(SUFFIXES)} file")
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        from ovpasses.importers.gguf import read_gguf

        model, found = read_gguf(path)
        known = info or found
        separate_sliding_masks(model, known)
        return ImportedModel(model, _of_graph(known, model), path)
    if suffix == ".xml":
        from ovpasses.importers.ir import read_ir

        model = read_ir(path)
        if info is not None:
            separate_sliding_masks(model, info)
    elif suffix == ".onnx":
        from ovpasses.importers.onnx import read_onnx

        model = read_onnx(path)
    else:
        raise ModelReadError(f"{path}: suffix {suffix or '(none)'} is not known, wanted {', '.join(SUFFIXES)}")
    return ImportedModel(model, _of_graph(info, model) if info else _info(model, path), path)


def _info(model: Model, path: Path | None = None) -> GraphInfo:
    kept = info_from_rt_info(model)
    window = kept.windows[0] if kept is not None and kept.windows else None
    graph = info_from_graph(model, window=window)
    info = graph if kept is None else merged(graph, kept, "the IR's rt_info")
    ggml_graph = path.parent / CGRAPH_FILE if path is not None and path.suffix.lower() == ".xml" else None
    if ggml_graph is not None and ggml_graph.is_file():
        info = merged(info, info_from_cgraph(ggml_graph), f"{CGRAPH_FILE} beside it")
    for line in (*info.contradictions, *_unknown_windows(info, model)):
        log.warning("%s: %s", path or "model", line)
    return info


def _unknown_windows(info: GraphInfo, model: Model) -> list[str]:
    """What hints at sliding layers whose window nothing tells; run as they are, they are right inside it only."""
    sizes = {(one.n_heads_kv, one.key_size) for one in info.layers if one.kind == ATTENTION and one.key_size}
    masks = {role for role in input_roles(model).values() if role in ("self_kq_mask", "self_kq_mask_swa")}
    if info.windows or len(sizes) < 2 or masks != {"self_kq_mask"}:
        return []
    return [
        "attention layers differ in their heads, as those of models with sliding windows do, and share one mask; "
        "if it is one, give the info of its GGUF (info=, on the command line --info)"
    ]


def _of_graph(info: GraphInfo, model: Model) -> GraphInfo:
    """A caller's info with the roles of this graph's inputs; the same object when names tell them all."""
    roles = input_roles(model)
    told = all(info.roles.get(name, name) == role for name, role in roles.items())
    return info if told else replace(info, roles=roles)
