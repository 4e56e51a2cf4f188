"""Which values of a graph an NPU would refuse: dynamic ones, and those without elements."""

from __future__ import annotations

from openvino import Model

from ovpasses._openvino import Output
from ovpasses.importers._walk import inner_models
from ovpasses.passes._edit import consumers

# One RewriteError names so many values; the rest is counted.
SHOWN = 5


def not_static(model: Model, within: str = "") -> list[tuple[str, str]]:
    """Every output of every node, bodies of loops included, that is dynamic or has zero elements.

    Args:
        model: a validated graph.
        within: what the graph is the body of, for the lines.

    Returns:
        For each value the node's friendly name, and its op type, element type, shape and what is wrong.
    """
    found: list[tuple[str, str]] = []
    for node in model.get_ordered_ops():
        for output in node.outputs():
            shape = output.get_partial_shape()
            empty = shape.is_static and any(shape[d] == 0 for d in range(shape.rank.get_length()))
            if shape.is_dynamic or empty:
                kind = f"{node.get_type_name()} {output.get_element_type().get_type_name()} {shape}"
                wrong = "has no elements" if empty else "is dynamic"
                found.append((node.get_friendly_name(), f"{kind}{_read_by(output)}{within} {wrong}"))
        for body in inner_models(node):
            found += not_static(body, f" (in {node.get_friendly_name()})")
    return found


def _read_by(output: Output) -> str:
    """For a Constant, whose name says little, who reads it."""
    readers = consumers(output) if output.get_node().get_type_name() == "Constant" else []
    if not readers:
        return ""
    reader = readers[0].get_node()
    return f", input {readers[0].get_index()} of {reader.get_type_name()} {reader.get_friendly_name()},"


def listed(found: list[tuple[str, str]]) -> str:
    """The first few nodes with what is wrong, and how many more there are."""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(f"{name}: {reason}" for name, reason in found[:SHOWN]) + more
