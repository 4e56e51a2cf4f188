"""What a comparison reaches by default, and what it says of what it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import openvino as ov
import pytest

import ovpasses as ovp
from models import tiny_graphs as tiny
from ovpasses._openvino import ops
from ovpasses.equivalence import compare_numbers
from ovpasses.importers import ImportedModel
from ovpasses.passes._states import states
from tests.equivalence.graph_edits import of_type
from tests.equivalence.model_forms import copied, dump, gguf, rewritten, static_pair


def doubled_queries_on_a_past(model: ov.Model) -> None:
    """Wrong where several tokens meet a past, as in the second turn of a chat, and nowhere else."""
    for attention in of_type(model, "ScaledDotProductAttention"):
        query, key = attention.input_value(0), attention.input_value(1)
        tokens, cells = (
            ops.gather(ops.shape_of(x), ops.constant(np.int64([2])), ops.constant(np.int64(0))) for x in (query, key)
        )
        several = ops.logical_and(ops.greater(tokens, ops.constant(np.int64([1]))), ops.greater(cells, tokens))
        factor = ops.add(ops.convert(several, "f32"), ops.constant(np.float32([1])))
        attention.input(0).replace_source_output(ops.multiply(query, ops.convert_like(factor, query)).output(0))
    model.validate_nodes_and_infer_types()


def doubled_past(model: ov.Model) -> None:
    """Of the last layer's keys, as a static graph takes them in."""
    keys = next(p for p in model.get_parameters() if any("cache_k_l2" in n for n in p.output(0).get_names()))
    readers = list(keys.output(0).get_target_inputs())
    twice = ops.multiply(keys, ops.convert_like(ops.constant(np.float32([2])), keys))
    for reader in readers:
        reader.replace_source_output(twice.output(0))
    model.validate_nodes_and_infer_types()


@pytest.mark.needs_2026_4
def test_several_tokens_meet_a_past() -> None:
    right = rewritten(ovp.read_model(gguf("llama-gqa")))
    wrong = copied(right)
    doubled_queries_on_a_past(wrong.model)
    report = compare_numbers(right, wrong)
    assert report.first is not None
    assert report.first.step == 3
    short = compare_numbers(right, wrong, steps=(7, 1, 1))
    assert short
    assert "note: no step runs several tokens on a past; give steps such as 7,1,3,1" in str(short)


@pytest.mark.needs_2026_4
def test_the_prefill_model_of_a_static_pair_meets_a_past() -> None:
    right = static_pair(ovp.read_model(gguf("llama-gqa")), chunk=16)
    prefill, decode = (copied(model) for model in right)
    doubled_past(prefill.model)
    report = compare_numbers(right, (prefill, decode))
    assert report.first is not None
    assert report.first.step == 3


@pytest.mark.needs_2026_4
def test_windows() -> None:
    right = rewritten(ovp.read_model(gguf("gemma4-mixed")))
    report = compare_numbers(right, copied(right))
    assert report
    assert report.notes == ["the sliding window of 64 tokens is not passed by 12; give longer steps"]
    assert report.to_dict()["notes"] == report.notes
    assert compare_numbers(right, copied(right), steps=(60, 1, 5)).notes == []
    layers = tuple(replace(one, window=10 if one.window else None) for one in right.info.layers)
    other = ImportedModel(copied(right).model, replace(right.info, layers=layers))
    assert "layer 0 slides over 64 tokens in a " in str(compare_numbers(right, other))


def with_a_second_output(factor: float) -> ImportedModel:
    imported = dump("llama-gqa", "stateful")
    hidden = ops.multiply(of_type(imported.model, "MatMul")[3].output(0), ops.constant(np.float32(factor)))
    imported.model.add_results([tiny.result(hidden.output(0), "hidden")])
    imported.model.validate_nodes_and_infer_types()
    return imported


def test_every_output_of_a_language_model_is_compared() -> None:
    assert compare_numbers(with_a_second_output(1), with_a_second_output(1))
    assert "output hidden after step 1" in str(compare_numbers(with_a_second_output(1), with_a_second_output(5)))
    report = compare_numbers(dump("llama-gqa", "stateful"), with_a_second_output(1))
    assert report.differences == [f"output hidden is only in {report.b}"]


