"""Static pairs for two sequences of four: any pair of slots, chunks of four tokens, padding of both kinds."""

from __future__ import annotations

import subprocess
import sys
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from openvino import Core, save_model

import ovpasses as ovp
from ovpasses import ChunkValidLen, LowerGatedDeltaNet, Pipeline, StaticTokens
from ovpasses._openvino import ops
from ovpasses.equivalence import structure_digest
from ovpasses.importers.internal_ops import GatedDeltaNet
from ovpasses.passes import BatchSequences
from ovpasses.passes._static_check import not_static
from tests.conftest import RECORDED, nmse
from tests.runtime.slot_helpers import (
    AGES,
    CHUNK,
    CONTEXT,
    F32,
    LOGITS,
    SLOTS,
    TOKENS,
    Counted,
    batched,
    everything,
    one_by_one,
    pair,
    read,
    recorded_steps,
    states,
    static,
)

PAIRS = list(permutations(range(SLOTS), 2))
QUICK = [(1, 3), (3, 0), (2, 1)]
PHASES = ("prefill", "decode")


def made(age: str, phase: str, **options: int) -> ovp.ImportedModel:
    imported = read(age)
    chunk = {"chunk": CHUNK} if phase == "prefill" else {}
    Pipeline.preset(f"static-{phase}", sequences=2, context=CONTEXT, **chunk, **options).run(imported)
    return imported


# The graphs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("age", AGES)
def test_nothing_is_dynamic_or_empty(age: str, phase: str) -> None:
    model = made(age, phase).model
    assert not_static(model) == []
    kinds = {op.get_type_name() for op in model.get_ops()}
    assert GatedDeltaNet.class_type_info.name not in kinds
    shapes = {p.output(0).get_any_name(): list(p.get_output_shape(0)) for p in model.get_parameters()}
    tokens = CHUNK if phase == "prefill" else 1
    assert shapes["inp_tokens"] == [1, 1, 1, 2 * tokens]
    assert shapes["inp_pos"] == [1, 1, 1, 4 * 2 * tokens]
    assert shapes["attn_inp_kq_mask"] == [2, 1, tokens, CONTEXT]
    assert shapes["seq_active"] == shapes["chunk_valid_len"] == shapes["cache_rs_reset_len"] == [2]
    caches = {name.split("#")[0]: shape for name, shape in shapes.items() if name.startswith("cache_")}
    assert caches["cache_k_l3"] == caches["cache_v_l3"] == [1, SLOTS, CONTEXT, 32]
    assert caches["cache_r_l0"] == [1, 1, SLOTS, 384]
    assert caches["cache_s_l2"] == [1, 1, SLOTS, 1024]


@pytest.mark.parametrize("phase", PHASES)
def test_a_second_run_changes_nothing(phase: str) -> None:
    imported = made("before", phase)
    digest = structure_digest(imported.model)
    chunk = {"chunk": CHUNK} if phase == "prefill" else {}
    again = Pipeline.preset(f"static-{phase}", strict=True, sequences=2, context=CONTEXT, **chunk).run(imported)
    assert again.rewritten == 0
    assert structure_digest(imported.model) == digest


def test_a_saved_pair_needs_nothing_but_openvino(tmp_path: Path) -> None:
    for phase in PHASES:
        save_model(made("after", phase).model, tmp_path / f"{phase}.xml", compress_to_fp16=False)
    plain = "import sys, openvino as ov; [ov.Core().compile_model(path, 'CPU') for path in sys.argv[1:]]"
    paths = [str(tmp_path / f"{phase}.xml") for phase in PHASES]
    subprocess.run([sys.executable, "-c", plain, *paths], check=True, capture_output=True)
    prefill, decode = (ovp.read_model(path) for path in paths)
    compiled = [ovp.compile_model(one, "CPU", F32) for one in (prefill, decode)]
    sessions = ovp.SlotSessions(compiled[0], prefill.info, decode=compiled[1])
    assert recorded_steps(sessions, (1, 3), decode=True) <= 1e-5


