"""LowerGatedDeltaNet: the internal GatedDeltaNet op to public ops."""

from __future__ import annotations

from typing import Any, ClassVar

from openvino import Model, Type

from ovpasses._openvino import Node, Output, ops
from ovpasses.errors import RewriteError
from ovpasses.importers.internal_ops import GatedDeltaNet
from ovpasses.passes._delta_net_loop import (
    Heads,
    l2_normalised,
    one_token,
    repeated_heads,
    scaled_query,
    token_loop,
)
from ovpasses.passes._edit import const, deferred, like, redirect
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport

INPUTS = {"query": 4, "key": 4, "value": 4, "state": 4, "gate": 3, "beta": 3}  # name: rank
FLOATS = (Type.f32, Type.f16, Type.bf16)


class LowerGatedDeltaNet(ReportedPass):
    """Write the recurrence of a gated delta net in public ops, so that any OpenVINO opens the saved model.

    For each token ``state *= exp(g)``; ``d = (v - state^T k) * beta``; ``state += k (x) d``;
    ``attention = state^T q / sqrt(S)``. The Loop is the one that OpenVINO's ``GatedDeltaNetFusion`` turns back
    into the native op when it compiles, so a saved model is as fast as the op was.

    Before::

        q, k [b,t,hk,s], v [b,t,h,sv] ---> GatedDeltaNet -> attention [b,t,h,sv]
        state [b,h,s,sv], g, beta [b,t,h] ----^     |-----> state [b,h,s,sv]

    After::

        q, k -> Tile(heads) -> Transpose [b,h,t,s] (q: Divide sqrt(s)) -> Loop -> Transpose -> attention
        v [b,h,t,sv], g, beta [b,h,t], state, zeros [b,h,t,sv] ------------^ |-------------> state
      or, with one token (static), the Loop's step alone.

    Applies when (per op; the words are those of the skip reasons):
        rank: six inputs of ranks 4, 4, 4, 4, 3, 3.
        type: floating-point inputs.
        shape: sizes of q, k, v and state agree wherever they are static.
        heads: the number of value heads is a multiple of the number of key heads, where both are static.
        attributes: none but the L2 normalisation of q and k and its two epsilons.

    Leaves alone: native ops with ``native=False`` ("kind"), bodies of Loop, TensorIterator and If.
    Keeps: element types and shapes of both outputs, tensor names; the Loop (or the attention) has the op's
        friendly name, all that is computed after it the op's rt_info.
    Numerics: computed in f32 and in the op's order; 1e-5 of an f64 loop on normalised keys.
    Key heads: ggml repeats too few of them tiled (0,1,0,1), and llama.cpp's graphs have them repeated before the
        op. OpenVINO's own op would repeat them grouped (0,0,1,1) on a CPU; ``key_heads="group"`` is for graphs
        that mean that. The report notes each op where it makes a difference.
    Dynamic sizes: with a dynamic head count or size the Loop is right, but it is not fused and runs token by token.
    Source: openvinotoolkit/openvino
        ``src/common/transformations/src/transformations/common_optimizations/fuse_gated_delta_net.cpp`` (form of
        the Loop, the normalisation), the specification of the internal op GatedDeltaNet; measured on 2026.4.1.

    Args:
        native: lower native ops too (of a GGUF imported in memory), not only the stand-ins of an IR that was read.
        key_heads: order in which key heads are repeated for more value heads, "tile" or "group".
        strict: see :class:`ReportedPass`.

    Raises:
        RewriteError: ``key_heads`` is something else.
    """

    looked_for: ClassVar[str] = "GatedDeltaNet op"

    def __init__(self, *, native: bool = True, key_heads: str = "tile", strict: bool = False) -> None:
        super().__init__(strict=strict)
        if key_heads not in ("tile", "group"):
            raise RewriteError(f"key_heads is {key_heads!r}, wanted 'tile' or 'group'")
        self.native = native
        self.key_heads = key_heads

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        edits: list[Edit] = []
        for op in model.get_ordered_ops():
            if op.get_type_name() != GatedDeltaNet.class_type_info.name:
                continue
            name = op.get_friendly_name()
            if not self.native and not isinstance(op, GatedDeltaNet):
                report.skip(name, "kind", "a native op, which runs as it is in this process (native=True lowers it)")
                continue
            why = _why_not(op)
            if why is not None:
                report.skip(name, *why)
                continue
            edits.append(deferred(_lower, op, grouped=self.key_heads == "group"))
            report.done(name)
            repeats = _head_counts(op)
            if repeats is not None:
                report.notes.append(f"{name}: {repeats[0]} key heads for {repeats[1]}, {self.key_heads} order")
        return edits

    def _options(self) -> list[str]:
        options = [] if self.native else ["native=False"]
        options += [f"key_heads={self.key_heads!r}"] if self.key_heads != "tile" else []
        return options


