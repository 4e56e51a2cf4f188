"""StaticSlotCopy: static dumps of a recurrent model become static and right for every call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from openvino import CompiledModel, Model, PartialShape

import ovpasses as ovp
from ovpasses._openvino import Manager, ops
from ovpasses.equivalence import structure_digest
from ovpasses.importers._slots import slot_caches
from ovpasses.passes import LowerGatedDeltaNet, StaticSlotCopy
from ovpasses.passes._static_check import not_static
from ovpasses.runtime.inputs import MAKERS, Step
from ovpasses.runtime.ports import input_tensor, logits_port
from ovpasses.runtime.shared_caches import SharedCaches, carried_ports
from tests.conftest import RECORDED, nmse
from tests.passes.helpers import names, node

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
CELLS, PLANES, CHUNK = 256, 4, 16
PHASES = ("prefill", "decode")
LAYERS = 3  # delta-net layers of the recorded model


def read(age: str, phase: str) -> ovp.ImportedModel:
    return ovp.read_model(RECORDED / age / "qwen35" / "static" / f"model_{phase}.xml")


def repaired(age: str, phase: str, *, last: bool = False, drop_empty: bool = False) -> ovp.ImportedModel:
    imported = read(age, phase)
    passes = [StaticSlotCopy(drop_empty=drop_empty, strict=True), LowerGatedDeltaNet(strict=True)]
    ovp.Pipeline(passes[::-1] if last else passes).run(imported)
    return imported


class Runner:
    """Whole chunks, then single tokens, over a static pair that takes one row to output per call."""

    def __init__(self, *pair: ovp.ImportedModel) -> None:
        compiled: list[CompiledModel] = [ovp.compile_model(one, "CPU", F32) for one in pair]
        self.infos = [one.info for one in pair]
        self.requests = [one.create_infer_request() for one in compiled]
        self.carried = [carried_ports(one) for one in compiled]
        self.logits = [logits_port(one, pair[0].info) for one in compiled]
        self.caches = SharedCaches(*self.carried)
        self.made = [
            {p.get_any_name(): p for p in one.inputs if p.get_any_name() not in carried}
            for one, carried in zip(compiled, self.carried, strict=True)
        ]
        self.start = 0

    def step(self, tokens: np.ndarray) -> np.ndarray:
        at = 0 if tokens.size == CHUNK else 1
        self.caches.bind(self.requests[at], self.carried[at])
        steps = [Step(tokens, self.start, np.array([row]), PLANES, cells=CELLS) for row in range(tokens.size)]
        rows = [self._infer(at, step) for step in steps]
        self.caches.advance()
        self.start += tokens.size
        return np.concatenate(rows)

    def _infer(self, at: int, step: Step) -> np.ndarray:
        roles = self.infos[at].roles
        feed = {n: input_tensor(n, MAKERS[roles.get(n, n)](step), p) for n, p in self.made[at].items()}
        self.requests[at].infer(feed)
        return np.array(self.requests[at].get_tensor(self.logits[at]).data).reshape(1, -1)

    def run(self, tokens: np.ndarray, whole: int) -> np.ndarray:
        self.start = 0  # the states of the sequence before are still there
        chunks = [tokens[i : i + CHUNK] for i in range(0, whole, CHUNK)]
        return np.concatenate([self.step(piece) for piece in [*chunks, *tokens[whole:, None]]])


# The recorded graphs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("last", [False, True])
def test_nothing_is_dynamic_or_empty(phase: str, last: bool) -> None:
    assert not_static(read("before", phase).model)
    assert not_static(repaired("before", phase, last=last).model) == []


@pytest.mark.parametrize("phase", PHASES)
def test_sites_of_the_recorded_graph(phase: str) -> None:
    model = read("before", phase).model
    before = names(model)
    one = StaticSlotCopy()
    assert one.run_on_model(model)
    caches = 2 * LAYERS
    # One slot list; of each cache the clearing, the defrag and the write-back; of each layer an attention slice.
    assert one.report.rewritten == 1 + 3 * caches
    assert [skip.step for skip in one.report.skipped] == ["already"] * LAYERS
    added = [n for n in names(model) if n not in before]
    assert sorted(added) == ["cache_rs_reset_idx", "cache_rs_reset_len"]
    assert len(model.outputs) == 3 + caches  # logits, keys and values, one output of each recurrent cache
    assert all(p.get_partial_shape().is_static for p in model.inputs)


@pytest.mark.parametrize("phase", PHASES)
def test_what_upstream_has_fixed_is_left_alone(phase: str) -> None:
    model = read("after", phase).model
    before = structure_digest(model)
    one = StaticSlotCopy(strict=True)
    assert not one.run_on_model(model)
    assert structure_digest(model) == before
    assert one.report.candidates == 1 + 3 * 2 * LAYERS + LAYERS
    assert {skip.step for skip in one.report.skipped} == {"already"}


@pytest.mark.parametrize("phase", PHASES)
def test_a_second_run_and_a_bare_manager(phase: str) -> None:
    model, other = read("before", phase).model, read("before", phase).model
    StaticSlotCopy().run_on_model(model)
    digest, again = structure_digest(model), StaticSlotCopy(strict=True)
    assert not again.run_on_model(model)
    assert {skip.step for skip in again.report.skipped} == {"already"}
    assert structure_digest(model) == digest
    manager = Manager()
    manager.register_pass(StaticSlotCopy())
    manager.run_passes(other)
    assert structure_digest(other) == digest


@pytest.mark.parametrize(("age", "drop_empty"), [("before", False), ("after", False), ("after", True)])
def test_logits_are_those_of_llama_cpp(age: str, drop_empty: bool) -> None:
    """Four whole chunks and sixteen steps, then a second sequence over the states that the first has left."""
    reference = np.load(RECORDED / "logits" / "qwen35.npz")
    tokens, wanted = reference["tokens"], reference["logits"]
    runner = Runner(*(repaired(age, phase, drop_empty=drop_empty) for phase in PHASES))
    if age == "after":  # whose padding is told apart
        assert "chunk_valid_len" in runner.made[0]
    found = runner.run(tokens, 64)
    assert found.shape == wanted.shape == (80, 320)
    assert nmse(found, wanted) <= 1e-5
    again = runner.run(tokens[:40], 32)
    assert nmse(again, wanted[:40]) <= 1e-5


def test_a_chunked_session_runs_what_upstream_has_fixed() -> None:
    reference = np.load(RECORDED / "logits" / "qwen35.npz")
    pair = [repaired("after", phase) for phase in PHASES]
    session = ovp.ChunkedSession(*(ovp.compile_model(one, "CPU", F32) for one in pair), pair[0].info)
    found = [session.prefill(reference["tokens"][:76])]  # the last chunk is padded
    found += [session.decode(int(token)) for token in reference["tokens"][76:]]
    assert nmse(np.concatenate(found), reference["logits"][75:]) <= 1e-5


# A graph written by hand ---------------------------------------------------------------------------------------------


def axis_slice(value: Any, begin: Any, end: Any, axis: int) -> Any:
    bounds = [ops.constant(np.array([x], np.int64)) if isinstance(x, int) else x for x in (begin, end, 1, axis)]
    return ops.slice(value, *bounds)


def put(table: Any, rows: Any, begin: int) -> Any:
    """Rows put into a table at a slot, as llama.cpp's backend writes it."""
    count = ops.gather(ops.shape_of(rows), ops.constant(np.array([2])), ops.constant(np.int64(0)))
    end = ops.add(ops.constant(np.array([begin])), count)
    return ops.concat([axis_slice(table, 0, begin, 2), rows, axis_slice(table, end, 2**31 - 1, 2)], 2)