def test_a_batch_of_any_number_becomes_a_fixed_one() -> None:
    imported = batched("after")
    Pipeline.preset("static-prefill", sequences=2, chunk=CHUNK, context=CONTEXT).run(imported)
    assert not_static(imported.model) == []
    sessions = ovp.SlotSessions(
        ovp.compile_model(imported, "CPU", F32), imported.info, decode=static("after", "decode")[0]
    )
    assert recorded_steps(sessions, (3, 1), decode=True) <= 1e-5


# Logits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slots", [*QUICK, *(pytest.param(p, marks=pytest.mark.slow) for p in PAIRS if p not in QUICK)], ids=str
)
@pytest.mark.parametrize("age", AGES)
def test_a_pair(age: str, slots: tuple[int, int]) -> None:
    sessions = pair(age)
    assert recorded_steps(sessions, slots, decode=True) <= 1e-5
    assert [one.position for one in sessions] == [7 if slot in slots else 0 for slot in range(SLOTS)]


@pytest.mark.parametrize("age", AGES)
def test_a_chunk_of_both_is_one_inference(age: str) -> None:
    """Five tokens are a chunk of four and one that is padded; then single tokens."""
    sessions = pair(age)
    last = sessions.prefill({1: TOKENS[0][:5], 3: TOKENS[1][:5]})
    assert sessions.inferences == [2, 0]
    assert max(nmse(last[slot], LOGITS[i][4:5]) for i, slot in enumerate((1, 3))) <= 1e-5
    sessions.decode({1: int(TOKENS[0][5]), 3: int(TOKENS[1][5])})
    assert sessions.inferences == [2, 1]


