"""A chosen part of a graph as DOT."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ovpasses.visualize._changes import CHANGED, KEPT, NEW, REMOVED
from ovpasses.visualize._picture import needed
from ovpasses.visualize._view import Edge, View
from ovpasses.visualize._wording import node_lines

Digraph = Any  # graphviz.Digraph; the package is optional and has no types

FOCUS = "focus"  # the node that a picture is about

_FONT = "Courier"  # every letter of every monospaced font is 0.6 em wide, so text fits whatever font draws it
_GREY = "#5f5f5f"
# Mark and border tell them apart without colour. The hues are of Okabe and Ito's palette for colour-blind readers.
_LOOKS: dict[str, dict[str, str]] = {
    KEPT: {"fillcolor": "white", "color": _GREY},
    FOCUS: {"fillcolor": "#d6e9f8", "color": "#0072b2", "penwidth": "2.5"},
    REMOVED: {"fillcolor": "#fbdfd0", "color": "#a8430a", "penwidth": "2", "style": "dotted"},
    NEW: {"fillcolor": "#d5efe6", "color": "#00704f", "penwidth": "2.5"},
    CHANGED: {"fillcolor": "#fdf1cf", "color": "#8a6200", "penwidth": "1.5", "peripheries": "2"},
}
_MARKS = {REMOVED: "\N{MINUS SIGN} ", NEW: "+ ", CHANGED: "~ "}
_LEGEND = {
    FOCUS: "thick: the node",
    REMOVED: "\N{MINUS SIGN} removed (dotted)",
    NEW: "+ new",
    CHANGED: "~ changed in place",
    "boundary": "dashed: more of the graph",
}
_EDGE_STYLES = {REMOVED: "dotted", NEW: "bold", CHANGED: "bold"}
_STATE = ("ReadValue", "Assign")
_ROUND = ("Parameter", "Result")


def new_graph() -> Digraph:
    """An empty graph with the fonts and margins of all pictures.

    Raises:
        PictureError: the package graphviz is not installed.
    """
    graph = needed("graphviz").Digraph("picture")
    graph.attr(fontname=_FONT, fontsize="12", ranksep="0.45", nodesep="0.4")
    graph.attr("node", fontname=_FONT, fontsize="10", shape="box", margin="0.1,0.05", height="0.3")
    graph.attr("edge", fontname=_FONT, fontsize="9", arrowsize="0.6")
    return graph


def add_title(graph: Digraph, title: str, looks: Iterable[str]) -> None:
    """Set the title, and below it what the looks mean that are used."""
    used = set(looks)
    legend = "   ".join(text for status, text in _LEGEND.items() if status in used)
    graph.attr(label=_text([title, legend]), labelloc="t")


def draw_part(
    graph: Digraph,
    view: View,
    status: Mapping[int, str],
    prefix: str,
    edge_status: Callable[[Edge], str] = lambda edge: KEPT,
) -> set[str]:
    """Add some nodes of a model and all edges between them; a node with neighbours that are not shown is dashed.

    Args:
        graph: where to.
        view: the model.
        status: the nodes' positions, and what each is drawn as.
        prefix: of the ids in DOT.
        edge_status: what an edge is drawn as.

    Returns:
        What was drawn: statuses, and "boundary" for dashed nodes.
    """
    looks = set()
    for i in sorted(status):
        dashed = status[i] == KEPT and any(other not in status for other in view.neighbours(i))
        _add_node(graph, view, i, prefix, status[i], dashed)
        looks.add("boundary" if dashed else status[i])
    for edge in (edge for i in sorted(status) for edge in view.inputs[i] if edge.source in status):
        look = edge_status(edge)
        looks.add(look)
        colour = _LOOKS[look]["color"]
        graph.edge(
            f"{prefix}{edge.source}",
            f"{prefix}{edge.reader}",
            label=_text([f" {view.carries(edge)} "]),
            color=colour,
            fontcolor=colour,
            style=_EDGE_STYLES.get(look, "solid"),
            penwidth="1" if look == KEPT else "2",
            **{"class": look},
        )
    return looks


def add_count(graph: Digraph, prefix: str, i: int, hidden: int, *, above: bool) -> None:
    """Add the number of inputs (above) or readers (below) of a node that are not shown."""
    own, name = f"{prefix}{i}", f"{prefix}{i}{'in' if above else 'out'}"
    text = f"+{hidden} more {'input' if above else 'reader'}{'s' if hidden > 1 else ''}"
    graph.node(name, label=_text([text]), shape="plaintext", fontcolor=_GREY, **{"class": "more"})
    graph.edge(*((name, own) if above else (own, name)), style="dashed", color=_GREY, arrowhead="none")


def _add_node(graph: Digraph, view: View, i: int, prefix: str, status: str, dashed: bool) -> None:
    kind = view.kinds[i]
    first, *others = node_lines(view, i)
    look = dict(_LOOKS[status])
    border = look.pop("style", "dashed" if dashed else "solid")
    look["style"] = ",".join(["filled", border, *(["rounded"] if kind in _ROUND else [])])
    if kind in _STATE:
        # A second outline would run through the text, and the lid takes some of the height.
        look |= {"shape": "cylinder", "peripheries": "1", "margin": "0.1,0.1"}
    label = _text([_MARKS.get(status, "") + first, *others])
    look |= {"label": label, "tooltip": _text([f"{kind} {view.name(i)}"]), "class": "boundary" if dashed else status}
    graph.node(f"{prefix}{i}", **look)


def _text(lines: Iterable[str]) -> str:
    """Lines as a label; what DOT would take for an escape or for HTML is text."""
    escape = needed("graphviz").escape
    return "\\n".join(str(escape(line)) for line in lines)