def recurrent(captured: int, tokens: int, heads: int = 2, size: int = 3, cleared: int = 0, attention: int = 0) -> Model:
    """A static graph of one recurrent layer whose new state is twice the old one, captured with some tokens.

    ``attention``: where its attention slice ends, counted from the start as captured; 0: from the end.
    """
    width = heads * size * size
    cache = ops.parameter([1, 1, 1, width], np.float32, name="cache_s_l0")
    slots = ops.parameter([1, 1, 1, -1], np.int32, name="leaf_5")
    values = ops.parameter([1, tokens, heads, size], np.float32, name="values")
    index, count = (ops.constant(np.array([n], np.int64)) for n in (0, cleared))
    slot = ops.constant(np.arange(1))
    keep = ops.logical_or(ops.less(slot, index), ops.greater_equal(slot, ops.add(index, count)))
    table = ops.multiply(cache, ops.unsqueeze(ops.convert(keep, "f32"), ops.constant(np.int64(1))))
    outer, zero = ops.constant(np.array([0, 1])), ops.constant(np.int64(0))
    read = [
        ops.unsqueeze(ops.gather(ops.squeeze(table, outer), ops.squeeze(axis_slice(slots, b, e, 3), outer), zero), zero)
        for b, e in ((0, 1), (1, 2**31 - 1))
    ]
    flat = ops.constant(np.array([-1]))
    parts = [ops.reshape(x, flat, False) for x in (values, ops.multiply(read[0], ops.constant(np.float32(2))))]
    packed = ops.reshape(ops.concat(parts, 0), ops.constant(np.array([1, 1, -1, heads * size])), False)
    state = ops.reshape(axis_slice(packed, captured, 2**31 - 1, 2), ops.constant(np.array([1, 1, -1, width])), False)
    ends = {"y": axis_slice(packed, 0, attention or -size, 2), "cache_s_l0": put(table, state, 0)}
    results = [ops.result(value, name=name) for name, value in {**ends, "moved": put(table, read[1], 1)}.items()]
    return Model(results, [cache, slots, values], "recurrent")


