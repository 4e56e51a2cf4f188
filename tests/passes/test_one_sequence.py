"""OneSequence: what counts sequences and slots in a dump becomes constant, where there is one sequence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from openvino import Model, PartialShape

import ovpasses as ovp
from ovpasses import ChunkValidLen, LowerGatedDeltaNet, MakeKVStateful, OneSequence, StaticSlotCopy
from ovpasses._openvino import Manager
from ovpasses.equivalence import structure_digest
from ovpasses.importers._slots import slot_caches
from ovpasses.passes.base import ReportedPass
from tests.conftest import RECORDED, nmse
from tests.passes.helpers import nodes

REFERENCE = np.load(RECORDED / "logits" / "qwen35.npz")
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def read(dump: str) -> ovp.ImportedModel:
    return ovp.read_model(RECORDED / f"{dump}.xml")


def inputs(model: Model) -> set[str]:
    return {p.output(0).get_any_name() for p in model.get_parameters()}


def counted(model: Model) -> set[str]:
    known = ("n_seq_active", "s_copy_active_slot_len", "rs_slot_begin")
    return {name for name in inputs(model) if name.startswith(known)}


@pytest.mark.parametrize(
    ("dump", "counts", "caches"),
    [
        ("before/llama-gqa/stateless/model", 1, 0),
        ("after/gemma4-mixed/stateless/model", 1, 0),
        ("before/qwen35/stateless/model", 2 + 12, 6),  # of each cache, where new and where moved rows go
        ("after/qwen35/stateless/model", 2 + 6, 0),
    ],
)
def test_recorded_dumps(dump: str, counts: int, caches: int) -> None:
    model, one = read(dump).model, OneSequence(strict=True)
    before, gone = inputs(model), counted(model)
    assert len(gone) == counts
    assert one.run_on_model(model) is True
    assert one.report.rewritten == counts + caches
    assert inputs(model) == before - gone
    assert len(one.report.notes) == 1
    assert all(cache.slots == 1 for cache in slot_caches(model))
    digest, again = structure_digest(model), OneSequence(strict=True)
    assert again.run_on_model(model) is False
    assert {skip.step for skip in again.report.skipped} <= {"already"}
    assert structure_digest(model) == digest
    other, manager = read(dump).model, Manager()
    manager.register_pass(OneSequence())
    manager.run_passes(other)
    assert structure_digest(other) == digest


@pytest.mark.parametrize(
    "passes",
    [
        [OneSequence, LowerGatedDeltaNet],
        [LowerGatedDeltaNet, OneSequence],
        [OneSequence, MakeKVStateful, LowerGatedDeltaNet],
        [MakeKVStateful, OneSequence, LowerGatedDeltaNet],
        [ChunkValidLen, OneSequence, LowerGatedDeltaNet],
        [OneSequence, StaticSlotCopy, ChunkValidLen, LowerGatedDeltaNet],
    ],
    ids=lambda passes: "-".join(one.__name__ for one in passes),
)
@pytest.mark.parametrize("age", ["before", "after"])
def test_logits_in_every_order(age: str, passes: list[Callable[[], ReportedPass]]) -> None:
    imported = read(f"{age}/qwen35/stateless/model")
    ovp.Pipeline([one() for one in passes]).run(imported)
    session = ovp.Session(ovp.compile_model(imported, "CPU", F32), imported.info)
    tokens, wanted = REFERENCE["tokens"], REFERENCE["logits"]
    assert nmse(session.prefill(tokens[:20], all_logits=True), wanted[:20]) <= 1e-5
    assert nmse(session.decode(int(tokens[20])), wanted[20:21]) <= 1e-5


@pytest.mark.parametrize(
    "source",
    [
        "gguf/tiny-qwen35.gguf",
        "after/llama-gqa/stateful/model.xml",
        "after/llama-gqa/static/model_decode.xml",
        "before/llama-gqa/static/model_prefill.xml",
    ],
)
def test_graphs_without_such_inputs(source: str) -> None:
    model, one = ovp.read_model(RECORDED / source).model, OneSequence(strict=True)
    assert one.run_on_model(model) is False
    assert one.report.candidates == 0


def refused(model: Model) -> set[tuple[str, str]]:
    one, digest = OneSequence(), structure_digest(model)
    assert one.run_on_model(model) is False
    assert structure_digest(model) == digest
    return {(skip.step, skip.reason) for skip in one.report.unsettled}


def test_several_sequences_are_left_alone() -> None:
    ((step, reason),) = refused(read("after/qwen35/stateless-slots-2-of-4/model").model)
    assert step == "sequences"
    assert reason.startswith("input seq_active_")
    assert reason.endswith("chooses among several sequences in a cache, wanted one")


def test_several_slots_are_left_alone() -> None:
    model = read("after/qwen35/stateless/model").model
    for cache in list(slot_caches(model)):
        cache.parameter.set_partial_shape(PartialShape([1, 1, 2, cache.width]))
    model.validate_nodes_and_infer_types()
    assert refused(model) == {("sequences", "cache_r_l0 has 2 slots, wanted 1")}


def test_a_count_of_unknown_length_is_left_alone() -> None:
    model = read("after/llama-gqa/stateless/model").model
    count = next(p for p in model.get_parameters() if "n_seq_active" in p.output(0).get_names())
    count.set_partial_shape(PartialShape([-1]))
    model.validate_nodes_and_infer_types()
    assert refused(model) == {("count", "is i64 [?], wanted integers of static shape")}


def test_a_static_graph_needs_it() -> None:
    """Shapes depend on what is counted; cells that attention reads, StaticTokens fixes itself."""
    imported = read("after/llama-gqa/stateless/model")
    with pytest.raises(ovp.RewriteError, match="not all is static"):
        ovp.StaticTokens(tokens=16, context=128).run_on_model(imported.model)
    OneSequence().run_on_model(imported.model)
    report = ovp.Pipeline([ovp.StaticTokens(tokens=16, context=128)]).run(imported)
    assert "attention_size" in report["StaticTokens"].sites
    assert report["StaticTokens"].notes == ["removed unread inputs attention_size"]
    assert not [p for p in nodes(imported.model, "Parameter") if p.get_output_partial_shape(0).is_dynamic]