def test_one_row_of_logits_per_sequence_or_more() -> None:
    one, four = pair("after"), pair("after", rows=CHUNK)
    for sessions, inferences in ((one, 2 * CHUNK // 2), (four, 1)):
        found = sessions.prefill({1: TOKENS[0][:4], 3: TOKENS[1][:4]}, all_logits=True)
        assert max(nmse(found[slot], LOGITS[i][:4]) for i, slot in enumerate((1, 3))) <= 1e-5
        assert sessions.inferences == [inferences, 0]


@pytest.mark.parametrize("lengths", [(1, 1), (4, 4), (8, 8), (1, 4), (5, 3), (9, 2), (3, 13), (16, 15)], ids=str)
def test_prompts_of_every_length_are_those_of_one_by_one(lengths: tuple[int, int]) -> None:
    random = np.random.default_rng(5)
    tokens = {slot: random.integers(3, 320, length) for slot, length in zip((2, 0), lengths, strict=True)}
    alone = ovp.SlotSessions(*one_by_one("after"))
    sessions = pair("after")
    found, wanted = (one.prefill(tokens, all_logits=True) for one in (sessions, alone))
    assert max(nmse(found[slot], wanted[slot]) for slot in tokens) <= 1e-8
    found, wanted = (one.decode({0: 7, 2: 8}) for one in (sessions, alone))
    assert max(nmse(found[slot], wanted[slot]) for slot in tokens) <= 1e-8


@pytest.mark.parametrize("slots", [(0,), (3, 1, 2), (1, 0, 3, 2)], ids=str)
def test_fewer_and_more_sequences_than_the_model_runs(slots: tuple[int, ...]) -> None:
    sessions, rows = pair("before"), {}
    for slot in slots:
        rows[slot] = slot % 2
    found = sessions.prefill({slot: TOKENS[i][: 4 + slot] for slot, i in rows.items()}, all_logits=True)
    assert max(nmse(found[slot], LOGITS[i][: 4 + slot]) for slot, i in rows.items()) <= 1e-5
    last = sessions.decode({slot: int(TOKENS[i][4 + slot]) for slot, i in rows.items() if slot < 3})
    assert max((nmse(last[s], LOGITS[i][4 + s : 5 + s]) for s, i in rows.items() if s < 3), default=0) <= 1e-5
    assert [one.position for one in sessions] == [4 + s + (s < 3) if s in slots else 0 for s in range(SLOTS)]


# What stays as it was ------------------------------------------------------------------------------------------------


def test_what_is_padded_with_makes_no_difference() -> None:
    seen = []
    for token in (0, 5, 319):
        sessions = pair("after", pad_token=token)
        found = sessions.prefill({3: TOKENS[1][:6], 1: TOKENS[0][:1]})
        seen.append((states(sessions, range(SLOTS)), {slot: one.tobytes() for slot, one in found.items()}))
    assert seen[0] == seen[1] == seen[2]
    assert any(np.frombuffer(value, np.uint8).any() for value in seen[0][0].values())


@pytest.mark.parametrize("age", AGES)
def test_a_sequence_that_fills_a_place_stays_as_it_was(age: str) -> None:
    """Slot 3 alone needs a second one beside it, which is a slot that holds something."""
    sessions = pair(age)
    sessions.prefill({0: TOKENS[0][:5], 2: TOKENS[1][:6]})
    before = states(sessions, (0, 1, 2))
    found = np.concatenate([sessions[3].prefill(TOKENS[1][:6], all_logits=True), sessions[3].decode(int(TOKENS[1][6]))])
    assert nmse(found, LOGITS[1]) <= 1e-5
    assert states(sessions, (0, 1, 2)) == before
    rest = sessions.prefill({2: TOKENS[1][6:], 0: TOKENS[0][5:]}, all_logits=True)
    assert nmse(rest[0], LOGITS[0][5:]) <= 1e-5
    assert nmse(rest[2], LOGITS[1][6:]) <= 1e-5


def test_a_slot_that_is_reset_starts_clean() -> None:
    sessions = pair("after")
    recorded_steps(sessions, (1, 3), decode=True)
    before = everything(sessions, (3,))
    sessions[1].reset()
    assert everything(sessions, (3,)) == before
    found = sessions.prefill({1: TOKENS[1], 0: TOKENS[0]}, all_logits=True)
    assert nmse(found[1], LOGITS[1]) <= 1e-5
    assert nmse(found[0], LOGITS[0]) <= 1e-5
    assert everything(sessions, (3,)) == before


def test_all_cells_but_one_can_be_used() -> None:
    sessions = pair("after", context=8)
    random = np.random.default_rng(2)
    tokens = {slot: random.integers(3, 320, 8 if slot else 7) for slot in range(SLOTS)}
    found = sessions.prefill(tokens, all_logits=True)
    wanted = ovp.SlotSessions(*one_by_one("after")).prefill(tokens, all_logits=True)
    assert max(nmse(found[slot], wanted[slot]) for slot in tokens) <= 1e-8
    before, counts = everything(sessions, range(SLOTS)), sessions.inferences
    with pytest.raises(ovp.StateError, match="all 8 cells of all 4 sequences are taken, and padding needs one"):
        sessions.decode({0: 5})
    with pytest.raises(ovp.StateError, match="1 tokens at position 8 of slot 2 go past its 8 cells"):
        sessions.decode({2: 5})
    assert (everything(sessions, range(SLOTS)), sessions.inferences) == (before, counts)


# Refusals ------------------------------------------------------------------------------------------------------------


def test_models_that_do_not_fit() -> None:
    prefill, info = static("after", "prefill")
    cases = [
        (static("after", "decode", 2, 64)[0], "cache cache_k_l3 is .*32.* in one model and .*64.* in the other"),
        (static("after", "decode", 1)[0], "one model takes 2 sequences and the other 1"),
        (prefill, "the decode model takes 4 tokens of a sequence, wanted 1"),
        (None, "the decode model takes 4 tokens of a sequence, wanted 1"),
    ]
    for decode, words in cases:
        with pytest.raises(ovp.StateError, match=words):
            ovp.SlotSessions(prefill, info, decode=decode)
    with pytest.raises(ovp.StateError, match="takes no list of sequences; give the preset the option sequences"):
        ovp.SlotSessions(*one_by_one("after"), decode=prefill)


def test_padding_that_would_reach_a_state() -> None:
    imported = read("after")
    passes = [BatchSequences(sequences=2), StaticTokens(tokens=4, context=CONTEXT), LowerGatedDeltaNet()]
    Pipeline(passes).run(imported)
    compiled = ovp.compile_model(imported, "CPU", F32)
    with pytest.raises(ovp.StateError, match="no input chunk_valid_len, so padding would reach their states"):
        ovp.SlotSessions(compiled, imported.info, decode=static("after", "decode")[0])


def test_sessions_of_one_sequence_refuse_a_pair_of_two() -> None:
    prefill, info = static("after", "prefill")
    decode, _ = static("after", "decode")
    for kind, models in ((ovp.ChunkedSession, (prefill, decode)), (ovp.Session, (decode,))):
        with pytest.raises(ovp.StateError, match="runs 2 sequences in a batch, this session one; use SlotSessions"):
            kind(*models, info)


@pytest.mark.parametrize(
    ("source", "sequences", "words"),
    [
        ("after/qwen35/stateless/model.xml", 2, "sequences is 2, but the caches hold 1"),
        ("after/qwen35/stateless-slots-2-of-4/model.xml", 5, "sequences is 5, but the caches hold 4"),
        pytest.param("gguf/tiny-qwen35.gguf", 2, "but the caches hold 1", marks=pytest.mark.needs_2026_4),
    ],
)
def test_more_sequences_than_there_are(source: str, sequences: int, words: str) -> None:
    imported = ovp.read_model(RECORDED / source)
    digest = structure_digest(imported.model)
    with pytest.raises(ovp.RewriteError, match=words):
        Pipeline.preset("static-prefill", sequences=sequences, chunk=CHUNK, context=CONTEXT).run(imported)
    assert structure_digest(imported.model) == digest


def test_lengths_that_all_sequences_share_are_seen() -> None:
    """A graph whose padding is told by the first sequence's length only gives other logits."""
    imported = made("after", "prefill")
    model = imported.model
    valid = next(p for p in model.get_parameters() if "chunk_valid_len" in p.output(0).get_names())
    readers = list(valid.output(0).get_target_inputs())
    first = ops.gather(valid, ops.constant(np.array([0, 0])), ops.constant(np.array(0)))
    for reader in readers:
        reader.replace_source_output(first.output(0))
    model.validate_nodes_and_infer_types()
    sessions = Counted(ovp.compile_model(imported, "CPU", F32), imported.info, decode=static("after", "decode")[0])
    sessions.prefill({1: TOKENS[0][:2], 3: TOKENS[1][:4]})
    found = sessions.prefill({1: TOKENS[0][2:4], 3: TOKENS[1][4:5]})
    assert nmse(found[3], LOGITS[1][4:5]) > 1e-3


def test_a_core_without_extensions_reads_what_is_saved(tmp_path: Path) -> None:
    imported = read("after")
    passes = [BatchSequences(), ChunkValidLen(), LowerGatedDeltaNet()]
    Pipeline(passes).run(imported)
    save_model(imported.model, tmp_path / "batched.xml", compress_to_fp16=False)
    assert len(Core().read_model(tmp_path / "batched.xml").inputs) == len(imported.model.inputs)
    again = ovp.read_model(tmp_path / "batched.xml")
    sessions = Counted(ovp.compile_model(again, "CPU", F32), again.info)
    assert recorded_steps(sessions, (0, 3)) <= 1e-5
    assert sessions.inferences == [3]
