"""Dumps of a hybrid model: recurrent states in slots become states, or a session keeps them outside."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino import CompiledModel, PartialShape, save_model

import ovpasses as ovp
from ovpasses import LowerGatedDeltaNet, MakeKVStateful, Pipeline
from ovpasses.equivalence import structure_digest
from ovpasses.importers.input_roles import input_roles
from ovpasses.passes.base import ReportedPass
from ovpasses.runtime.inputs import MAKERS, Step
from ovpasses.runtime.ports import input_tensor
from ovpasses.runtime.slot_sessions import SlotSessions
from tests.conftest import RECORDED, nmse
from tests.passes.sequence_graphs import write_odd_rows

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
AGES = ("before", "after")
RECURRENT_LAYERS, ATTENTION_LAYER = (0, 1, 2), 3
REFERENCE = np.load(RECORDED / "logits" / "qwen35.npz")


def read(age: str, form: str = "stateless/model") -> ovp.ImportedModel:
    return ovp.read_model(RECORDED / age / "qwen35" / f"{form}.xml")


def session(imported: ovp.ImportedModel, **options: Any) -> ovp.Session:
    return ovp.Session(ovp.compile_model(imported, "CPU", F32), imported.info, **options)


def check(one: ovp.Session, whole: int = 76) -> None:
    tokens, wanted = REFERENCE["tokens"], REFERENCE["logits"]
    found = one.prefill(tokens[:whole], all_logits=True)
    assert found.shape == (whole, 320)
    assert nmse(found, wanted[:whole]) <= 1e-5
    rest = np.concatenate([one.decode(int(token)) for token in tokens[whole:]])
    assert nmse(rest, wanted[whole:]) <= 1e-5


# States inside the model ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=AGES)
def stateful(request: pytest.FixtureRequest) -> ovp.ImportedModel:
    imported = read(request.param)
    Pipeline.preset("stateful", strict=True).run(imported)
    return imported


def test_stateful_logits_are_those_of_llama_cpp(stateful: ovp.ImportedModel) -> None:
    one = session(stateful)
    check(one)
    one.reset()
    check(one, whole=40)  # nothing of the first sequence is left


def test_two_sessions_do_not_see_each_other(stateful: ovp.ImportedModel) -> None:
    compiled = ovp.compile_model(stateful, "CPU", F32)
    first, second = (ovp.Session(compiled, stateful.info) for _ in range(2))
    tokens, wanted = REFERENCE["tokens"], REFERENCE["logits"]
    first.prefill(tokens[:30])
    second.prefill(tokens[:7])
    assert nmse(first.decode(int(tokens[30])), wanted[30:31]) <= 1e-5
    assert nmse(second.decode(int(tokens[7])), wanted[7:8]) <= 1e-5


def test_every_state_is_inside_and_starts_with_zeros(stateful: ovp.ImportedModel) -> None:
    model = stateful.model
    shapes = {v.info.variable_id.split("_l")[0]: str(v.info.data_shape) for v in model.get_variables()}
    assert len(list(model.get_variables())) == 2 * len(RECURRENT_LAYERS) + 2
    assert shapes["cache_r"] == "[1,1,1,384]"
    assert shapes["cache_s"] == "[1,1,1,1024]"
    reads = [op for op in model.get_ops() if op.get_type_name() == "ReadValue"]
    initial = [op.input_value(0).get_node() for op in reads if op.get_output_partial_shape(0).is_static]
    assert len(initial) == 2 * len(RECURRENT_LAYERS)
    assert all(not op.get_data().any() for op in initial)
    roles = {stateful.info.roles.get(p.get_any_name(), p.get_any_name()) for p in model.inputs}
    assert roles == {"inp_tokens", "inp_pos", "self_kq_mask", "out_ids", "beam_idx"}
    assert len(model.outputs) == 1


@pytest.mark.parametrize("age", AGES)
def test_a_second_run_changes_nothing(age: str) -> None:
    imported = read(age)
    MakeKVStateful(strict=True).run_on_model(imported.model)
    digest, again = structure_digest(imported.model), MakeKVStateful()
    assert not again.run_on_model(imported.model)
    assert again.report.rewritten == 0
    assert structure_digest(imported.model) == digest


@pytest.mark.parametrize("age", AGES)
def test_the_delta_nets_may_be_lowered_first(age: str) -> None:
    imported = read(age)
    passes: list[ReportedPass] = [LowerGatedDeltaNet(strict=True), MakeKVStateful(strict=True)]
    Pipeline(passes).run(imported)
    check(session(imported))


@pytest.mark.parametrize("age", AGES)
def test_a_saved_stateful_dump_runs_again(age: str, tmp_path: Path) -> None:
    imported = read(age)
    Pipeline.preset("stateful", portable=True).run(imported)
    save_model(imported.model, tmp_path / "model.xml", compress_to_fp16=False)
    again = ovp.read_model(tmp_path / "model.xml")
    assert again.info.layers == imported.info.layers
    check(session(again))


@pytest.mark.parametrize("age", AGES)
def test_several_slots_are_no_state(age: str) -> None:
    model = read(age, "stateless-slots-2-of-4/model").model
    one = MakeKVStateful()
    one.run_on_model(model)
    skipped = {skip.node.split("#")[0]: (skip.step, skip.reason) for skip in one.report.skipped}
    assert skipped["cache_s_l0"] == ("slots", "its number of slots is 4, wanted 1: a state is one sequence's")
    assert skipped["cache_r_l2"][0] == "slots"


def test_caches_in_slots_become_states_together() -> None:
    model = read("after").model
    write_odd_rows(model)
    one = MakeKVStateful()
    one.run_on_model(model)
    skipped = {skip.node: (skip.step, skip.reason) for skip in one.report.skipped}
    assert skipped["cache_r_l1"] == ("rows", "Relu odd makes its rows, wanted a Slice")
    assert skipped["cache_s_l0"][0] == "rows"
    assert "become states together, but cache_r_l1: Relu odd" in skipped["cache_s_l0"][1]
    assert sorted(one.report.sites) == ["cache_k_l3", "cache_v_l3"]


def test_a_window_that_ends_at_the_last_valid_token_stays_one() -> None:
    """The static prefill model with its recurrent states inside: padding leaves no trace in them."""
    imported = read("after", "static/model_prefill")
    Pipeline([MakeKVStateful(), LowerGatedDeltaNet()]).run(imported)
    model = imported.model
    assert len(list(model.get_variables())) == 2 * len(RECURRENT_LAYERS)
    assert "chunk_valid_len" in {p.get_any_name() for p in model.inputs}
    request = ovp.compile_model(imported, "CPU", F32).create_infer_request()
    states = []
    for padding in (0, 7):
        request.reset_state()
        tokens = np.concatenate([REFERENCE["tokens"][:10], np.full(6, padding)])
        step = Step(tokens, 0, np.array([9]), 4, real=10, cells=256)
        roles = imported.info.roles
        made = [p for p in model.inputs if not p.get_any_name().startswith("cache_k")]
        made = [p for p in made if not p.get_any_name().startswith("cache_v")]
        feed = {p.get_any_name(): input_tensor("", MAKERS[roles.get(n := p.get_any_name(), n)](step), p) for p in made}
        empty = {n: np.zeros([1, 1, 256, 32], np.float16) for n in ("cache_k_l3", "cache_v_l3")}
        request.infer({**feed, **empty})
        states.append([np.array(s.state.data) for s in request.query_state()])
    assert all(np.array_equal(a, b) for a, b in zip(*states, strict=True))
    assert all(a.any() for a in states[0])


# What the graph alone tells ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize(
    "form", ["stateless/model", "static/model_prefill", "static/model_decode", "stateless-slots-2-of-4/model"]
)
def test_layers_are_told_by_the_graph(age: str, form: str) -> None:
    info = read(age, form).info
    assert [layer.index for layer in info.layers if layer.kind == "attention"] == [ATTENTION_LAYER]
    assert [layer.index for layer in info.layers if layer.kind == "recurrent"] == list(RECURRENT_LAYERS)
    attention = info.layers[ATTENTION_LAYER]
    assert (attention.n_heads_kv, attention.key_size, attention.value_size) == (2, 16, 16)
    for layer in info.layers[:ATTENTION_LAYER]:
        assert (layer.n_heads_kv, layer.key_size, layer.value_size) == (4, 16, 16)
    assert (info.position_planes, info.n_vocab) == (4, 320)


def test_a_state_of_as_many_heads_as_tokens_is_recurrent() -> None:
    model = read("after").model
    for port in model.get_parameters():
        if port.output(0).get_any_name() in ("inp_tokens", "attn_inp_k_idxs", "attn_inp_v_idxs"):
            port.set_partial_shape(PartialShape([1, 1, 1, 4]))
    model.validate_nodes_and_infer_types()
    kinds = [layer.kind for layer in ovp.read_model(model).info.layers]
    assert kinds == ["recurrent"] * 3 + ["attention"]


def test_recurrent_caches_by_other_names_are_still_recurrent() -> None:
    """Where the name says keys and values, the delta net that they go into says what they are."""
    model = read("after").model
    for port in model.get_parameters():
        name = port.output(0).get_any_name()
        if name.startswith(("cache_r", "cache_s")):
            other = name.replace("cache_r", "cache_k").replace("cache_s", "cache_v")
            port.output(0).get_tensor().set_names({other})
            port.set_friendly_name(other)
    layers = ovp.read_model(model).info.layers
    assert [layer.kind for layer in layers] == ["recurrent"] * 3 + ["attention"]
    assert [(la.n_heads_kv, la.key_size, la.value_size) for la in layers[:3]] == [(4, 16, 16)] * 3


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("form", ["stateless/model", "stateless-slots-2-of-4/model", "static/model_decode"])
def test_every_input_has_a_role_whatever_its_name(age: str, form: str) -> None:
    model = read(age, form).model
    wanted = input_roles(model)
    for number, port in enumerate(model.get_parameters()):
        name = port.output(0).get_any_name()
        if name in wanted:
            wanted[f"leaf_{number}"] = wanted.pop(name)
            port.output(0).get_tensor().set_names({f"leaf_{number}"})
            port.set_friendly_name(f"leaf_{number}")
    assert set(wanted.values()) <= MAKERS.keys()
    assert input_roles(model) == wanted


# States outside the model --------------------------------------------------------------------------------------------


def outside(age: str, form: str = "stateless/model") -> ovp.ImportedModel:
    imported = read(age, form)
    LowerGatedDeltaNet(strict=True).run_on_model(imported.model)
    return imported


@pytest.mark.parametrize("age", AGES)
def test_a_session_keeps_the_caches_outside(age: str) -> None:
    one = session(outside(age))
    check(one)
    one.reset()
    check(one, whole=40)


@pytest.mark.parametrize("age", AGES)
def test_a_prompt_in_several_steps(age: str) -> None:
    check(session(outside(age), step=9), whole=30)


def test_caches_that_are_full_are_an_error() -> None:
    one = session(outside("after"), cells=20)
    one.prefill(REFERENCE["tokens"][:20])
    with pytest.raises(ovp.StateError, match="go past the 20 cells of the caches"):
        one.decode(1)


def test_a_stand_in_is_refused_before_anything_is_compiled() -> None:
    with pytest.raises(ovp.DeviceError, match="GatedDeltaNet"):
        session(read("after"))


# Several sequences ---------------------------------------------------------------------------------------------------

SEQUENCES = np.load(RECORDED / "logits" / "qwen35-sequences-1-3-of-4.npz")
SLOTS = 4
FORM = "stateless-slots-2-of-4/model"


@pytest.fixture(scope="module", params=AGES)
def slotted(request: pytest.FixtureRequest) -> tuple[CompiledModel, ovp.GraphInfo]:
    imported = outside(request.param, FORM)
    return ovp.compile_model(imported, "CPU", F32), imported.info


def batches(sessions: SlotSessions, pair: tuple[int, int]) -> np.ndarray:
    """Five tokens of both, then one, then one: logits ``[2, 7, vocab]``."""
    tokens = SEQUENCES["tokens"]
    rows: dict[int, list[np.ndarray]] = {slot: [] for slot in pair}
    for begin, end in ((0, 5), (5, 6), (6, 7)):
        found = sessions.prefill({slot: tokens[i, begin:end] for i, slot in enumerate(pair)}, all_logits=True)
        for slot in pair:
            rows[slot].append(found[slot])
    return np.stack([np.concatenate(rows[slot]) for slot in pair])


@pytest.mark.parametrize("pair", list(permutations(range(SLOTS), 2)))
def test_a_pair_of_sequences(slotted: tuple[CompiledModel, ovp.GraphInfo], pair: tuple[int, int]) -> None:
    assert SEQUENCES["seqs"].tolist() == [1, 3]
    sessions = SlotSessions(*slotted)
    assert len(sessions) == SLOTS
    found = batches(sessions, pair)
    for i in range(2):
        assert nmse(found[i], SEQUENCES["logits"][i]) <= 1e-5
    assert [one.position for one in sessions] == [7 if slot in pair else 0 for slot in range(SLOTS)]


def test_a_slot_that_is_used_again_starts_clean(slotted: tuple[CompiledModel, ovp.GraphInfo]) -> None:
    sessions = SlotSessions(*slotted)
    batches(sessions, (1, 3))
    sessions[1].reset()
    tokens, wanted = SEQUENCES["tokens"], SEQUENCES["logits"]
    again = sessions.prefill({1: tokens[1], 2: tokens[0]}, all_logits=True)  # the other one's tokens
    assert nmse(again[1], wanted[1]) <= 1e-5
    assert nmse(again[2], wanted[0]) <= 1e-5
    assert sessions[3].position == 7  # goes on where it was
    lone = SlotSessions(*slotted)
    lone.prefill({0: tokens[1]})
    assert nmse(sessions.decode({3: 5})[3], lone.decode({0: 5})[0]) <= 1e-10


def test_the_graph_clears_a_slot_by_itself(slotted: tuple[CompiledModel, ovp.GraphInfo]) -> None:
    """Whatever is left in a slot, the first call of a sequence does not see it."""
    sessions = SlotSessions(*slotted)
    cache = sessions[0]._cache
    assert cache is not None
    for name, value in cache._values.items():
        if name.startswith(("cache_r", "cache_s")):
            value[:] = 3.0
    found = batches(sessions, (2, 0))
    assert max(nmse(found[i], SEQUENCES["logits"][i]) for i in range(2)) <= 1e-5
    assert (cache.value(next(n for n in cache._values if n.startswith("cache_s_l0")), 1) == 3.0).all()


def test_a_slot_that_is_not_there(slotted: tuple[CompiledModel, ovp.GraphInfo]) -> None:
    sessions = SlotSessions(*slotted)
    with pytest.raises(ovp.StateError, match=r"slot is 4, but the caches hold 4 sequence\(s\)"):
        sessions.prefill({0: [1], 4: [1]})
    assert sessions[0].position == 0
    with pytest.raises(ovp.StateError, match="slot is -1"):
        ovp.Session(*slotted, slot=-1)
