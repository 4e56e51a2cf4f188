"""The surroundings of a node."""

from __future__ import annotations

from openvino import Model

from ovpasses.importers import ImportedModel
from ovpasses.visualize._changes import KEPT
from ovpasses.visualize._draw import FOCUS, add_count, add_title, draw_part, new_graph
from ovpasses.visualize._picture import Picture, PictureError
from ovpasses.visualize._view import View
from ovpasses.visualize._wording import shortened


def subgraph(model: ImportedModel | Model, node: str, hops: int = 2, *, neighbours: int = 6) -> Picture:
    """Picture a node and what is around it, with element types and shapes on the edges.

    Constants are written in the node that reads them.

    Args:
        model: the model.
        node: the node's friendly name, the name of one of its tensors, or the id of a state.
        hops: how many edges away from the node the picture goes, against and along the edges; 0 for it alone.
        neighbours: readers, or inputs, of one node that are drawn; the others are counted.

    Raises:
        PictureError: the model has no such node (the message has the closest names), ``hops`` is negative or
            ``neighbours`` below 1.
    """
    if hops < 0 or neighbours < 1:
        raise PictureError(f"hops is {hops} and neighbours {neighbours}, wanted at least 0 and 1")
    view = View(model.model if isinstance(model, ImportedModel) else model)
    centre = view.find(node)
    graph = new_graph()
    shown, counts = _around(view, centre, hops, neighbours)
    looks = draw_part(graph, view, {i: FOCUS if i == centre else KEPT for i in shown}, "n")
    for (i, above), hidden in counts.items():
        add_count(graph, "n", i, hidden, above=above)
    title = f"{shortened(view.name(centre), 60)} and {hops} hop{'' if hops == 1 else 's'} around"
    add_title(graph, title, looks)
    return Picture(graph.source, title)


def _around(view: View, centre: int, hops: int, most: int) -> tuple[list[int], dict[tuple[int, bool], int]]:
    """The nodes within ``hops``; and how many neighbours of a node, above (True) or below it, were left out."""
    distance, counts = {centre: 0}, {}
    waiting = [centre]
    for i in waiting:
        for above, others in ((True, view.input_nodes(i)), (False, view.reader_nodes(i))):
            fresh = [other for other in others if other not in distance]
            taken = fresh[:most] if distance[i] < hops else []
            for other in taken:
                distance[other] = distance[i] + 1
                waiting.append(other)
            if distance[i] < hops and len(fresh) > most:
                counts[i, above] = len(fresh) - most
    return list(distance), counts