def infer(model: Model, **feed: Any) -> dict[str, np.ndarray]:
    inputs = {p.get_any_name(): feed[p.get_any_name()] for p in model.inputs}
    found = ovp.compile_model(model, "CPU", F32)(inputs)
    named = zip(model.get_results(), found.values(), strict=True)  # a compiled model calls them differently
    return {result.get_friendly_name(): value for result, value in named}


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("tokens", [1, 5])
def test_same_numbers_where_the_graph_was_right(heads: int, tokens: int) -> None:
    rng = np.random.default_rng(0)
    feed: dict[str, Any] = {
        "cache_s_l0": rng.standard_normal((1, 1, 1, heads * 9)).astype(np.float32),
        "values": rng.standard_normal((1, tokens, heads, 3)).astype(np.float32),
        "leaf_5": np.zeros((1, 1, 1, 1), np.int32),
        "cache_rs_reset_idx": np.array([0]),
        "cache_rs_reset_len": np.array([0]),
    }
    model = recurrent(tokens, tokens, heads)
    wanted = infer(model, **feed)
    StaticSlotCopy(strict=True).run_on_model(model)
    assert not_static(model) == []
    found = infer(model, **feed)
    assert found.keys() == {"y", "cache_s_l0"}
    assert all(np.array_equal(found[name], wanted[name]) for name in found)
    cleared = infer(model, **{**feed, "cache_rs_reset_len": np.array([1])})
    assert not cleared["cache_s_l0"].any()


def test_right_for_another_number_of_tokens_than_captured() -> None:
    model = recurrent(captured=34, tokens=5, attention=34, cleared=1)
    one = StaticSlotCopy(strict=True)
    one.run_on_model(model)
    assert len(one.report.sites) == 5  # list, clearing, defrag, write-back, attention
    state = np.arange(18, dtype=np.float32).reshape(1, 1, 1, 18)
    values = np.arange(30, dtype=np.float32).reshape(1, 5, 2, 3)
    slots, none = np.zeros((1, 1, 1, 1), np.int32), np.array([0])
    found = infer(
        model, cache_s_l0=state, values=values, leaf_5=slots, cache_rs_reset_idx=none, cache_rs_reset_len=none
    )
    assert np.array_equal(found["cache_s_l0"], 2 * state)
    assert np.array_equal(found["y"], values.reshape(1, 1, 5, 6))


@pytest.mark.parametrize("phase", PHASES)
def test_parts_without_rows_go_on_request(phase: str) -> None:
    imported = read("after", phase)
    assert len(not_static(imported.model)) == 18
    one = StaticSlotCopy(drop_empty=True, strict=True)
    one.run_on_model(imported.model)
    assert one.report.rewritten == 2 * LAYERS
    assert not_static(imported.model) == []
    assert repr(one) == "StaticSlotCopy(drop_empty=True, strict=True)"
    again = StaticSlotCopy(drop_empty=True)
    assert not again.run_on_model(imported.model)


# Sites that it leaves alone ------------------------------------------------------------------------------------------


def skips(model: Model) -> dict[str, tuple[str, str]]:
    one = StaticSlotCopy()
    one.run_on_model(model)
    return {skip.node: (skip.step, skip.reason) for skip in one.report.unsettled}


def test_another_number_of_slots_leaves_the_defrag_alone() -> None:
    """Two slots, one of them active: the other may have to be moved."""
    model = read("before", "decode").model
    for cache in list(slot_caches(model)):
        cache.parameter.set_partial_shape(PartialShape([1, 1, 2, cache.width]))
    model.validate_nodes_and_infer_types()
    found = skips(model)
    assert found["cache_r_l0#2992"] == ("active", "1 of 2 slots are active, wanted all of them")
    assert found["cache_s_l0 (view) (copy of )#3221"][0] == "active"
    assert node(model, "leaf_5").get_output_partial_shape(0) == PartialShape([1, 1, 1, 2])