def _head_counts(op: Node) -> tuple[int, int] | None:
    """Key and value heads when their static numbers differ."""
    key, value = op.get_input_partial_shape(1)[2], op.get_input_partial_shape(2)[2]
    if key.is_dynamic or value.is_dynamic or key == value:
        return None
    return key.get_length(), value.get_length()


def _why_not(op: Node) -> tuple[str, str] | None:
    shapes = [op.get_input_partial_shape(i) for i in range(op.get_input_size())]
    found = ", ".join(str(shape) for shape in shapes)
    ranks = [shape.rank.get_length() if shape.rank.is_static else None for shape in shapes]
    if ranks != list(INPUTS.values()):
        return "rank", f"inputs are {found}, wanted ranks 4, 4, 4, 4, 3, 3 (query, key, value, state, gate, beta)"
    for index, name in enumerate(INPUTS):
        if op.get_input_element_type(index) not in FLOATS:
            return "type", f"{name} is {op.get_input_element_type(index).get_type_name()}, wanted f32, f16 or bf16"
    query, key, value, state, gate, beta = shapes
    agree = {
        "batch": [shape[0] for shape in shapes],
        "token count": [shape[1] for shape in (query, key, value, gate, beta)],
        "key head count": [query[2], key[2]],
        "value head count": [value[2], state[1], gate[2], beta[2]],
        "key size": [query[3], key[3], state[2]],
        "value size": [value[3], state[3]],
    }
    for what, dims in agree.items():
        if len({d.get_length() for d in dims if d.is_static}) > 1:
            return "shape", f"the {what} differs among the inputs {found}: {', '.join(str(d) for d in dims)}"
    heads = _head_counts(op)
    if heads is not None and (heads[0] == 0 or heads[1] % heads[0]):
        return "heads", f"{heads[1]} value heads are no multiple of {heads[0]} key heads"
    unknown = sorted(set(_attributes(op)) - set(GatedDeltaNet.defaults))
    if unknown:
        return "attributes", f"{', '.join(unknown)} unknown, wanted only {', '.join(GatedDeltaNet.defaults)}"
    return None


def _attributes(op: Node) -> dict[str, Any]:
    attributes: dict[str, Any] = op.attributes if isinstance(op, GatedDeltaNet) else op.get_attributes()
    return attributes


def _lower(op: Node, *, grouped: bool) -> None:
    name = op.get_friendly_name()
    attributes = {**GatedDeltaNet.defaults, **_attributes(op)}
    query, key, value, state, gate, beta = (_converted(op.input_value(i), Type.f32) for i in range(len(INPUTS)))
    if attributes["fuse_qk_l2norm"]:
        query = l2_normalised(query, attributes["q_l2_norm_eps"])
        key = l2_normalised(key, attributes["k_l2_norm_eps"])
    query, key = (repeated_heads(x, value, grouped=grouped) for x in (query, key))
    tokens = [x.get_partial_shape()[1] for x in (query, key, value, gate, beta)]
    if any(d.is_static and d.get_length() == 1 for d in tokens):
        nodes = one_token(scaled_query(query), key, value, gate, beta, state)
        attention, new = (node.output(0) for node in nodes)
        like(nodes[0], op)
        like(nodes[1], op, name=f"{name}/state")
    else:
        heads = Heads(
            scaled_query(_heads_first(query)),
            _heads_first(key),
            _heads_first(value),
            _heads_first(gate),
            _heads_first(beta),
        )
        loop = like(token_loop(heads, state), op)
        attention, new = _heads_first(loop.output(0)), loop.output(1)
        like(attention.get_node(), op, name=f"{name}/attention")
    for old, lowered, what in ((op.output(0), attention, "attention"), (op.output(1), new, "state")):
        redirect(old, _as_before(lowered, old, like_op=op, name=f"{name}/{what}"))


def _heads_first(x: Output) -> Output:
    """Swap dims 1 and 2, tokens and heads."""
    order = [0, 2, 1, 3][: x.get_partial_shape().rank.get_length()]
    return ops.transpose(x, const(order)).output(0)


def _as_before(new: Output, old: Output, *, like_op: Node, name: str) -> Output:
    """Give a value the element type and the static dims that the op's output had."""
    wanted = old.get_partial_shape()
    if any(d.is_static and new.get_partial_shape()[i].is_dynamic for i, d in enumerate(wanted)):
        dims = [d.get_length() if d.is_static else 0 for d in wanted]
        new = like(ops.reshape(new, const(dims), special_zero=True), like_op, name=f"{name}/shape").output(0)
    if new.get_element_type() != old.get_element_type():
        new = like(ops.convert(new, old.get_element_type().get_type_name()), like_op, name=f"{name}/type").output(0)
    return new


def _converted(x: Output, dtype: Type) -> Output:
    return x if x.get_element_type() == dtype else ops.convert(x, dtype.get_type_name()).output(0)
