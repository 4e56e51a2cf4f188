"""A fault of the CPU plugin: attention of as many tokens as heads, from which it takes the transpose after it."""

from __future__ import annotations

from openvino import Model

from ovpasses._openvino import Node
from ovpasses.errors import DeviceError
from ovpasses.importers._walk import all_ops


def refuse_square_attention(model: Model) -> None:
    """Refuse static attention that a CPU computes wrong, in silence.

    Seen on 2026.4.1: a static ScaledDotProductAttention of T tokens and as many query and key heads, whose keys are not
    repeated for groups, and whose one reader transposes ``[batch, heads, T, size]`` back. The plugin drops that
    Transpose, which changes nothing of the shape; the result is off by as much as it is large. With any other number of
    tokens it is right.

    Raises:
        DeviceError: the model holds one; names it.
    """
    for node in all_ops(model):
        if node.get_type_name() == "ScaledDotProductAttention" and _is_square(node):
            shape = node.get_output_partial_shape(0)
            raise DeviceError(
                f"{node.get_friendly_name()} {shape} has as many tokens as heads, which the CPU plugin computes wrong; "
                "rewrite the model with another number of tokens (option chunk of static-prefill)"
            )


def _is_square(node: Node) -> bool:
    shapes = [node.input_value(i).get_partial_shape() for i in (0, 1)]
    if any(shape.is_dynamic or shape.rank.get_length() != 4 for shape in shapes):
        return False
    (_, heads, tokens, _), (_, key_heads, _, _) = (list(shape.to_shape()) for shape in shapes)
    readers = [port.get_node().get_type_name() for port in node.output(0).get_target_inputs()]
    keys = node.input_value(1).get_node()
    keys = keys.input_value(0).get_node() if keys.get_type_name() == "Transpose" else keys
    repeated = keys.get_type_name() in ("Broadcast", "Reshape")
    return bool(heads == tokens == key_heads > 1 and not repeated and readers == ["Transpose"])