def test_caches_of_different_lengths_leave_the_list_alone() -> None:
    model = read("before", "decode").model
    cache = next(slot_caches(model))
    cache.parameter.set_partial_shape(PartialShape([1, 1, 2, cache.width]))
    model.validate_nodes_and_infer_types()
    assert skips(model)["leaf_5"] == ("list", "the caches that it indexes have 1, 2 slots, wanted one number for all")


def test_a_number_of_slots_that_is_an_input_is_no_static_graph() -> None:
    model = ovp.read_model(RECORDED / "after/qwen35/stateless/model.xml").model
    found = skips(model)
    assert found["cache_s_l0"] == ("active", "how many slots are active is an input, wanted a constant")


def test_rows_that_come_from_elsewhere_are_left_alone() -> None:
    model = read("before", "decode").model
    cache = next(c for c in slot_caches(model) if c.name.startswith("cache_s_l0"))
    update = cache.update
    assert update is not None
    odd = ops.relu(update.rows)
    odd.set_friendly_name("odd")
    update.whole.input(1).replace_source_output(odd.output(0))
    model.validate_nodes_and_infer_types()
    step, reason = skips(model)["cache_s_l0#3015"]
    assert (step, reason) == ("rows", "Relu odd makes its rows, wanted a Slice")


def test_a_reset_of_another_type_is_left_alone() -> None:
    model = read("before", "decode").model
    cache = next(slot_caches(model))
    assert cache.reset is not None
    less = cache.reset.index[0].get_node()
    wide = ops.constant(np.zeros((1, 1), np.int64))
    less.input(1).replace_source_output(wide.output(0))
    model.validate_nodes_and_infer_types()
    step, reason = skips(model)["cache_r_l0#2992/reset"]
    assert (step, reason) == ("reset", "cache_rs_reset_idx is i64 [1,1], wanted i64 [1]")


def test_strict_names_the_site_and_changes_nothing() -> None:
    model = ovp.read_model(RECORDED / "after/qwen35/stateless/model.xml").model
    before = structure_digest(model)
    with pytest.raises(ovp.RewriteError, match="how many slots are active is an input"):
        StaticSlotCopy(strict=True).run_on_model(model)
    assert structure_digest(model) == before


def test_a_graph_without_slots_has_no_candidates() -> None:
    model = ovp.read_model(RECORDED / "after/llama-gqa/stateless/model.xml").model
    one = StaticSlotCopy()
    assert not one.run_on_model(model)
    assert one.report.candidates == 0


# Reshapes captured with one token ------------------------------------------------------------------------------------


def bake_one(model: Model, reshape: str, target: list[int]) -> Any:
    found = node(model, reshape)
    found.input(1).replace_source_output(ops.constant(np.array(target, np.int64)).output(0))
    return found


def test_the_token_axis_is_told_by_the_surroundings() -> None:
    """A dump captured with one token has ones everywhere; only what is combined with the value tells which is which."""
    imported = read("before", "prefill")
    heads = bake_one(imported.model, "Reshape_520", [1, 1, 4, 16])
    found = StaticSlotCopy()
    found.run_on_model(imported.model)
    assert "Reshape_520" in found.report.sites
    assert heads.get_output_partial_shape(0) == PartialShape([1, CHUNK, 4, 16])
    assert not [line for line in not_static(imported.model) if "GatedDeltaNet" not in line[1]]


def test_a_token_axis_that_nothing_tells_is_left_alone() -> None:
    tokens = ops.parameter([1, 1, 1, -1], np.int32, name="list")
    cache = ops.parameter([1, 1, 1, 4], np.float32, name="cache_r_l0")
    active = ops.slice(tokens, *(ops.constant(np.array([n], np.int64)) for n in (0, 1, 1, 3)))
    flat, index = (ops.squeeze(x, ops.constant(np.array([0, 1]))) for x in (cache, active))
    rows = ops.gather(flat, index, ops.constant(np.int64(0)))
    bounded = ops.concat([rows, rows], 1)
    odd = ops.reshape(bounded, ops.constant(np.array([1, 1, 4])), special_zero=False)
    odd.set_friendly_name("odd")
    model = Model([ops.result(odd)], [tokens, cache], "one_token")
    assert {name: step for name, (step, _) in skips(model).items()} == {
        "list": "token",
        "odd": "token",
        "cache_r_l0": "rows",
    }
