"""Room for labels in the frames of a picture: Graphviz makes a frame as wide as its nodes, whatever edges carry."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

MARGIN = 10  # points between a frame and what it holds

_SVG = "{http://www.w3.org/2000/svg}"
_LETTER = 0.6  # width of a letter of a monospaced font, in ems


@dataclass(frozen=True)
class Frame:
    """A frame of a drawn picture.

    Attributes:
        name: what the ids of its nodes begin with.
        left, right: of the frame, in points.
        labels: left and right end of every edge's label in it, in points.
    """

    name: str
    left: float
    right: float
    labels: tuple[tuple[float, float], ...]

    @property
    def overhang(self) -> float:
        """How far the widest label stands out, in points; 0 when none does."""
        ends = [max(self.left - begin, end - self.right) for begin, end in self.labels]
        return max([0.0, *ends])


def frames(svg: str) -> Iterator[Frame]:
    """The frames of a picture, as it was drawn."""
    groups = [
        (group.get("class", ""), group) for group in ElementTree.fromstring(svg[svg.index("<svg") :]).iter(f"{_SVG}g")
    ]
    labels = [
        (group.findtext(f"{_SVG}title", ""), _extent(text))
        for kind, group in groups
        if kind.split(" ")[0] == "edge"
        for text in group.iter(f"{_SVG}text")
    ]
    for kind, group in groups:
        if kind.split(" ")[0] != "cluster":
            continue
        name = group.findtext(f"{_SVG}title", "").removeprefix("cluster_")
        drawn = [part.get("d") or part.get("points") or "" for part in group if part.tag != f"{_SVG}title"]
        xs = [float(x) for outline in drawn for x in re.findall(r"(-?[\d.]+),-?[\d.]+", outline)]
        yield Frame(name, min(xs), max(xs), tuple(ends for title, ends in labels if title.startswith(name)))


def with_room(source: str, svg: str) -> str:
    """The DOT text with wider margins where labels stand out of a frame as it was drawn."""
    for frame in frames(svg):
        if frame.overhang:
            margin = math.ceil(frame.overhang) + 2 * MARGIN
            start = source.index(f"subgraph cluster_{frame.name} ")
            source = source[:start] + source[start:].replace(f"margin={MARGIN}", f"margin={margin}", 1)
    return source


def _extent(text: ElementTree.Element) -> tuple[float, float]:
    size = float(text.get("font-size", "9"))
    half = len((text.text or "").strip("\N{NO-BREAK SPACE} ")) * size * _LETTER / 2
    middle = float(text.get("x", "0"))
    return middle - half, middle + half
