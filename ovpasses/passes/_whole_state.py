"""Let the readers of a state see all of it: what selected a stateless cache's cells and sequences goes away."""

from __future__ import annotations

import numpy as np
from openvino import Model

from ovpasses._openvino import Node, Output, ops
from ovpasses.passes._edit import const_value, consumers, like, redirect

_SCALAR_VIEWS = ("Convert", "Reshape", "Squeeze", "Unsqueeze")


def drop_cell_slices(grown: Output) -> None:
    """Bypass ``Slice(0 .. an input)`` of the cells: a grown state holds exactly the attended ones.

    Args:
        grown: the state after the append; the slice may sit behind a Reshape that splits its heads.
    """
    views = [i.get_node().output(0) for i in consumers(grown) if i.get_node().get_type_name() == "Reshape"]
    for value in [grown, *views]:
        for reader in consumers(value):
            if reader.get_index() == 0 and _slices_cells(reader.get_node()):
                redirect(reader.get_node().output(0), value)


def _slices_cells(node: Node) -> bool:
    if node.get_type_name() != "Slice" or node.get_input_size() != 5:
        return False
    start, step, axis = (const_value(node.input_value(i)) for i in (1, 3, 4))
    shape = node.input_value(0).get_partial_shape()
    if start is None or step is None or axis is None or axis.size != 1 or shape.rank.is_dynamic:
        return False
    dynamic = [d for d in range(1, shape.rank.get_length()) if shape[d].is_dynamic]
    one_axis = [int(axis.ravel()[0]) % shape.rank.get_length()] == dynamic
    return one_axis and not start.any() and bool((step == 1).all()) and _is_input(node.input_value(2))


def _is_input(output: Output) -> bool:
    node = output.get_node()
    while node.get_type_name() in _SCALAR_VIEWS:
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Parameter")


def fix_sequence_count(model: Model) -> list[str]:
    """Make the input that counts sequences the constant 1, as the states hold one.

    It is an integer ``[1]`` that does nothing but lead the target shapes of Reshapes, where the batch goes.

    Returns:
        Names of the inputs that lost their readers so.
    """
    fixed = []
    for parameter in model.get_parameters():
        shape, dtype = parameter.get_output_partial_shape(0), parameter.get_element_type()
        if shape.rank.is_dynamic or shape.rank.get_length() != 1 or shape[0] != 1 or not dtype.is_integral_number():
            continue
        targets = [i.get_node() for i in consumers(parameter.output(0)) if i.get_index() == 0]
        if not targets or len(targets) != len(parameter.output(0).get_target_inputs()):
            continue
        if all(_is_reshape_target(t) for t in targets):
            for target in targets:
                _fold(target)
            fixed.append(parameter.get_friendly_name())
    return fixed


def _is_reshape_target(node: Node) -> bool:
    readers = consumers(node.output(0))
    only_reshapes = all(i.get_node().get_type_name() == "Reshape" and i.get_index() == 1 for i in readers)
    rest = [const_value(node.input_value(i)) for i in range(1, node.get_input_size())]
    return bool(node.get_type_name() == "Concat" and readers and only_reshapes and all(r is not None for r in rest))


def _fold(concat: Node) -> None:
    rest = [const_value(concat.input_value(i)) for i in range(1, concat.get_input_size())]
    dtype = concat.get_output_element_type(0).to_dtype()
    folded = ops.constant(
        np.concatenate([np.ones(1, dtype), *(r.ravel() for r in rest if r is not None)]).astype(dtype)
    )
    redirect(concat.output(0), like(folded, concat).output(0))
