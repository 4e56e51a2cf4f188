"""BatchSequences: any set of the sequences of a dump's caches in one inference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from openvino import Model, PartialShape, Type

import ovpasses as ovp
from ovpasses import ChunkValidLen, LowerGatedDeltaNet, StaticSlotCopy, StaticTokens
from ovpasses._openvino import Manager, Parameter, ops
from ovpasses.equivalence import structure_digest
from ovpasses.importers._sequence_caches import sequence_caches
from ovpasses.importers._slots import slot_caches
from ovpasses.importers.input_roles import input_roles
from ovpasses.passes import BatchSequences
from ovpasses.passes.report import PassReport
from tests.conftest import RECORDED
from tests.passes.helpers import assert_same, nodes
from tests.passes.sequence_graphs import VOCAB, attention_of_sequences, write_odd_rows

AGES = ("before", "after")
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
GONE = ("n_seq_active", "s_copy_active", "rs_slot_begin", "rs_src_begin", "seq_active_start", "seq_active_end")


def dump(age: str = "after") -> Model:
    return ovp.read_model(RECORDED / age / "qwen35" / "stateless-slots-2-of-4" / "model.xml").model


def inputs(model: Model) -> dict[str, str]:
    return {p.output(0).get_any_name(): str(p.get_output_partial_shape(0)) for p in model.get_parameters()}


# A graph by hand -----------------------------------------------------------------------------------------------------


def test_before_and_after_by_hand() -> None:
    model, one = attention_of_sequences(), BatchSequences(strict=True)
    assert one.run_on_model(model) is True
    assert one.report.sites == ["cache_k_l0", "cache_v_l0"]
    assert one.report.notes == [
        "added input seq_active i64 [?]",
        "removed unread inputs n_seq_active, seq_active_start, seq_active_end",
    ]
    # The list is the last input here, and a Reshape that was open stays as it was.
    wanted = attention_of_sequences(listed=True)
    last = next(p for p in wanted.get_parameters() if "seq_active" in p.output(0).get_names())
    wanted.remove_parameter(last)
    wanted.add_parameters([last])
    assert_same(model, wanted)
    digest, again = structure_digest(model), BatchSequences(strict=True)
    assert again.run_on_model(model) is False
    assert {(skip.step, skip.reason) for skip in again.report.skipped} == {
        ("already", "it is read by a list of sequences")
    }
    assert structure_digest(model) == digest
    other, manager = attention_of_sequences(), Manager()
    manager.register_pass(BatchSequences())
    manager.run_passes(other)
    assert structure_digest(other) == digest


@pytest.mark.parametrize("slots", [(0,), (2, 0), (1, 2, 0)])
def test_numbers_are_those_of_one_by_one(slots: tuple[int, ...]) -> None:
    tokens = {slot: np.random.default_rng(slot).integers(0, VOCAB, 6) for slot in slots}
    sessions = []
    for passes in ([], [BatchSequences()]):
        imported = ovp.read_model(attention_of_sequences())
        ovp.Pipeline(passes).run(imported)
        sessions.append(ovp.SlotSessions(ovp.compile_model(imported, "CPU", F32), imported.info, cells=16))
    for begin, end in ((0, 4), (4, 5), (5, 6)):
        alone, together = (one.prefill({s: t[begin:end] for s, t in tokens.items()}, True) for one in sessions)
        for slot in slots:
            np.testing.assert_allclose(together[slot], alone[slot], rtol=1e-5, atol=1e-5)


def test_the_number_of_sequences_may_be_fixed_at_once_or_later() -> None:
    at_once, later, static = (attention_of_sequences() for _ in range(3))
    BatchSequences(sequences=2).run_on_model(at_once)
    assert inputs(at_once)["seq_active"] == "[2]"
    for sequences in (None, 2):
        assert BatchSequences(sequences=sequences, strict=True).run_on_model(later) is True
    assert_same(later, at_once)
    again = BatchSequences(sequences=3)
    assert again.run_on_model(later) is False
    assert {(s.step, s.reason) for s in again.report.skipped} == {("sequences", "a call runs 2 sequences, wanted 3")}
    ovp.Pipeline([BatchSequences(sequences=2), StaticTokens(tokens=4, context=8)]).run(static)
    assert inputs(static) == {
        "inp_tokens": "[1,1,1,8]",
        "out_ids": "[1,1,1,2]",
        "self_kq_mask": "[2,1,4,8]",
        "cache_k_l0": "[1,3,8,4]",
        "cache_v_l0": "[1,3,8,4]",
        "k_idxs": "[1,1,1,8]",
        "v_idxs": "[1,1,1,8]",
        "seq_active": "[2]",
    }


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ovp.RewriteError, match="sequences is 0, wanted at least 1"):
        BatchSequences(sequences=0)
    model = attention_of_sequences()
    digest = structure_digest(model)
    with pytest.raises(ovp.RewriteError, match="sequences is 4, but the caches hold 3; nothing was changed"):
        BatchSequences(sequences=4).run_on_model(model)
    assert structure_digest(model) == digest
    assert repr(BatchSequences(sequences=2, strict=True)) == "BatchSequences(sequences=2, strict=True)"


@pytest.mark.parametrize("source", ["after/llama-gqa/stateless/model.xml", "after/qwen35/stateless/model.xml"])
def test_caches_of_one_sequence(source: str) -> None:
    model, one = ovp.read_model(RECORDED / source).model, BatchSequences(strict=True)
    digest = structure_digest(model)
    assert one.run_on_model(model) is False
    assert structure_digest(model) == digest
    assert {(skip.step, skip.reason) for skip in one.report.skipped} <= {("kind", "it holds one sequence")}
    with pytest.raises(ovp.RewriteError, match="sequences is 2, but the caches hold 1"):
        BatchSequences(sequences=2).run_on_model(model)


# What it leaves alone, and why ---------------------------------------------------------------------------------------


def refused(model: Model) -> PassReport:
    digest, one = structure_digest(model), BatchSequences()
    assert one.run_on_model(model) is False
    assert one.report.rewritten == 0
    assert structure_digest(model) == digest
    with pytest.raises(ovp.RewriteError, match="nothing was changed"):
        BatchSequences(strict=True).run_on_model(model)
    return one.report


def reasons(report: PassReport) -> dict[str, tuple[str, str]]:
    return {skip.node: (skip.step, skip.reason) for skip in report.skipped}


def test_a_query_of_one_row() -> None:
    found = reasons(refused(attention_of_sequences(one_query=True)))
    assert found["cache_k_l0"][0] == "query"
    assert found["cache_k_l0"][1].startswith("the query is Transpose")
    assert found["cache_k_l0"][1].endswith("f32 [1,2,?,2], wanted a batch that is not fixed")


def test_a_count_of_another_type() -> None:
    model = attention_of_sequences()
    count = next(p for p in model.get_parameters() if "n_seq_active" in p.output(0).get_names())
    small = Parameter(Type.i32, PartialShape([1]))
    small.output(0).get_tensor().set_names({"n_seq"})
    small.set_friendly_name("n_seq")
    reader = next(iter(count.output(0).get_target_inputs()))
    concat = reader.get_node()
    rest = concat.input_value(1)
    target = ops.concat([small, ops.convert(rest, "i32")], axis=0)
    next(iter(concat.output(0).get_target_inputs())).replace_source_output(target.output(0))
    model.add_parameters([small])
    model.remove_parameter(count)
    model.validate_nodes_and_infer_types()
    found = reasons(refused(model))
    assert found["cache_v_l0"] == ("count", "input n_seq is Parameter n_seq i32 [1], wanted an input i64 [1]")


def test_caches_of_different_numbers() -> None:
    model = dump()
    cache = next(c for c in sequence_caches(model) if c.name == "cache_v_l3")
    for view, target in zip(cache.views, ([1, 1, 512, 32], [1, 2, -1, 32], [2, 256, 2, 16]), strict=True):
        view.input(1).replace_source_output(ops.constant(np.array(target)).output(0))
    cache.parameter.set_partial_shape(PartialShape([1, 2, -1, 32]))
    model.validate_nodes_and_infer_types()
    assert reasons(refused(model))["cache_k_l3"] == (
        "sequences",
        "the caches hold 2, 4 sequences, wanted one number for all",
    )


def test_rows_that_cannot_be_told() -> None:
    model = dump()
    write_odd_rows(model)
    found = reasons(refused(model))
    assert found["cache_r_l1"] == ("rows", "Relu odd makes its rows, wanted a Slice")
    assert found["cache_k_l3"] == (
        "rows",
        "all change together, but cache_r_l1: Relu odd makes its rows, wanted a Slice",
    )


def test_a_slot_to_clear_that_is_a_constant() -> None:
    model = dump()
    reset = next(c for c in slot_caches(model) if c.name == "cache_s_l0").reset
    assert reset is not None
    baked = ops.constant(np.array([0], np.int64))
    baked.set_friendly_name("baked")
    for reader in reset.index:
        reader.replace_source_output(baked.output(0))
    model.validate_nodes_and_infer_types()
    step, reason = reasons(refused(model))["cache_s_l0"]
    assert (step, reason) == ("reset", "a slot to clear is Constant baked i64 [1], wanted an input i64 [1]")


@pytest.mark.parametrize(
    ("first", "step", "words"),
    [
        (LowerGatedDeltaNet, "net", "is lowered to a Loop; run this pass before LowerGatedDeltaNet"),
        (
            ChunkValidLen,
            "padding",
            "has the input chunk_valid_len, for one sequence; run ChunkValidLen after this pass",
        ),
    ],
)
def test_passes_that_come_later(first: Callable[[], ovp.passes.base.ReportedPass], step: str, words: str) -> None:
    model = dump()
    first().run_on_model(model)
    found = {skip.step: skip.reason for skip in refused(model).skipped if words in skip.reason}
    assert list(found) == [step]


# Recorded graphs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("age", AGES)
def test_recorded_graphs(age: str) -> None:
    model, one = dump(age), BatchSequences(strict=True)
    before = inputs(model)
    assert one.run_on_model(model) is True
    assert one.report.rewritten == 3 * 2 + 2 + 3  # conv and delta-net caches, keys and values, delta nets
    found = inputs(model)
    assert before.keys() - found.keys() == {name for name in before if name.startswith(GONE)}
    assert found.keys() - before.keys() == {"seq_active"}
    assert {name: found[name] for name in ("seq_active", "cache_rs_reset_idx", "cache_rs_reset_len")} == dict.fromkeys(
        ("seq_active", "cache_rs_reset_idx", "cache_rs_reset_len"), "[?]"
    )
    assert len(model.get_results()) == 9  # logits and eight caches; none for rows that a defrag moved
    assert all(cache.update is not None and cache.update.begin is None for cache in slot_caches(model))
    assert sum(cache.is_listed for cache in sequence_caches(model)) == 2
    nets = nodes(model, "GatedDeltaNet")
    assert [str(net.get_input_partial_shape(i)[0]) for net in nets for i in range(6)] == ["?"] * 18
    roles = input_roles(model)
    assert {"seq_active", "rs_s_copy", "attention_size", "out_ids", "cache_rs_reset_idx"} <= set(roles.values())
    digest = structure_digest(model)
    assert BatchSequences(strict=True).run_on_model(model) is False
    assert structure_digest(model) == digest
    other, manager = dump(age), Manager()
    manager.register_pass(BatchSequences())
    manager.run_passes(other)
    assert structure_digest(other) == digest


@pytest.mark.parametrize("age", AGES)
def test_lengths_of_padding_are_one_for_each_sequence(age: str) -> None:
    model = dump(age)
    ovp.Pipeline([BatchSequences(strict=True), ChunkValidLen(strict=True)]).run(model)
    assert inputs(model)["chunk_valid_len"] == "[?]"
    again = ovp.Pipeline([BatchSequences(sequences=2, strict=True), ChunkValidLen(strict=True)]).run(model)
    assert (again["BatchSequences"].rewritten, again["ChunkValidLen"].rewritten) == (8, 0)
    assert inputs(model)["chunk_valid_len"] == "[2]"
    assert inputs(model)[next(n for n, r in input_roles(model).items() if r == "rs_s_copy")] == "[1,1,1,4]"


def test_the_slots_of_a_batch_are_left_alone_by_static_slot_copy() -> None:
    model = dump()
    BatchSequences(sequences=2).run_on_model(model)
    digest, one = structure_digest(model), StaticSlotCopy(drop_empty=True, strict=True)
    assert one.run_on_model(model) is False
    assert structure_digest(model) == digest
