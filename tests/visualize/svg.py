"""What an SVG of ovpasses shows, read as XML."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from xml.etree import ElementTree

from ovpasses.visualize import Picture

MINUS = "\N{MINUS SIGN}"
SPACE = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Drawn:
    """A node or an edge: its DOT name, class and lines of text."""

    title: str
    look: str
    lines: tuple[str, ...]

    @property
    def op(self) -> str:
        return self.lines[0].lstrip(f"+~{MINUS} ").split(" ")[0]


def nodes(picture: Picture, side: str = "") -> list[Drawn]:
    return [node for node in drawn(picture.svg, "node") if node.title.startswith(side)]


def edges(picture: Picture, side: str = "") -> list[Drawn]:
    return [edge for edge in drawn(picture.svg, "edge") if edge.title.startswith(side)]


def ops(picture: Picture, side: str, look: str) -> Counter[str]:
    """How many nodes of each op a side draws with a look."""
    return Counter(node.op for node in nodes(picture, side) if node.look == look)


def text(picture: Picture) -> str:
    return "\n".join(element.text or "" for element in ElementTree.fromstring(picture.svg).iter(f"{SPACE}text"))


def drawn(svg: str, kind: str) -> list[Drawn]:
    """The nodes or the edges of an SVG, in the order of their DOT names."""
    found = []
    for group in ElementTree.fromstring(svg.encode()).iter(f"{SPACE}g"):
        first, _, look = group.get("class", "").partition(" ")
        if first == kind:
            lines = tuple((line.text or "").strip() for line in group.iter(f"{SPACE}text"))
            found.append(Drawn(group.findtext(f"{SPACE}title", ""), look, lines))
    return sorted(found, key=lambda one: (one.title, one.lines))
