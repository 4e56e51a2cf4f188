"""Several sequences of a dump in one inference, for any set of slots: what comes out and what stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from openvino import Model

import ovpasses as ovp
from ovpasses._openvino import ops
from ovpasses.importers._sequence_caches import sequence_caches
from ovpasses.importers._slots import slot_caches
from tests.conftest import nmse
from tests.runtime.slot_helpers import (
    AGES,
    F32,
    LOGITS,
    RECURRENT,
    SLOTS,
    TOKENS,
    Compiled,
    Counted,
    batched,
    cache_names,
    dynamic,
    everything,
    one_by_one,
    recorded_steps,
    states,
)

PAIRS = list(permutations(range(SLOTS), 2))
QUICK = [(1, 3), (3, 1), (0, 2)]


@pytest.fixture(params=AGES)
def compiled(request: pytest.FixtureRequest) -> Compiled:
    return dynamic(request.param)


def made_up(slots: tuple[int, ...], lengths: tuple[int, ...]) -> dict[int, np.ndarray]:
    random = np.random.default_rng(11)
    return {slot: random.integers(3, 320, length) for slot, length in zip(slots, lengths, strict=True)}


# One inference for all -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slots", [*QUICK, *(pytest.param(p, marks=pytest.mark.slow) for p in PAIRS if p not in QUICK)], ids=str
)
def test_a_pair_in_one_inference(compiled: Compiled, slots: tuple[int, int]) -> None:
    sessions = Counted(*compiled)
    assert len(sessions) == SLOTS
    assert recorded_steps(sessions, slots) <= 1e-5
    assert sessions.inferences == [3]
    assert [one.position for one in sessions] == [7 if slot in slots else 0 for slot in range(SLOTS)]


def test_all_four_in_one_inference(compiled: Compiled) -> None:
    sessions = Counted(*compiled)
    found = sessions.prefill({2: TOKENS[0], 0: TOKENS[1], 3: TOKENS[1], 1: TOKENS[0]}, all_logits=True)
    assert sessions.inferences == [1]
    assert max(nmse(found[slot], LOGITS[i]) for slot, i in ((2, 0), (0, 1), (3, 1), (1, 0))) <= 1e-5


def test_one_sequence_is_a_batch_of_one(compiled: Compiled) -> None:
    sessions = Counted(*compiled)
    found = sessions[2].prefill(TOKENS[1][:6], all_logits=True)
    last = sessions[2].decode(int(TOKENS[1][6]))
    assert nmse(np.concatenate([found, last]), LOGITS[1]) <= 1e-5
    assert sessions[2].position == 7
    lone = ovp.Session(*compiled, slot=1)
    assert nmse(lone.prefill(TOKENS[0], all_logits=True), LOGITS[0]) <= 1e-5


# Lengths that differ -------------------------------------------------------------------------------------------------


def test_prompts_of_different_lengths_in_one_inference(compiled: Compiled) -> None:
    sessions = Counted(*compiled)
    rows = [sessions.prefill({1: TOKENS[0][:5], 3: TOKENS[1][:2]}, all_logits=True)]
    assert {slot: one.shape for slot, one in rows[0].items()} == {1: (5, 320), 3: (2, 320)}
    rows.append(sessions.prefill({3: TOKENS[1][2:], 1: TOKENS[0][5:]}, all_logits=True))
    assert sessions.inferences == [2]
    assert max(nmse(np.concatenate([r[s] for r in rows]), LOGITS[i]) for i, s in enumerate((1, 3))) <= 1e-5


@pytest.mark.parametrize("age", AGES)
def test_a_model_that_does_not_know_lengths_runs_what_all_have(age: str) -> None:
    sessions = Counted(*dynamic(age, padded=False))
    found = sessions.prefill({1: TOKENS[0], 3: TOKENS[1][:2], 0: TOKENS[1][:4]}, all_logits=True)
    assert sessions.inferences == [3]  # two tokens of all, two more of two, the rest of one
    assert nmse(found[1], LOGITS[0]) <= 1e-5
    assert nmse(found[3], LOGITS[1][:2]) <= 1e-5
    assert nmse(found[0], LOGITS[1][:4]) <= 1e-5
    last = sessions.prefill({1: [9], 3: [9]})
    assert {slot: one.shape for slot, one in last.items()} == {1: (1, 320), 3: (1, 320)}


def test_long_prompts_go_in_steps_and_are_those_of_one_by_one(compiled: Compiled) -> None:
    tokens = made_up((3, 0, 2), (40, 23, 1))
    wanted = ovp.SlotSessions(*one_by_one("after")).prefill(tokens, all_logits=True)
    sessions = Counted(*compiled, step=16)
    found = sessions.prefill(tokens, all_logits=True)
    assert sessions.inferences == [3]
    assert max(nmse(found[slot], wanted[slot]) for slot in tokens) <= 1e-9
    last = Counted(*compiled, step=16).prefill(tokens)
    for slot in tokens:
        np.testing.assert_array_equal(last[slot], found[slot][-1:])


def test_what_shorter_sequences_are_padded_with_makes_no_difference(compiled: Compiled) -> None:
    seen = []
    for pad in (0, 5, 319):
        sessions = Counted(*compiled, pad_token=pad)
        found = sessions.prefill({1: TOKENS[0][:6], 3: TOKENS[1][:1]}, all_logits=True)
        seen.append((states(sessions, range(SLOTS)), {slot: one.tobytes() for slot, one in found.items()}))
    assert seen[0] == seen[1] == seen[2]
    exact = Counted(*compiled)
    exact.prefill({3: TOKENS[1][:1]})
    for (name, slot), value in states(exact, [3]).items():
        dtype = np.float32 if name.startswith(RECURRENT) else np.float16
        padded = np.frombuffer(seen[0][0][name, slot], dtype).astype(np.float64)
        np.testing.assert_allclose(padded, np.frombuffer(value, dtype).astype(np.float64), rtol=1e-3, atol=1e-5)


def test_the_last_cells_are_filled_without_padding(compiled: Compiled) -> None:
    """Padding takes a cell that holds nothing; where there is none, the sequences go on in step."""
    sessions = Counted(*compiled, cells=7)
    sessions.prefill({2: TOKENS[0], 0: TOKENS[1]})
    sessions.prefill({1: TOKENS[0][:3]})
    before = everything(sessions, (0, 2))
    found = sessions.prefill({1: TOKENS[0][3:], 3: TOKENS[1]}, all_logits=True)
    assert nmse(found[1], LOGITS[0][3:]) <= 1e-5
    assert nmse(found[3], LOGITS[1]) <= 1e-5
    assert sessions.inferences == [4]
    assert everything(sessions, (0, 2)) == before
    with pytest.raises(ovp.StateError, match="1 tokens at position 7 of slot 3 go past its 7 cells"):
        sessions.decode({3: 1})


# Slots that are used again, and those that rest ----------------------------------------------------------------------


def test_slots_that_rest_keep_their_bytes(compiled: Compiled) -> None:
    sessions = Counted(*compiled)
    sessions.prefill({0: TOKENS[0], 2: TOKENS[1][:3]})
    before = everything(sessions, (0, 2))
    assert any(np.frombuffer(value, np.uint8).any() for value in before.values())
    assert recorded_steps(sessions, (3, 1)) <= 1e-5
    assert everything(sessions, (0, 2)) == before
    rest = sessions.prefill({2: TOKENS[1][3:]}, all_logits=True)
    assert nmse(rest[2], LOGITS[1][3:]) <= 1e-5


def test_a_slot_that_is_reset_starts_clean(compiled: Compiled) -> None:
    sessions = Counted(*compiled)
    recorded_steps(sessions, (1, 3))
    before = everything(sessions, (3,))
    sessions[1].reset()
    assert everything(sessions, (3,)) == before
    assert not any(np.frombuffer(value, np.uint8).any() for value in everything(sessions, (1,)).values())
    assert [one.position for one in sessions] == [0, 0, 0, 7]
    # A new sequence and one that goes on, in one inference: the one starts clean, the other is not cleared.
    found = sessions.prefill({1: TOKENS[1], 3: [5]}, all_logits=True)
    assert nmse(found[1], LOGITS[1]) <= 1e-5
    lone = ovp.SlotSessions(*one_by_one("after"))
    lone.prefill({0: TOKENS[1]})
    assert nmse(found[3], lone.decode({0: 5})[0]) <= 1e-9
    assert sessions.inferences == [4]


def test_the_graph_clears_the_slots_of_new_sequences_only(compiled: Compiled) -> None:
    sessions = Counted(*compiled)
    assert sessions._batches is not None
    for name, array in sessions._batches.caches.arrays().items():
        if name.startswith(RECURRENT):
            array[...] = 3.0
    before = everything(sessions, (0, 2))  # 2 lies between the two that start
    assert recorded_steps(sessions, (1, 3)) <= 1e-5
    assert everything(sessions, (0, 2)) == before


# Mistakes that these tests would see ---------------------------------------------------------------------------------


def swapped_states(model: Model) -> None:
    for cache in slot_caches(model):
        assert cache.active is not None
        _swap(cache.active.gather, 1)


def swapped_writes(model: Model) -> None:
    for cache in slot_caches(model):
        assert cache.update is not None
        _swap(cache.update.whole, 1)


def swapped_keys(model: Model) -> None:
    for cache in sequence_caches(model):
        _swap(cache.chosen, 1)


def interleaved_tokens(model: Model) -> None:
    """Token by token instead of sequence by sequence, in the folds to ``[B, T, ..]`` of gate and beta."""
    found = [op for op in model.get_ordered_ops() if op.get_type_name() == "Loop"]
    assert len(found) == 3
    for loop in found:
        for port in range(2, 7):
            value = loop.input_value(port)
            rank = value.get_partial_shape().rank.get_length()
            if rank == 3:  # [B, H, T]
                order = ops.constant(np.array([2, 1, 0]))
                turned = ops.reshape(ops.transpose(value, order), ops.shape_of(value), special_zero=False)
                loop.input(port).replace_source_output(turned.output(0))


def _swap(node: object, port: int) -> None:
    index = node.input_value(port)  # type: ignore[attr-defined]
    last = index.get_partial_shape().rank.get_length() - 1
    turned = ops.gather(index, ops.constant(np.array([1, 0])), ops.constant(np.array(last)))
    node.input(port).replace_source_output(turned.output(0))  # type: ignore[attr-defined]


@pytest.mark.parametrize("mistake", [swapped_states, swapped_writes, swapped_keys, interleaved_tokens])
def test_a_wrong_graph_is_seen(mistake: Callable[[Model], None]) -> None:
    imported = batched("after")
    mistake(imported.model)
    imported.model.validate_nodes_and_infer_types()
    sessions = Counted(ovp.compile_model(imported, "CPU", F32), imported.info)
    assert recorded_steps(sessions, (1, 3)) > 1e-3


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ({0: [1], 4: [1]}, r"slot is 4, but the caches hold 4 sequence\(s\)"),
        ({0: [1], 1: []}, "the prompt is empty, wanted at least one token"),
        ({0: [1], 1: [320]}, "token id 320 is outside the vocabulary"),
        ({0: [1], 1: [1] * 9}, "9 tokens at position 0 of slot 1 go past its 8 cells"),
    ],
)
def test_nothing_is_run_when_one_is_refused(tokens: dict[int, list[int]], words: str) -> None:
    sessions = Counted(*dynamic("after"), cells=8)
    with pytest.raises(ovp.StateError, match=words):
        sessions.prefill(tokens)
    assert sessions.inferences == [0]
    assert [one.position for one in sessions] == [0] * SLOTS
    assert sessions.prefill({}) == {}


def test_a_device_that_fails_loses_nothing() -> None:
    sessions = Counted(*dynamic("after"))
    sessions.prefill({1: TOKENS[0][:4], 3: TOKENS[1][:5]})
    before = everything(sessions, range(SLOTS))
    sessions.requests[0].failing = True
    with pytest.raises(ovp.DeviceError, match="inference failed at position 4 of slot 1, 5 of slot 3: no device"):
        sessions.prefill({1: TOKENS[0][4:], 3: TOKENS[1][5:]})
    assert everything(sessions, range(SLOTS)) == before
    sessions.requests[0].failing = False
    found = sessions.prefill({1: TOKENS[0][4:], 3: TOKENS[1][5:]}, all_logits=True)
    assert nmse(found[1], LOGITS[0][4:]) <= 1e-5
    assert nmse(found[3], LOGITS[1][5:]) <= 1e-5


def test_sizes_that_cannot_be() -> None:
    for options in ({"step": 0}, {"cells": 0}):
        with pytest.raises(ovp.StateError, match="wanted at least 1"):
            ovp.SlotSessions(*dynamic("after"), **options)
    assert len(cache_names(ovp.SlotSessions(*dynamic("after")))) == 8
    with pytest.raises(ovp.StateError, match="cache odd is not there, wanted one of cache_k_l3"):
        Counted(*dynamic("after"))[0].state("odd")  # type: ignore[union-attr]
