"""The repetition of key/value heads for grouped queries, and how to move it to the other side of a Transpose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ovpasses._openvino import Node, Output
from ovpasses.passes._edit import Input, const, const_value, consumers, redirect


def is_swap_of_dims_1_2(node: Node) -> bool:
    """``Transpose(0, 2, 1, 3)``."""
    if node.get_type_name() != "Transpose":
        return False
    order = const_value(node.input_value(1))
    return order is not None and order.tolist() == [0, 2, 1, 3]


@dataclass(frozen=True)
class ExpansionThenTranspose:
    """``x [b,s,h,d] -> Unsqueeze(3) -> Broadcast(r) -> Reshape [b,s,h*r,d] -> Transpose(0,2,1,3)``."""

    unsqueeze: Node
    broadcast: Node
    reshape: Node
    transpose: Node
    heads: int
    repeats: int
    size: int

    def on_transposed(self, source: Output) -> None:
        """Let the expansion work on ``source [b,h,s,d]``; the Transpose is no longer needed."""
        self.unsqueeze.input(0).replace_source_output(source)
        self.reshape.set_attribute("special_zero", True)
        for node, argument in (
            (self.unsqueeze, [2]),
            (self.broadcast, [1, 1, self.repeats, 1, 1]),
            (self.reshape, [0, self.heads * self.repeats, -1, self.size]),
        ):
            node.input(1).replace_source_output(const(argument).output(0))
            node.validate_and_infer_types()
        redirect(self.transpose.output(0), self.reshape.output(0))


def find_expansion_then_transpose(reader: Input) -> ExpansionThenTranspose | None:
    """The expansion that starts at a consumer of ``x [b,s,h,d]`` and ends in the swap of dims 1 and 2."""
    chain = [reader.get_node()]
    for _ in range(3):
        following = consumers(chain[-1].output(0))
        if len(following) != 1 or following[0].get_index() != 0:
            return None
        chain.append(following[0].get_node())
    unsqueeze, broadcast, reshape, transpose = chain
    kinds = [node.get_type_name() for node in chain[:3]]
    if kinds != ["Unsqueeze", "Broadcast", "Reshape"] or not is_swap_of_dims_1_2(transpose):
        return None
    axis, target = const_value(unsqueeze.input_value(1)), const_value(broadcast.input_value(1))
    shape = unsqueeze.input_value(0).get_partial_shape()
    out = reshape.get_output_partial_shape(0)
    if axis is None or axis.ravel().tolist() not in ([3], [-2]) or target is None or target.size != 5:
        return None
    if broadcast.get_attributes().get("mode") != "bidirectional":
        return None
    if any(shape[d].is_dynamic or out[d].is_dynamic for d in (2, 3)) or out.rank.get_length() != 4:
        return None
    heads, size, repeats = shape[2].get_length(), shape[3].get_length(), int(target[3])
    one_else = np.delete(target, 3).tolist() == [1, 1, 1, 1]
    if not one_else or [out[2].get_length(), out[3].get_length()] != [heads * repeats, size]:
        return None
    return ExpansionThenTranspose(unsqueeze, broadcast, reshape, transpose, heads, repeats, size)
