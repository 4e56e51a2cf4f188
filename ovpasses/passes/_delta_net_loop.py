"""The gated delta rule in public ops: one step, and a Loop of it in the form that OpenVINO fuses back.

OpenVINO's ``FuseGDNLoop`` compares a Loop op by op with what optimum-intel exports, so order of inputs,
element types of constants and the way a scale is computed matter here even where the numbers do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from openvino import Model, PartialShape, Type

from ovpasses._openvino import Node, Output, ops
from ovpasses.passes._edit import const

TOKENS = 2  # the axis of the tokens in [batch, heads, tokens, size]


def _i32(value: int | list[int]) -> Node:
    return const(value, np.int32)


@dataclass(frozen=True)
class Heads:
    """The inputs of the delta rule, heads first.

    Attributes:
        query: ``[B,H,T,S]``, scaled.
        key: ``[B,H,T,S]``.
        value: ``[B,H,T,Sv]``.
        gate: ``[B,H,T]``, the logarithm of the decay.
        beta: ``[B,H,T]``.
    """

    query: Output
    key: Output
    value: Output
    gate: Output
    beta: Output

    def in_loop_order(self) -> list[Output]:
        return [self.query, self.key, self.value, self.gate, self.beta]


def l2_normalised(x: Output, eps: float) -> Output:
    """``x / sqrt(sum(x * x) + eps)`` over the last axis."""
    total = ops.reduce_sum(ops.multiply(x, x), const([-1]), keep_dims=True)
    root = ops.sqrt(ops.add(total, const(eps, np.float32)))
    return ops.multiply(x, ops.divide(const(1.0, np.float32), root)).output(0)


def repeated_heads(x: Output, wanted: Output, *, grouped: bool) -> Output:
    """Repeat the heads of ``x [B,T,Hk,S]`` up to those of ``wanted [B,T,H,Sv]``.

    Args:
        x: queries or keys.
        wanted: the values.
        grouped: 0,0,1,1 instead of 0,1,0,1.
    """
    have, want = x.get_partial_shape()[2], wanted.get_partial_shape()[2]
    if have == want and have.is_static:
        return x
    if have.is_static and want.is_static:
        repeats = const([want.get_length() // have.get_length()])
    else:
        repeats = ops.divide(_dim(wanted, 2), _dim(x, 2))
    one = const([1])
    if not grouped:
        # A Tile: OpenVINO's FuseGroupedQueryIntoGDN looks through Broadcast and Reshape, and means groups.
        return ops.tile(x, ops.concat([one, one, repeats, one], axis=0)).output(0)
    each = ops.tile(ops.unsqueeze(x, const([3])), ops.concat([one, one, one, repeats, one], axis=0))
    shape = ops.concat([const([0, 0]), _dim(wanted, 2), _dim(x, 3)], axis=0)
    return ops.reshape(each, shape, special_zero=True).output(0)


def _dim(x: Output, axis: int) -> Node:
    return ops.gather(ops.shape_of(x), const([axis]), const(0))


def scaled_query(query: Output) -> Output:
    """``query [B,H,T,S] / sqrt(S)``; the fusion takes no constant in place of the size read from the shape."""
    size = ops.convert(ops.gather(ops.shape_of(query), _i32(3), _i32(0)), "f32")
    return ops.divide(query, ops.power(size, const(0.5, np.float32))).output(0)


def _step(
    query: Node, key: Node, value: Node, gate: Output, beta: Output, state: Output, *, keep_token: bool
) -> tuple[Node, Node]:
    """One token: query, key ``[B,H,S]``, value ``[B,H,Sv]``, gate, beta ``[B,H,1]``, state ``[B,H,S,Sv]``.

    Returns:
        The attention, ``[B,H,1,Sv]`` with ``keep_token`` or ``[B,H,Sv]``, and the new state.
    """
    decayed = ops.multiply(state, ops.unsqueeze(ops.exp(gate), _i32(-1)))  # [B,H,S,Sv]
    column = ops.unsqueeze(key, _i32(-1))  # [B,H,S,1]
    recalled = ops.reduce_sum(ops.multiply(decayed, column), _i32(-2), keep_dims=False)  # [B,H,Sv]
    delta = ops.multiply(ops.subtract(value, recalled), beta)  # [B,H,Sv]
    new = ops.add(decayed, ops.multiply(column, ops.unsqueeze(delta, _i32(-2))))  # [B,H,S,Sv]
    read = ops.multiply(new, ops.unsqueeze(query, _i32(-1)))
    return ops.reduce_sum(read, _i32(-2), keep_dims=keep_token), new


def one_token(
    query: Output, key: Output, value: Output, gate: Output, beta: Output, state: Output
) -> tuple[Node, Node]:
    """The delta rule of a single token, tokens first.

    Args:
        query: ``[B,1,H,S]``, scaled.
        key: ``[B,1,H,S]``.
        value: ``[B,1,H,Sv]``.
        gate: ``[B,1,H]``.
        beta: ``[B,1,H]``.
        state: ``[B,H,S,Sv]``.

    Returns:
        The attention ``[B,1,H,Sv]`` and the new state.
    """
    axis = _i32(1)
    q, k, v = (ops.squeeze(x, axis) for x in (query, key, value))  # [B,H,S]
    g, b = (ops.unsqueeze(ops.squeeze(x, axis), _i32(-1)).output(0) for x in (gate, beta))  # [B,H,1]
    attention, new = _step(q, k, v, g, b, state, keep_token=False)
    return ops.unsqueeze(attention, axis), new


def token_loop(heads: Heads, state: Output) -> Node:
    """A Loop over the tokens; output 0 is the attention ``[B,H,T,Sv]``, output 1 the new state ``[B,H,S,Sv]``."""
    shape = ops.shape_of(heads.value)
    tokens = ops.convert(ops.gather(shape, _i32(TOKENS), _i32(0)), "i32")
    buffer = ops.broadcast(const(0.0, np.float32), shape)

    index = ops.parameter([], np.int32)
    slices = [ops.parameter(_one_token_of(x), np.float32) for x in heads.in_loop_order()]
    past = ops.parameter(state.get_partial_shape(), np.float32)
    rows = ops.parameter(buffer.get_output_partial_shape(0), np.float32)
    query, key, value = (ops.squeeze(x, _i32(TOKENS)) for x in slices[:3])
    row, new = _step(query, key, value, slices[3].output(0), slices[4].output(0), past.output(0), keep_token=True)
    written = ops.scatter_update(rows, ops.unsqueeze(index, _i32(0)), row, _i32(TOKENS))
    again = ops.constant(np.array(True), dtype=Type.boolean)
    body = Model([ops.result(x) for x in (again, new, written)], [index, *slices, past, rows], "gated_delta_rule")

    loop = ops.loop(tokens, ops.constant(np.array(True), dtype=Type.boolean))
    loop.set_function(body)
    loop.set_special_body_ports([0, 0])
    for inner, outer in zip(slices, heads.in_loop_order(), strict=True):
        loop.set_sliced_input(inner, outer, 0, 1, 1, -1, TOKENS)
    loop.set_merged_input(past, state, body.results[1].output(0))
    loop.set_merged_input(rows, buffer.output(0), body.results[2].output(0))
    loop.get_iter_value(body.results[2].output(0), -1)
    loop.get_iter_value(body.results[1].output(0), -1)
    loop.validate_and_infer_types()
    return loop


def _one_token_of(x: Output) -> PartialShape:
    shape = PartialShape(x.get_partial_shape())
    shape[TOKENS] = 1
    return shape
