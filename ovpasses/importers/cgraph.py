"""``cgraph_ov.txt``, which llama.cpp's OpenVINO backend writes beside an IR (``GGML_OPENVINO_DUMP_CGRAPH=1``)."""

from __future__ import annotations

import re
from pathlib import Path

from ovpasses.ggml_names import CACHE_NAME
from ovpasses.importers.graph_info import ATTENTION, GraphInfo, LayerInfo

FILE_NAME = "cgraph_ov.txt"

# " -  23: [    16,     4,   256,     1] VIEW   cache_k_l0 (view)   [ 2, ...": dims are written innermost first.
_VIEW = re.compile(
    r"^\s*-\s*\d+:\s*\[\s*(?P<size>\d+),\s*(?P<heads>\d+),\s*\d+,\s*\d+\]\s+VIEW\s+(?P<name>cache_[kv]_l\d+)"
)
_WIDTH = re.compile(r"^\s*\[\s*(?P<width>\d+),.*?\]\s+\d+:\s+NONE\s+(?P<name>cache_[kv]_l\d+)\s")


def info_from_cgraph(path: Path) -> GraphInfo:
    """Heads and sizes per layer, from the views through which ggml's attention reads its caches.

    Args:
        path: the text file.

    Returns:
        The attention layers found; none when the file is in another format.
    """
    widths: dict[str, int] = {}
    views: dict[str, tuple[int, int]] = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        width = _WIDTH.match(line)
        if width is not None:
            widths[width["name"]] = int(width["width"])
    for line in lines:
        view = _VIEW.match(line)
        # A view for writing, or of transposed values, does not split a row of the cache.
        if view is not None and int(view["size"]) * int(view["heads"]) == widths.get(view["name"]):
            views[view["name"]] = (int(view["heads"]), int(view["size"]))
    return GraphInfo(layers=tuple(_layers(views)))


def _layers(views: dict[str, tuple[int, int]]) -> list[LayerInfo]:
    found = []
    for name, (heads, size) in views.items():
        match = CACHE_NAME.search(name)
        if match is not None and match["kind"] == "cache_k":
            value = views.get(name.replace("cache_k", "cache_v"))
            found.append(LayerInfo(int(match["layer"]), ATTENTION, heads, size, value[1] if value else None))
    return sorted(found, key=lambda layer: layer.index)
