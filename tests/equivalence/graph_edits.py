"""Small edits of a graph, to plant a difference in it on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from openvino import Model

from ovpasses._openvino import Node, Output, ops, replace_source
from ovpasses.passes._states import Append, State, find_append, states

Make = Callable[[Output], Node]


def state(model: Model, name: str) -> State:
    """The state whose name starts so, as ``cache_k_l0``."""
    return next(s for s in states(model) if s.name.startswith(name) or s.variable.info.variable_id.startswith(name))


def append(model: Model, name: str) -> Append:
    """The Concat of past and new rows of a state."""
    found = find_append(state(model, name))
    assert not isinstance(found, str), found
    return found


def parameter(model: Model, name: str) -> Output:
    """An input by name."""
    return next(p.output(0) for p in model.get_parameters() if name in p.output(0).get_names())


def of_type(model: Model, kind: str) -> list[Node]:
    """In topological order."""
    return [op for op in model.get_ordered_ops() if op.get_type_name() == kind]


def attention(model: Model, layer: int) -> Node:
    """The attention op of a layer, of a model whose layers all have one."""
    return of_type(model, "ScaledDotProductAttention")[layer]


def upstream(node: Node, *kinds: str) -> Node:
    """The nearest op of one of these types that feeds a node, through first inputs."""
    while node.get_type_name() not in kinds:
        node = node.input_value(0).get_node()
    return node


def feed(node: Node, port: int, value: Any) -> None:
    """Give an input of a node another source: an op, an output, or a constant of the type it has."""
    if not isinstance(value, Node | Output):
        value = ops.constant(np.asarray(value), dtype=node.input_value(port).get_element_type())
    replace_source(node.input(port), value.output(0) if isinstance(value, Node) else value)


def change(node: Node, port: int, make: Make) -> None:
    """Put an op before one input of a node."""
    feed(node, port, make(node.input_value(port)))


def change_all(value: Output, make: Make) -> None:
    """Put an op behind an output, before all of its readers."""
    readers = list(value.get_target_inputs())
    made = make(value)
    for reader in readers:
        replace_source(reader, made.output(0))


def ints(*values: int) -> Node:
    return ops.constant(np.array(values, np.int64))


def reshaped(value: Any, *dims: int) -> Node:
    return ops.reshape(value, ints(*dims), special_zero=False)


def ordered(value: Any, *order: int) -> Node:
    return ops.transpose(value, ints(*order))


def plus(number: int) -> Make:
    """Adds to an integer."""
    return lambda value: ops.add(value, ops.constant(np.array(number), dtype=value.get_element_type()))


def swap_sources(one: Node, other: Node, port: int = 0) -> None:
    """Each gets what was the other's."""
    first, second = one.input_value(port), other.input_value(port)
    feed(one, port, second)
    feed(other, port, first)


def readers_of(value: Output, kind: str) -> Iterator[tuple[Node, int]]:
    """Ops of a type that read an output, and by which input."""
    for reader in value.get_target_inputs():
        if reader.get_node().get_type_name() == kind:
            yield reader.get_node(), reader.get_index()


def weights(node: Node) -> Node:
    """The nearest large Constant that feeds a node."""
    found = [node]
    while found:
        found = [value.get_node() for one in found for value in one.input_values()]
        for one in found:
            if one.get_type_name() == "Constant" and one.get_byte_size() > 4000:
                return one
    raise AssertionError(f"{node.get_friendly_name()} has no weights")


# What must not matter ------------------------------------------------------------------------------------------------


def rename_variables(model: Model) -> Model:
    for number, variable in enumerate(model.get_variables()):
        info = variable.info
        info.variable_id = f"variable_{number}"
        variable.update(info)
    for read in of_type(model, "ReadValue"):
        read.output(0).get_tensor().set_names(set())
    return model


def reorder(model: Model) -> Model:
    """The same nodes, given to a new Model in the opposite order."""
    return Model(list(reversed(model.get_results())), list(reversed(model.get_sinks())), model.get_parameters()[::-1])