def test_a_second_output_as_wide_as_the_logits_is_not_taken_for_them() -> None:
    plain, other = dump("llama-gqa", "stateful"), dump("llama-gqa", "stateful")
    logits = other.model.get_results()[0].input_value(0)
    other.model.add_results([tiny.result(ops.relu(logits).output(0), "hidden")])
    other.model.validate_nodes_and_infer_types()
    sessions = [ovp.Session(ovp.compile_model(one, "CPU"), one.info) for one in (plain, other)]
    assert np.array_equal(*(session.prefill([1, 2, 3]) for session in sessions))


@pytest.mark.needs_2026_4
def test_a_state_that_is_not_reordered_for_beams_is_named() -> None:
    right = rewritten(ovp.read_model(gguf("llama-gqa")))
    wrong = copied(right)
    gather = next(s.beam_gather for s in states(wrong.model) if s.name.startswith("cache_v_l1"))
    assert gather is not None
    gather.output(0).replace(gather.input_value(0))
    wrong.model.validate_nodes_and_infer_types()
    report = compare_numbers(right, wrong)
    assert report.differences == [f"state value of layer 1 is gathered by beam_idx in {report.a} only"]


@pytest.mark.parametrize("off", [-1, 1, 3])
def test_a_mask_that_is_cut_at_another_place_is_found(off: int) -> None:
    """Too long a cut shows where masks are wider than the tokens, as llama.cpp pads them."""
    original, wrong = (dump("llama-gqa", "stateful-prerelayout") for _ in range(2))
    end = next(op for op in wrong.model.get_ordered_ops() if op.get_friendly_name() == "Add_58")
    size = end.input_value(1).get_node()
    end.input(1).replace_source_output(ops.constant(size.data + off).output(0))
    wrong.model.validate_nodes_and_infer_types()
    assert not compare_numbers(original, wrong)
    assert compare_numbers(original, copied(original))


def integers(value: int) -> ov.Model:
    x = tiny.parameter("x", [-1], "f32")
    ids = ops.add(ops.convert(x, "i64"), ops.constant(np.int64(value)))
    return ov.Model([tiny.result(ids.output(0), "ids"), tiny.result(ops.convert(x, "f16").output(0), "y")], [x])


def test_integers_are_compared_exactly() -> None:
    assert compare_numbers(integers(50_000), integers(50_000))
    assert not compare_numbers(integers(50_000), integers(50_001))


def test_integer_inputs_of_which_little_was_given_are_told() -> None:
    def build(most: int) -> ov.Model:
        x = tiny.parameter("rows", [-1], "i64")
        return ov.Model([tiny.result(ops.minimum(x, ops.constant(np.int64(most))).output(0), "y")], [x])

    assert compare_numbers(build(1), build(300)).notes == ["input rows takes integers, of which 0 and 1 were given"]


def test_a_table_that_integers_look_up_is_no_language_model() -> None:
    rows = tiny.parameter("rows", [-1], "i64")
    table = ops.constant(np.arange(40, dtype=np.float32).reshape(10, 4))
    model = ov.Model([tiny.result(ops.relu(ops.gather(table, rows, ops.constant(np.int64(0)))).output(0), "y")], [rows])
    assert {c.name for c in compare_numbers(model, model.clone()).comparisons} == {"y"}


def test_ports_are_matched_by_any_name_they_have_in_common() -> None:
    def build(into: set[str], out: set[str]) -> ov.Model:
        x = tiny.parameter("x", [-1, 4], "f32")
        y = ops.relu(x)
        model = ov.Model([tiny.result(y.output(0), "y")], [x])
        x.output(0).get_tensor().set_names(into)
        y.output(0).get_tensor().set_names(out)
        return model

    for into, out in (({"x", "a"}, {"y"}), ({"x"}, {"y", "a"}), ({"x", "z"}, {"y", "z2"})):
        for one, other in ((build({"x"}, {"y"}), build(into, out)), (build(into, out), build({"x"}, {"y"}))):
            assert compare_numbers(one, other), (into, out)
    renamed = compare_numbers(build({"x"}, {"y"}), build({"z"}, {"y"}))
    assert not renamed
    assert [note.split(" is only")[0] for note in renamed.notes] == ["input x", "input z"]
