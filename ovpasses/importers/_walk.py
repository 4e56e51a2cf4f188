"""Short walks through a graph that several readers of it share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from openvino import Model

from ovpasses._openvino import Constant, Node, Output

Input: TypeAlias = Any  # openvino.Input

ATTENTION_OPS = ("ScaledDotProductAttention", "Softmax")

# Ops that hand a mask on without mixing it with anything else.
_MASK_VIEWS = ("Convert", "Slice", "Reshape", "Unsqueeze", "Squeeze", "Gather", "Broadcast", "Multiply", "StridedSlice")


def inner_models(node: Node) -> list[Model]:
    """The bodies of a Loop, TensorIterator or If."""
    kind = node.get_type_name()
    if kind in ("Loop", "TensorIterator"):
        return [node.get_function()]
    return [node.get_function(0), node.get_function(1)] if kind == "If" else []


def all_ops(model: Model) -> Iterator[Node]:
    """Every op, those of bodies after the op that holds them."""
    for node in model.get_ordered_ops():
        yield node
        for body in inner_models(node):
            yield from all_ops(body)


def consumers(output: Output) -> list[Input]:
    """Inputs fed by an output, in a stable order."""
    return sorted(output.get_target_inputs(), key=lambda i: (i.get_node().get_instance_id(), i.get_index()))


def const_value(output: Output) -> np.ndarray | None:
    """What a Constant holds, else None."""
    node = output.get_node()
    return node.get_data() if isinstance(node, Constant) else None


def port_name(node: Node) -> str:
    """Tensor name of an input or output of the model, else its friendly name."""
    return str(min(node.output(0).get_names(), default=None) or node.get_friendly_name())


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


def mask_input(attention: Node) -> Any | None:
    """The Input by which a mask reaches an attention op: SDPA's input 3, or what is added before a Softmax."""
    if attention.get_type_name() == "ScaledDotProductAttention":
        return attention.input(3) if attention.get_input_size() > 3 else None
    added = attention.input_value(0).get_node()
    while added.get_type_name() in ("Convert", "Concat", "Reshape"):
        added = added.input_value(0).get_node()
    if added.get_type_name() != "Add":
        return None
    return next((i for i in added.inputs() if _view_of_parameter(i.get_source_output()) is not None), None)


def source_of_mask(attention: Node) -> Node | None:
    """The Parameter that masks an attention op."""
    masked = mask_input(attention)
    return None if masked is None else _view_of_parameter(masked.get_source_output())


def _view_of_parameter(output: Output) -> Node | None:
    node = output.get_node()
    while node.get_type_name() in _MASK_VIEWS:
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "Parameter" else None
