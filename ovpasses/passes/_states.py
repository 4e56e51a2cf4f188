"""How a stateful graph holds its caches: Variables, their readers and writers, and the append between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from openvino import Model

from ovpasses._openvino import Node, Output, Variable
from ovpasses.passes._edit import const_value, consumers, describe, zeros_constant
from ovpasses.passes._identity import origin


@dataclass(frozen=True)
class State:
    """One Variable with its ReadValue and its Assign."""

    variable: Variable
    read: Node
    assign: Node

    @property
    def name(self) -> str:
        """What the graph calls the state: its tensor name, else the variable id."""
        return str(min(self.read.output(0).get_names(), default=None) or self.variable.info.variable_id)

    @property
    def past(self) -> Output:
        """What readers see: the ReadValue, or the beam Gather behind it."""
        beam = self.beam_gather
        return beam.output(0) if beam is not None else self.read.output(0)

    @property
    def beam_gather(self) -> Node | None:
        """``Gather(ReadValue, <an input>, axis 0)`` when that is the ReadValue's only reader."""
        readers = consumers(self.read.output(0))
        if len(readers) != 1 or readers[0].get_index() != 0:
            return None
        node = readers[0].get_node()
        if node.get_type_name() != "Gather" or node.input_value(1).get_node().get_type_name() != "Parameter":
            return None
        axis = const_value(node.input_value(2))
        return node if axis is not None and int(axis.ravel()[0]) == 0 else None


def states(model: Model) -> Iterator[State]:
    """Every Variable that is read and written, in the order of the model's sinks."""
    variables = {v.info.variable_id: v for v in model.get_variables()}
    reads = {o.get_variable_id(): o for o in model.get_ops() if o.get_type_name() == "ReadValue"}
    for sink in model.get_sinks():
        if sink.get_type_name() == "Assign" and sink.get_variable_id() in reads:
            key = sink.get_variable_id()
            yield State(variables[key], reads[key], sink)


@dataclass(frozen=True)
class Append:
    """``Concat(past, rows)`` on ``axis``, which an Assign writes back to the state it came from."""

    concat: Node
    axis: int

    @property
    def rows(self) -> Output:
        return self.concat.input_value(1)


def find_append(state: State) -> Append | str:
    """The Concat that grows a state (ops that change nothing are looked through), or the reason why there is none."""
    concat = origin(state.assign.input_value(0)).get_node()
    if concat.get_type_name() != "Concat":
        return f"its Assign is fed by {describe(state.assign.input_value(0))}, wanted a Concat of past and rows"
    if concat.get_input_size() != 2:
        return f"Concat {concat.get_friendly_name()} has {concat.get_input_size()} inputs, wanted 2 (past, rows)"
    if origin(concat.input_value(0)) != origin(state.past):
        return (
            f"input 0 of Concat {concat.get_friendly_name()} is {describe(concat.input_value(0))}, "
            f"wanted the state's own past ({describe(state.past)})"
        )
    axis = concat.get_attributes()["axis"]
    rank = concat.get_output_partial_shape(0).rank.get_length()
    return Append(concat, axis + rank if axis < 0 else axis)


def give_initial_value(state: State) -> bool:
    """Start a state whose ReadValue has no input with zeros: batch 1, nothing in its dynamic dims; True when done."""
    if state.read.get_input_size():
        return False
    shape = state.variable.info.data_shape
    dims = [shape[d].get_length() if shape[d].is_static else int(d == 0) for d in range(shape.rank.get_length())]
    zeros = zeros_constant(dims, state.variable.info.data_type, f"{state.name}/initial")
    state.read.set_arguments([zeros.output(0)])
    state.read.validate_and_infer_types()
    return True
