"""Ops that change nothing on the way of a cache do not stop a pass, and what does stop it is named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from openvino import Model

from models.tiny_graphs import Decoder, scattered, stateful, stateless
from ovpasses._openvino import Node, Output, ops
from ovpasses.passes import BeamReorder, KVHeadSplit, KVStateSeqAxis, MakeKVStateful
from tests.passes.helpers import assert_same_numbers, nodes, run

KNOBS = Decoder(layers=2, heads=[3, 1], size=4, repeats=2)
Wrap = Callable[[Output], Node]


def same_reshape(x: Output) -> Node:
    shape = x.get_partial_shape()
    return ops.reshape(x, np.array([0 if d.is_dynamic else d.get_length() for d in shape]), special_zero=True)


def same_convert(x: Output) -> Node:
    return ops.convert(x, x.get_element_type().get_type_name())


def transposed_twice(x: Output) -> Node:
    return ops.transpose(ops.transpose(x, np.array([0, 3, 1, 2])), np.array([0, 2, 3, 1]))


def same_transpose(x: Output) -> Node:
    return ops.transpose(x, np.array([0, 1, 2, 3]))


def widened(x: Output) -> Node:
    return ops.convert(ops.convert(x, "f64"), x.get_element_type().get_type_name())


def reshaped_twice(x: Output) -> Node:
    return same_reshape(same_reshape(x).output(0))


WRAPS = [same_reshape, same_convert, same_transpose, transposed_twice, widened, reshaped_twice]


def wrapped(model: Model, where: str, wrap: Wrap) -> Model:
    """Put ops on the way of every cache: before the append ("past"), after it, or to some readers."""
    for node in [*nodes(model, "Concat"), *nodes(model, "ScatterUpdate")]:
        if node.input_value(0).get_node().get_type_name() in ("ReadValue", "Parameter"):
            _wrap(node, where, wrap)
    model.validate_nodes_and_infer_types()
    return model


def _wrap(node: Node, where: str, wrap: Wrap) -> None:
    if where == "past":
        node.input(0).replace_source_output(wrap(node.input_value(0)).output(0))
        return
    keepers = ("Assign", "Result")
    targets = [
        i
        for i in node.output(0).get_target_inputs()
        if where == "present" or (i.get_node().get_type_name() in keepers) == (where == "assign")
    ]
    new = wrap(node.output(0)).output(0)
    for target in targets:
        target.replace_source_output(new)


@pytest.mark.parametrize("where", ["past", "present", "assign", "readers"])
@pytest.mark.parametrize("wrap", WRAPS)
def test_sequence_axis_is_moved_all_the_same(wrap: Wrap, where: str) -> None:
    model = wrapped(stateful(KNOBS), where, wrap)
    one = KVStateSeqAxis()
    one.run_on_model(model)
    assert one.report.rewritten == 4
    assert all(v.info.data_shape[2].is_dynamic for v in model.get_variables())
    for last in (BeamReorder(), KVHeadSplit()):
        last.run_on_model(model)
    assert_same_numbers(run(model), run(stateful(KNOBS)), 2e-6, states=False)


@pytest.mark.parametrize("where", ["past", "present", "assign", "readers"])
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("build", [stateless, scattered])
def test_caches_become_states_all_the_same(build: Callable[[Decoder], Model], wrap: Wrap, where: str) -> None:
    model = wrapped(build(KNOBS), where, wrap)
    one, axis = MakeKVStateful(), KVStateSeqAxis()
    one.run_on_model(model)
    axis.run_on_model(model)
    assert one.report.rewritten == axis.report.rewritten == 4
    assert_same_numbers(run(model), run(stateful(KNOBS)), 2e-6, states=False)


def test_a_reshape_that_changes_something_is_named() -> None:
    def flattened(x: Output) -> Node:
        heads, size = (x.get_partial_shape()[d].get_length() for d in (2, 3))
        node = ops.reshape(x, np.array([1, -1, 1, heads * size]), special_zero=False)
        node.set_friendly_name("flattened")
        return ops.reshape(node, np.array([1, -1, heads, size]), special_zero=False)

    model = wrapped(stateful(Decoder(heads=3)), "assign", flattened)
    one = KVStateSeqAxis()
    one.run_on_model(model)
    assert [skip.step for skip in one.report.skipped] == ["append"] * 2
    assert "is fed by Reshape" in one.report.skipped[0].reason


def test_a_narrowing_convert_is_not_looked_through() -> None:
    def narrowed(x: Output) -> Node:
        return ops.convert(ops.convert(x, "f16"), "f32")

    model = wrapped(stateful(KNOBS), "assign", narrowed)
    one = KVStateSeqAxis()
    one.run_on_model(model)
    assert one.report.rewritten == 0
    assert "is fed by Convert" in one.report.skipped[0].reason
