"""How many parameters a model has, and what its constants take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from openvino import Model

from ovpasses._openvino import Node
from ovpasses.equivalence._canonical import bodies, constant_bytes
from ovpasses.visualize._view import View

_Place = tuple[int, int]  # address and bytes of a constant's data


@dataclass
class Weights:
    """The constants of a model.

    Attributes:
        parameters: numbers that the model computes with: the elements of every constant of a real type as its reader
            sees it, so a quantised weight counts once, its scales and zero points do not.
        elements: stored elements by element type.
        sizes: stored bytes by element type.
    """

    parameters: int = 0
    elements: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


def weights_of(model: Model) -> Weights:
    """Count what a model holds, in the bodies of its loops too; what several nodes share counts once."""
    found = Weights()
    stored: set[_Place] = set()
    read: set[tuple[_Place, ...]] = set()
    for view in _views(model):
        places = {i: _place(node) for i, node in enumerate(view.nodes) if view.kinds[i] == "Constant"}
        for i in (i for i, place in places.items() if place not in stored):
            stored.add(places[i])
            kind = view.nodes[i].get_element_type().get_type_name()
            found.elements[kind] = found.elements.get(kind, 0) + math.prod(view.nodes[i].shape)
            found.sizes[kind] = found.sizes.get(kind, 0) + places[i][1]
        for i, output in _read(view):
            made_from = tuple(sorted(places[source] for source in _leaves(view, i)))
            if made_from not in read:
                read.add(made_from)
                found.parameters += _real_elements(view.nodes[i], output)
    return found


def _place(node: Node) -> _Place:
    data = constant_bytes(node)
    return data.ctypes.data, data.nbytes


def _views(model: Model) -> Iterator[View]:
    view = View(model)
    yield view
    for node in view.nodes:
        for body, *_ in bodies(node):
            yield from _views(body)


def _read(view: View) -> list[tuple[int, int]]:
    """The constant values, as node and output, that something reads which is not constant."""
    edges = (edge for i, edges in enumerate(view.inputs) if not view.constant[i] for edge in edges)
    return list(dict.fromkeys((edge.source, edge.output) for edge in edges if view.constant[edge.source]))


def _leaves(view: View, i: int) -> set[int]:
    """The Constants that a constant value is made from."""
    return {i} if view.kinds[i] == "Constant" else set().union(*(_leaves(view, e.source) for e in view.inputs[i]))


def _real_elements(node: Node, output: int) -> int:
    real = node.get_output_element_type(output).is_real() and node.get_output_partial_shape(output).is_static
    return math.prod(node.get_output_shape(output)) if real else 0
