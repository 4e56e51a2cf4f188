"""Where a graph carries a recurrent state from call to call: conv windows and gated delta nets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openvino import Model

from ovpasses._openvino import Node, Output
from ovpasses.ggml_names import CACHE_NAME
from ovpasses.importers.internal_ops import GatedDeltaNet
from ovpasses.passes._cache_pairs import CachePair, NoPair, cache_name, find_pairs
from ovpasses.passes._edit import Input, const_value, consumers, describe
from ovpasses.passes._states import states

RECURRENT_KINDS = ("cache_r", "cache_s", "conv_state", "ssm_state")
VIEWS = ("Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze")

# Token axis and inputs of a lowered delta net: q, k, v of rank 4, gate and beta of rank 3, tokens on axis 2.
LOOP_TOKENS = 2
LOOP_RANKS = [3, 3, 4, 4, 4]


@dataclass(frozen=True)
class Carried:
    """A value of fixed size that a call leaves for the next.

    Attributes:
        name: of the state or of the input it comes in by.
        past: the value as it comes in.
        sink: the Result or Assign that it leaves by.
    """

    name: str
    past: Output
    sink: Node

    @property
    def written(self) -> Output:
        return self.sink.input_value(0)


def carried_states(model: Model) -> Iterator[Carried | NoPair]:
    """Every recurrent state: a Variable of static shape, or an input/output pair whose value is replaced whole.

    An input that is a recurrent state by its name, but whose output cannot be told, comes as it was found.
    """
    for state in states(model):
        if state.variable.info.data_shape.is_static:
            yield Carried(state.name, state.past, state.assign)
    for pair in find_pairs(model, {}):
        if isinstance(pair, CachePair) and pair.update is None:
            yield Carried(cache_name(pair.parameter), pair.parameter.output(0), pair.result)
        elif isinstance(pair, NoPair) and _is_recurrent(pair.name):
            yield pair


def _is_recurrent(name: str) -> bool:
    found = CACHE_NAME.search(name)
    return found is not None and found["kind"] in RECURRENT_KINDS


@dataclass(frozen=True)
class Window:
    """``Slice(Concat(state, columns), -width .. end)`` on ``axis``, written back to the state."""

    cut: Node
    columns: Output
    axis: int
    width: int


def find_window(state: Carried) -> Window | str | None:
    """The conv window that a state holds, a reason why what it holds is none, or None when it feeds no Concat."""
    shape = state.past.get_partial_shape()
    joined = [
        i.get_node()
        for i in consumers(state.past)
        if i.get_index() == 0 and i.get_node().get_type_name() == "Concat" and i.get_node().get_input_size() == 2
    ]
    if not joined:
        return None
    concat = joined[0]
    axis = concat.get_attributes()["axis"] % shape.rank.get_length()
    width = shape[axis].get_length()
    cut = state.written.get_node()
    if cut.get_type_name() != "Slice" or cut.input_value(0) != concat.output(0):
        return f"what is written back is {describe(state.written)}, wanted a Slice of {concat.get_friendly_name()}"
    bounds = [const_value(cut.input_value(i)) for i in range(1, 5)] if cut.get_input_size() == 5 else [None]
    if any(b is None or b.size != 1 for b in bounds):
        return f"Slice {cut.get_friendly_name()} has bounds that are no constants of one axis"
    start, stop, step, on = (int(b.ravel()[0]) for b in bounds if b is not None)
    if (start, step, on % shape.rank.get_length()) != (-width, 1, axis) or stop < 2**31 - 1:
        return (
            f"Slice {cut.get_friendly_name()} takes {start}:{stop}:{step} on axis {on}, "
            f"wanted {-width}:end:1 on axis {axis}"
        )
    return Window(cut, concat.output(0), axis, width)


@dataclass(frozen=True)
class DeltaNet:
    """A gated delta net and its inputs gate and beta, which have the tokens on ``axis``."""

    node: Node
    gates: tuple[Input, Input]
    axis: int


def delta_nets(model: Model) -> Iterator[DeltaNet]:
    """Every gated delta net, as the op (native or stand-in) or as the Loop it is lowered to."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == GatedDeltaNet.class_type_info.name and node.get_input_size() == 6:
            yield DeltaNet(node, (node.input(4), node.input(5)), 1)
        elif node.get_type_name() == "Loop":
            gates = _loop_gates(node)
            if gates is not None:
                yield DeltaNet(node, gates, LOOP_TOKENS)


def _loop_gates(loop: Any) -> tuple[Input, Input] | None:
    """Gate and beta of a Loop whose body is the delta rule: one decays by Exp, the other scales the change."""
    sliced = [d for d in loop.get_input_descriptions() if d.get_type_info().name == "SliceInputDescription"]
    ranks = [loop.get_input_partial_shape(d.input_index).rank.get_length() for d in sliced]
    if sorted(ranks) != LOOP_RANKS or any(d.axis != LOOP_TOKENS for d in sliced):
        return None
    gates = [d for d, rank in zip(sliced, ranks, strict=True) if rank == 3]
    body = loop.get_function()
    kinds = [_first_op(body.get_parameters()[d.body_parameter_index].output(0)) for d in gates]
    if sorted(kinds) != ["Exp", "Multiply"]:
        return None
    return loop.input(gates[0].input_index), loop.input(gates[1].input_index)


def _first_op(value: Output) -> str:
    """The type of the one op that reads a value, behind views of it."""
    readers = consumers(value)
    while len(readers) == 1 and readers[0].get_node().get_type_name() in VIEWS:
        readers = consumers(readers[0].get_node().output(0))
    return str(readers[0].get_node().get_type_name()) if len(readers) == 1 else ""


def updated_by(state: Carried, nets: list[DeltaNet]) -> bool:
    """Whether a state goes into one of the delta nets, through views only."""
    pending, heads = [state.past], {net.node for net in nets}
    while pending:
        for reader in pending.pop().get_target_inputs():
            node = reader.get_node()
            if node in heads:
                return True
            if node.get_type_name() in VIEWS:
                pending.extend(node.outputs())
    return False
