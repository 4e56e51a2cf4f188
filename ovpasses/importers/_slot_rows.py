"""Where the new rows of a slot cache come from: the end of a conv window, or of a delta net's packed result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ovpasses._openvino import Node, Output
from ovpasses.importers._walk import const_value, consumers

VIEWS = ("Reshape", "Squeeze", "Unsqueeze")
_ROW_AXIS = 2  # of the packed result [1, 1, rows, heads*size]


@dataclass(frozen=True)
class Rows:
    """New rows that are the last part of a value.

    Attributes:
        cut: the Slice or Gather that takes them, the last one when views of views are taken.
        source: what they are taken from: conv_input or the packed result.
        axis: the axis on which they are its end.
        per_slot: how long that end is, for each slot.
        kind: "window" of a convolution or "state" of a delta net.
    """

    cut: Node
    source: Output
    axis: int
    per_slot: int
    kind: str

    def start(self, slots: int) -> int:
        """Where they start, from the end: of a window for each slot alike, of states one after the other."""
        return -self.per_slot * (slots if self.kind == "state" else 1)

    def why_not_at_end(self, slots: int) -> str | None:
        """None when they are taken at the end for every token count, else what the graph takes."""
        if self.cut.get_type_name() == "Gather":
            return None  # ends at the last valid token, which an input tells
        start = folded(self.cut.input_value(1))
        behind = self.cut.input_value(0) != self.source
        if start == self.start(slots) and not behind:
            return None
        found = "an input" if start is None else str(start)
        return f"the {self.kind} is taken from {found}{' of a view' if behind else ''}, wanted {self.start(slots)}"


def find_rows(rows: Output, width: int) -> Rows | str:
    """Follow new rows ``[1, 1, slots, width]`` to where they come from; the reason when they cannot be followed."""
    value = _before_views(rows)
    if value.get_node().get_type_name() not in ("Slice", "Gather"):
        maker = value.get_node()
        return f"{maker.get_type_name()} {maker.get_friendly_name()} makes its rows, wanted a Slice"
    cut, axis = value.get_node(), _axis(value.get_node())
    while value.get_node().get_type_name() in ("Slice", "Gather"):
        if _axis(value.get_node()) != axis:
            return f"{value.get_node().get_friendly_name()} cuts another axis than {cut.get_friendly_name()}"
        value = _before_views(value.get_node().input_value(0), stop=value.get_node().input_value(0))
    source, node, shape = value, value.get_node(), value.get_partial_shape()
    if node.get_type_name() == "Concat" and axis == int(node.get_attributes()["axis"]) % 4 == 3:
        columns = node.input_value(0).get_partial_shape()[3]
        return Rows(cut, source, 3, columns.get_length(), "window") if columns.is_static else "its window is dynamic"
    if _is_packed(source) and axis == _ROW_AXIS and shape[3].is_static and width % shape[3].get_length() == 0:
        return Rows(cut, source, axis, width // shape[3].get_length(), "state")
    found = f"{node.get_type_name()} {node.get_friendly_name()} {shape}"
    return f"its rows come from {found}, wanted the columns of a convolution or a packed result"


def _before_views(value: Output, stop: Output | None = None) -> Output:
    """Behind views of rows; a packed result is a view itself, at which this ends."""
    while value.get_node().get_type_name() in VIEWS and not (stop is not None and _is_packed(value)):
        value = value.get_node().input_value(0)
    return value


def _is_packed(value: Output) -> bool:
    """``Reshape(Concat(attention, state))``, both flattened."""
    node = value.get_node()
    if node.get_type_name() != "Reshape" or node.input_value(0).get_node().get_type_name() != "Concat":
        return False
    concat = node.input_value(0).get_node()
    parts = [concat.input_value(i).get_partial_shape() for i in range(concat.get_input_size())]
    return len(parts) == 2 and all(p.rank.is_static and p.rank.get_length() == 1 for p in parts)


def _axis(cut: Node) -> int | None:
    """The one axis that a Slice or Gather cuts."""
    value = const_value(cut.input_value(4 if cut.get_type_name() == "Slice" else 2)) if _has_axis(cut) else None
    rank = cut.get_output_partial_shape(0).rank
    if value is None or value.size != 1 or rank.is_dynamic:
        return None
    return int(value.ravel()[0]) % int(rank.get_length())


def _has_axis(cut: Node) -> bool:
    return bool(cut.get_type_name() == "Gather" or cut.get_input_size() == 5)


def attention_slices(packed: Output) -> Iterator[Node]:
    """The Slices that take the attention rows of a packed result, which come first."""
    for reader in consumers(packed):
        node = reader.get_node()
        if node.get_type_name() == "Slice" and _axis(node) == _ROW_AXIS and folded(node.input_value(1)) == 0:
            yield node


def folded(value: Output) -> int | None:
    """The one integer that an expression of constants is; None when an input is part of it."""
    node = value.get_node()
    known = const_value(value)
    if known is not None:
        return int(known.ravel()[0]) if known.size == 1 and np.issubdtype(known.dtype, np.integer) else None
    parts = [folded(node.input_value(i)) for i in range(node.get_input_size())]
    if None in parts:
        return None
    numbers = [p for p in parts if p is not None]
    match node.get_type_name(), numbers:
        case "Multiply", [a, b]:
            return a * b
        case "Add", [a, b]:
            return a + b
        case "Negative", [a]:
            return -a
        case (("Convert" | "Squeeze" | "Unsqueeze" | "Reshape"), [a, *_]):
            return a
    return None
