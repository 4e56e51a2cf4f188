"""The only ways a pass changes a graph: each checks types and shapes, and carries names over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from openvino import Model, PartialShape, Type

from ovpasses._openvino import Node, Output, Parameter, Variable, VariableInfo, ops, replace_source
from ovpasses.errors import RewriteError
from ovpasses.importers._walk import Input, const_value, consumers
from ovpasses.passes.report import PassReport

__all__ = [
    "Input",
    "const",
    "const_value",
    "consumers",
    "deferred",
    "describe",
    "drop_unread_inputs",
    "drop_unread_parameters",
    "like",
    "parameter",
    "redirect",
    "rewire",
    "set_shape",
    "set_variable_shape",
    "transpose_0213",
    "zeros_constant",
]


def const(value: Any, dtype: Any = np.int64) -> Node:
    """A Constant from a Python value."""
    return ops.constant(np.asarray(value, dtype=dtype))


def zeros_constant(shape: list[int], dtype: Type, name: str) -> Node:
    """A Constant of zeros; dims may be 0."""
    node: Node = ops.constant(np.zeros(shape, dtype=np.float32), dtype=dtype)
    node.set_friendly_name(name)
    return node


def describe(output: Output) -> str:
    """A value for messages: op type, name, element type, shape."""
    node = output.get_node()
    kind = f"{output.get_element_type().get_type_name()} {output.get_partial_shape()}"
    return f"{node.get_type_name()} {node.get_friendly_name()} {kind}"


def rewire(consumer: Input, new: Output) -> None:
    """Feed one input from another output.

    Raises:
        RewriteError: element types differ, or ranks are known and differ.
    """
    old = consumer.get_source_output()
    same_type = old.get_element_type() == new.get_element_type()
    ranks = [o.get_partial_shape().rank for o in (old, new)]
    if not same_type or (all(r.is_static for r in ranks) and ranks[0] != ranks[1]):
        raise RewriteError(
            f"input {consumer.get_index()} of {consumer.get_node().get_friendly_name()}: "
            f"cannot be fed {describe(new)} in place of {describe(old)}; this is a fault of the pass"
        )
    replace_source(consumer, new)


def redirect(old: Output, new: Output, *, only: Iterable[Input] | None = None) -> None:
    """Feed all consumers of ``old`` (or only those given) from ``new``; tensor names go along when all do."""
    whole = only is None
    for consumer in consumers(old) if only is None else only:
        rewire(consumer, new)
    if whole and old.get_names():
        new.get_tensor().add_names(old.get_names())
        old.get_tensor().set_names(set())


def like(node: Node, origin: Node, *, name: str | None = None) -> Node:
    """Give a new node the friendly name (or ``name``) and rt_info of the node it stands for."""
    node.set_friendly_name(name if name is not None else origin.get_friendly_name())
    target = node.get_rt_info()
    for key, value in origin.get_rt_info().items():
        target[key] = value.value if hasattr(value, "value") else value
    return node


def transpose_0213(output: Output, name: str) -> Node:
    """Swap dims 1 and 2 of a rank-4 value; a Constant is transposed at once."""
    value = const_value(output)
    if value is not None and output.get_element_type() != Type.bf16:  # whose values NumPy sees as f16
        node: Node = ops.constant(np.ascontiguousarray(value.transpose(0, 2, 1, 3)))
    else:
        node = ops.transpose(output, const([0, 2, 1, 3]))
    node.set_friendly_name(name)
    return node


def set_variable_shape(variable: Variable, shape: Any) -> None:
    """Declare another shape for a Variable (its ReadValue must be validated afterwards)."""
    info = VariableInfo()
    info.variable_id = variable.info.variable_id
    info.data_type = variable.info.data_type
    info.data_shape = shape
    variable.update(info)


def parameter(model: Model, name: str, dtype: Type, shape: Any) -> Node:
    """The model's Parameter called ``name``, added when there is none.

    Raises:
        RewriteError: there is one, of another element type.
    """
    for existing in model.get_parameters():
        if name in existing.output(0).get_names():
            if existing.get_element_type() != dtype:
                found = existing.get_element_type().get_type_name()
                raise RewriteError(f"input {name}: found {found}, wanted {dtype.get_type_name()}")
            return existing
    added = Parameter(dtype, shape)
    added.set_friendly_name(name)
    added.output(0).get_tensor().set_names({name})
    model.add_parameters([added])
    return added


def drop_unread_parameters(model: Model, among: Iterable[Node] | None = None) -> list[str]:
    """Remove the Parameters (or only of those given) that no op of the model reads; returns their names."""
    live = set(model.get_ops())
    dropped = []
    for unread in list(model.get_parameters()) if among is None else among:
        if not any(i.get_node() in live for i in unread.output(0).get_target_inputs()):
            model.remove_parameter(unread)
            dropped.append(unread.get_friendly_name())
    return dropped


def deferred(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], None]:
    """A pass's edit: call it later with these values."""

    def edit() -> None:
        function(*args, **kwargs)

    return edit


def drop_unread_inputs(model: Model, report: PassReport) -> None:
    """Remove the Parameters that no op of the model reads, with a note of which."""
    dropped = drop_unread_parameters(model)
    if dropped:
        report.notes.append(f"removed unread inputs {', '.join(dropped)}")


def set_shape(parameter: Node, shape: PartialShape) -> None:
    """Give a Parameter another shape; what reads it is validated with the model."""
    parameter.set_partial_shape(shape)
    parameter.validate_and_infer_types()
