"""Differences planted in a recorded graph are found and named, in structure and in numbers; their twins pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from openvino import Model

import ovpasses as ovp
from ovpasses._openvino import ops
from ovpasses.equivalence import compare_numbers, compare_structure
from tests.equivalence.graph_edits import (
    attention,
    change,
    change_all,
    feed,
    ints,
    of_type,
    ordered,
    parameter,
    rename_variables,
    reorder,
    state,
    swap_sources,
    weights,
)
from tests.equivalence.model_forms import copied, dump, static_pair

Plant = Callable[[Model], None]


def swap_assigns(model: Model) -> None:
    swap_sources(state(model, "cache_k_l0").assign, state(model, "cache_v_l0").assign)


def assigns_anew(model: Model) -> None:
    swap_assigns(model)
    swap_assigns(model)


def change_a_weight(by: float) -> Plant:
    def plant(model: Model) -> None:
        constant = weights(of_type(model, "MatMul")[1])  # of the keys of layer 0
        data = np.array(constant.data)
        data[3, 5] += np.float32(by)
        change_all(constant.output(0), lambda _: ops.constant(data))

    return plant


def norm_axis(axis: int) -> Plant:
    return lambda model: feed(of_type(model, "ReduceMean")[0], 1, [axis])


def attention_order(*order: int) -> Plant:
    def plant(model: Model) -> None:
        back = next(op for op in of_type(model, "Transpose") if op.get_output_partial_shape(0)[2] == 6)
        feed(back, 1, list(order))

    return plant


def twice_transposed(model: Model) -> None:
    change_all(attention(model, 0).output(0), lambda rows: ordered(ordered(rows, 0, 2, 1, 3), 0, 2, 1, 3))


def assign_the_past(model: Model) -> None:
    feed(state(model, "cache_v_l1").assign, 0, state(model, "cache_v_l1").read)


def assign_through_an_identity(model: Model) -> None:
    change(state(model, "cache_v_l1").assign, 0, lambda grown: ordered(grown, 0, 1, 2, 3))


def roll_mask(by: int) -> Plant:
    return lambda model: change_all(parameter(model, "self_kq_mask"), lambda mask: ops.roll(mask, ints(by), ints(-1)))


@dataclass(frozen=True)
class Planted:
    """A difference.

    Attributes:
        plant, twin: make it, and something as alike that means the same.
        numbers: words of the report of the check: what differs, and after which step.
        structure: words of the structural comparison.
    """

    plant: Plant
    twin: Plant
    numbers: tuple[str, ...]
    structure: tuple[str, ...] = field(default=())


PLANTED = {
    "swapped Assign targets": Planted(
        swap_assigns, assigns_anew, ("state key of layer 0 after step 1",), ("Assign", "cache_k_l0", "cache_v_l0")
    ),
    "a weight changed by 1e-2": Planted(
        change_a_weight(1e-2),
        change_a_weight(0),
        ("output logits after step 1",),
        ("MatMul", "input 1", "1 of 4608 values differ, the first at [3, 5]"),
    ),
    "a wrong axis": Planted(
        norm_axis(1), norm_axis(2), ("output logits after step 1",), ("ReduceMean", "[-1] in a, [1] in b")
    ),
    "a Transpose order": Planted(
        attention_order(0, 1, 2, 3),
        twice_transposed,
        ("output logits after step 1",),
        ("Transpose", "[0, 2, 1, 3] in a, [0, 1, 2, 3] in b"),
    ),
    "an Assign fed by its ReadValue": Planted(
        assign_the_past,
        assign_through_an_identity,
        ("after step 1", "it alone", "state cache_v_l1 holds 0 tokens, wanted the session's 7"),
        ("Assign", "cache_v_l1", "ReadValue"),
    ),
    "a mask off by one": Planted(roll_mask(1), roll_mask(0), ("output logits after step 1",), ("Roll",)),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_is_found_and_named(kind: str) -> None:
    planted, original = PLANTED[kind], dump("llama-gqa", "stateful-prerelayout")
    changed = copied(original)
    planted.plant(changed.model)
    changed.model.validate_nodes_and_infer_types()
    structure = compare_structure(original, changed)
    assert not structure.same
    for words in planted.structure:
        assert words in str(structure)
    with pytest.raises(ovp.NotEquivalentError) as found:
        ovp.assert_equivalent(original, changed)
    for words in planted.numbers:
        assert words in str(found.value)


@pytest.mark.parametrize("kind", PLANTED)
def test_a_twin_passes(kind: str) -> None:
    original = dump("llama-gqa", "stateful-prerelayout")
    twin = copied(original)
    PLANTED[kind].twin(twin.model)
    twin.model.validate_nodes_and_infer_types()
    assert ovp.assert_equivalent(original, twin)


def test_the_state_of_a_changed_weight_is_named() -> None:
    original = dump("llama-gqa", "stateful-prerelayout")
    changed = copied(original)
    change_a_weight(1e-2)(changed.model)
    wrong = [c.name for c in compare_numbers(original, changed).comparisons if not c.same and c.step == 1]
    assert "key of layer 0" in wrong
    assert "value of layer 0" not in wrong


@pytest.mark.needs_2026_4
def test_a_missing_gate_is_found_in_the_states() -> None:
    original = dump("qwen35", "stateless")
    pair = static_pair(original)
    changed = (copied(pair[0]), pair[1])
    change_all(parameter(changed[0].model, "chunk_valid_len"), lambda _: ints(5))
    report = compare_numbers(original, changed)
    wrong = [c.name for c in report.comparisons if not c.same and c.step == 1]
    assert wrong[:2] == ["conv of layer 0", "conv of layer 1"]
    assert "delta-net of layer 0" in wrong
    assert "logits" not in wrong  # not before the next step
    assert "Parameter" in str(compare_structure(pair[0], changed[0]))


# What must not matter ------------------------------------------------------------------------------------------------


def rename_nodes(model: Model) -> Model:
    for number, op in enumerate(model.get_ops()):
        op.set_friendly_name(f"renamed_{number}")
    return model


def fold_a_constant(model: Model) -> Model:
    """Squeeze of the tokens over axes that are made by an Add, and axes that are there."""
    squeeze = of_type(model, "Squeeze")[0]
    axes = squeeze.input_value(1).get_node().data
    feed(squeeze, 1, ops.add(ops.constant(np.zeros_like(axes)), ops.constant(axes)))
    return model


@pytest.mark.parametrize("change_it", [rename_variables, rename_nodes, reorder])
def test_names_and_order_do_not_matter(change_it: Callable[[Model], Model]) -> None:
    original = dump("llama-gqa", "stateful-prerelayout")
    twin = ovp.ImportedModel(change_it(original.model.clone()), original.info)
    assert compare_structure(original, twin).same
    report = ovp.assert_equivalent(original, twin)
    assert {c.name for c in report.comparisons if c.kind == "state"} >= {"key of layer 0", "value of layer 2"}


def test_a_folded_constant_differs_in_structure_alone() -> None:
    original = dump("llama-gqa", "stateful-prerelayout")
    twin = ovp.ImportedModel(fold_a_constant(original.model.clone()), original.info)
    assert "Add" in str(compare_structure(original, twin))
    assert ovp.assert_equivalent(original, twin)


def test_swapped_states_without_names_are_found() -> None:
    original = dump("llama-gqa", "stateful-prerelayout")
    changed = copied(original)
    swap_assigns(changed.model)
    rename_variables(changed.model)
    report = compare_numbers(original, changed)
    assert report.first is not None
    assert (report.first.name, report.first.step) == ("logits", 2)
