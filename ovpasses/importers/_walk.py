"""Short walks through a graph that several readers of it share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from openvino import Node, Output

# Ops that hand a mask on without mixing it with anything else.
_MASK_VIEWS = ("Convert", "Slice", "Reshape", "Unsqueeze", "Squeeze", "Gather", "Broadcast", "Multiply", "StridedSlice")


def consumer_nodes(output: Output, through: tuple[str, ...] = ()) -> Iterator[Node]:
    """Nodes that read an output, also behind ops of the types in ``through``."""
    pending = [output]
    while pending:
        for reader in pending.pop().get_target_inputs():
            node = reader.get_node()
            yield node
            if node.get_type_name() in through:
                pending.extend(node.outputs())


def first_downstream(output: Output, types: tuple[str, ...], limit: int = 64) -> Node | None:
    """The nearest op of one of the types that an output leads to, looking at no more than ``limit`` ops."""
    pending = deque([output])
    seen: set[Node] = set()
    while pending and len(seen) < limit:
        for reader in pending.popleft().get_target_inputs():
            node = reader.get_node()
            if node.get_type_name() in types:
                return node
            if node not in seen:
                seen.add(node)
                pending.extend(node.outputs())
    return None


def source_of_mask(attention: Node) -> Node | None:
    """The Parameter that masks an attention op: SDPA's input 3, or what is added before a Softmax."""
    if attention.get_type_name() == "ScaledDotProductAttention":
        return _view_of_parameter(attention.input_value(3)) if attention.get_input_size() > 3 else None
    added = attention.input_value(0).get_node()
    while added.get_type_name() in ("Convert", "Concat", "Reshape"):
        added = added.input_value(0).get_node()
    if added.get_type_name() != "Add":
        return None
    return next((p for p in map(_view_of_parameter, added.input_values()) if p is not None), None)


def _view_of_parameter(output: Output) -> Node | None:
    node = output.get_node()
    while node.get_type_name() in _MASK_VIEWS:
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "Parameter" else None
