"""Trim, checkpoints and saved states of sessions over a static pair, and over llama.cpp's dumps with caches outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovpasses as ovp
from models.tiny_gguf import write_llama
from ovpasses.runtime import chunked_prefill
from ovpasses.runtime.state_file import read_state_file
from tests.runtime.pair_helpers import AnySession, compiled_elsewhere, gguf, held, make_pair, opened, pair
from tests.runtime.state_helpers import NAMES, OTHER, TOKENS

KINDS = ["pair", pytest.param("f32 pair", marks=pytest.mark.slow), "dumped pair", "dump"]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def same_from_here(one: AnySession, other: AnySession) -> None:
    """Bytes of the next logits: of a prompt that ends in a padded chunk, and of one token."""
    assert one.position == other.position
    assert held(one) == held(other)
    assert np.array_equal(one.prefill(OTHER[:9], all_logits=True), other.prefill(OTHER[:9], all_logits=True))
    assert np.array_equal(one.decode(7), other.decode(7))
    assert held(one) == held(other)


def test_going_back_to_a_checkpoint(name: str, kind: str) -> None:
    session, control = opened(kind, name), opened(kind, name)
    for one in (session, control):
        one.prefill(TOKENS[:70])
    checkpoint = session.checkpoint()
    session.prefill(OTHER[:5])
    assert session.restore(checkpoint) == 70
    same_from_here(session, control)
    third = opened(kind, name)
    third.prefill(OTHER[:3])
    assert third.restore(checkpoint) == 70  # of the same compiled model
    assert held(third) == {n: v.tobytes() for n, v in checkpoint.values.items()}


def test_a_checkpoint_of_nothing(name: str, kind: str) -> None:
    session = opened(kind, name)
    checkpoint = session.checkpoint()
    session.prefill(TOKENS[:20])
    assert session.restore(checkpoint) == 0
    same_from_here(session, opened(kind, name))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 39])
def test_trim(name: str, kind: str, n: int) -> None:
    session, control = opened(kind, name), opened(kind, name)
    session.prefill(TOKENS[:n])
    session.checkpoint()
    session.prefill(TOKENS[n:40])
    assert session.trim(n) == session.position == n  # of a hybrid by the checkpoint, of others by cutting
    control.prefill(TOKENS[:n])
    found, wanted = session.prefill(OTHER, all_logits=True), control.prefill(OTHER, all_logits=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-4)
    if name == "qwen35":
        with pytest.raises(ovp.StateError, match="is a recurrent state"):
            control.trim(n)


def test_a_file_holds_the_tokens_that_were_run_and_no_padding(name: str, kind: str, tmp_path: Path) -> None:
    session, target = opened(kind, name), opened(kind, name)
    session.prefill(TOKENS[:37])  # 11 cells of the last chunk hold padding
    session.save(tmp_path / "s.safetensors", TOKENS[:37])
    saved = read_state_file(tmp_path / "s.safetensors")
    assert saved.tokens is not None
    assert saved.tokens.tolist() == TOKENS[:37].tolist()
    for state in saved.header.states:
        grows = state.kind in ("key", "value")
        assert (state.axis is not None) == grows
        assert not grows or (state.layout[state.axis], state.shape[state.axis]) == ("seq", 37)
    target.prefill(OTHER[:5])
    assert target.restore(tmp_path / "s.safetensors") == 37
    same_from_here(target, session)


def test_a_file_of_nothing(name: str, kind: str, tmp_path: Path) -> None:
    session = opened(kind, name)
    session.save(tmp_path / "s.safetensors", [])
    session.prefill(TOKENS[:5])
    assert session.restore(tmp_path / "s.safetensors") == 0
    same_from_here(session, opened(kind, name))


def test_rows_and_seed(name: str, kind: str) -> None:
    source, target = opened(kind, name), opened(kind, name)
    source.prefill(TOKENS[:37])
    assert target.seed(source.rows()) == 37
    same_from_here(target, source)


def test_what_does_not_fit_is_refused_without_a_trace(kind: str, tmp_path: Path) -> None:
    session, control, other = (opened(kind, n) for n in ("llama-gqa", "llama-gqa", "gemma4-mixed"))
    for one in (session, control):
        one.prefill(TOKENS[:10])
    other.save(tmp_path / "other.safetensors")
    refusals = [
        (lambda: session.restore(tmp_path / "other.safetensors"), "is of a model with weights"),
        (lambda: session.restore(tmp_path / "missing.safetensors"), "cannot be read"),
        (lambda: session.restore(other.checkpoint()), "the checkpoint at position 0 is of another compiled model"),
        (lambda: session.save(tmp_path / "s.safetensors", [1]), "1 tokens are given to save with the state, wanted"),
        (lambda: session.seed(session.rows()), "the session stands at position 10, wanted 0"),
        (lambda: session.trim(11), "cannot trim to 11: state cache_k_l0 holds 10 tokens, position is 10"),
    ]
    for refused, message in refusals:
        with pytest.raises(ovp.StateError, match=message) as refusal:
            refused()
        assert "\n" not in str(refusal.value)
    same_from_here(session, control)


def test_more_than_there_are_cells_for(tmp_path: Path) -> None:
    large, small = opened("pair", "llama-gqa"), ovp.ChunkedSession(*make_pair(gguf("llama-gqa"), context=32))
    large.prefill(TOKENS[:40])
    large.save(tmp_path / "s.safetensors")
    small.prefill(TOKENS[:3])
    before = held(small)
    with pytest.raises(ovp.StateError, match="is at position 40, the context has 32 tokens"):
        small.restore(tmp_path / "s.safetensors")
    assert (small.position, held(small)) == (3, before)
    small.reset()
    with pytest.raises(ovp.StateError, match="the rows: is at position 40, the context has 32 tokens"):
        small.seed(large.rows())
    large.trim(32)
    large.save(tmp_path / "s.safetensors")
    assert small.restore(tmp_path / "s.safetensors") == small.capacity == 32
    with pytest.raises(ovp.StateError, match="1 tokens at position 32 go past the context of 32 tokens"):
        small.decode(1)


def test_trimming_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened("pair", "llama-gqa")
    session.prefill(TOKENS[:40])
    monkeypatch.setattr(type(session._keeper.states), "_copies", None)
    assert session.trim(12) == 12


def test_sequences_of_one_context_go_back_on_their_own(tmp_path: Path) -> None:
    imported = ovp.read_model(gguf("qwen35").parents[1] / "after/qwen35/stateless-slots-2-of-4/model.xml")
    ovp.LowerGatedDeltaNet().run_on_model(imported.model)
    sessions = ovp.SlotSessions(ovp.compile_model(imported, "CPU"), imported.info)
    first, second = sessions[1], sessions[3]
    assert isinstance(first, ovp.Session)
    assert isinstance(second, ovp.Session)
    first.prefill(TOKENS[:9])
    second.prefill(OTHER[:6])
    untouched, checkpoint = held(second), first.checkpoint()
    first.prefill(TOKENS[9:15])
    wanted = first.decode(3)
    first.restore(checkpoint)
    assert held(second) == untouched
    first.prefill(TOKENS[9:15])
    assert np.array_equal(first.decode(3), wanted)
    second.restore(checkpoint)  # a copy of the other sequence
    second.prefill(TOKENS[9:15])
    assert np.array_equal(second.decode(3), wanted)
    first.reset()
    assert not any(v.any() for v in first._keeper.states.read(0).values())
    assert second.position == 16


def test_a_pair_of_two_models_is_refused(tmp_path: Path) -> None:
    options = {"heads": 4, "heads_kv": 2, "size": 16, "layers": 2}
    first, second = (make_pair(write_llama(tmp_path / f"{s}.gguf", seed=s, **options), context=32) for s in (0, 1))
    with pytest.raises(ovp.StateError, match=r"the prefill model has weights \w+, the decode model \w+, wanted one"):
        ovp.ChunkedSession(first[0], second[1], first[2])


def test_models_compiled_elsewhere_are_named(tmp_path: Path) -> None:
    path, options = gguf("llama-gqa"), {"context": 160}
    compiled = [
        compiled_elsewhere(path, "static-prefill", chunk=16, **options),
        compiled_elsewhere(path, "static-decode", **options),
    ]
    info = pair("llama-gqa")[2]
    with pytest.raises(ovp.StateError, match="the weights of the compiled model are not known"):
        ovp.ChunkedSession(*compiled, info).save(tmp_path / "s.safetensors")
    session = ovp.ChunkedSession(*compiled, info, model=ovp.read_model(path), rotation=(64, 64))
    session.prefill(TOKENS[:3])
    session.save(tmp_path / "s.safetensors")
    assert read_state_file(tmp_path / "s.safetensors").header.rotation == (64, 64)
    with pytest.raises(ovp.StateError, match="saved with rotation K 64, V 64, the session has K 0, V 0"):
        opened("pair", "llama-gqa").restore(tmp_path / "s.safetensors")


def test_cells_after_the_restored_ones_are_empty() -> None:
    """Masks hide what was there, but would not hide an infinity."""
    session = opened("pair", "llama-gqa")
    assert isinstance(session, ovp.ChunkedSession)
    session.prefill(TOKENS[:10])
    checkpoint = session.checkpoint()
    session.prefill(TOKENS[10:40])
    session.restore(checkpoint)
    for cache in ("cache_k_l0", "cache_v_l2"):
        assert session.state(cache)[:, :10].all()
        assert not session.state(cache)[:, 10:].any()


def test_after_a_failed_inference_only_a_reset_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened("pair", "llama-gqa")
    session.prefill(TOKENS[:20])
    checkpoint = session.checkpoint()

    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(chunked_prefill._Stage, "infer", broken)
        with pytest.raises(ovp.DeviceError, match="inference failed at position 20: no memory"):
            session.decode(1)
    for refused in (
        lambda: session.trim(20),
        lambda: session.save(tmp_path / "s.safetensors"),
        lambda: session.restore(checkpoint),
        session.checkpoint,
        session.rows,
    ):
        with pytest.raises(ovp.StateError, match="an earlier inference or change failed or was interrupted"):
            refused()
    assert not any(tmp_path.iterdir())
    assert session.trim(0) == 0
    same_from_here(session, opened("pair", "llama-gqa"))


@pytest.mark.parametrize("change", ["restore", "reset"])
def test_caches_that_are_half_set_are_not_used(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are set in place, so an interrupt can leave some of them as they were."""
    session = opened("pair", "llama-gqa")
    session.prefill(TOKENS[:20])
    checkpoint = session.checkpoint()
    session.prefill(TOKENS[20:30])
    real = session._keeper.states._arrays  # type: ignore[attr-defined]

    class Interrupting(dict[str, np.ndarray]):
        def items(self) -> Iterator[Any]:  # type: ignore[override]
            yield from list(super().items())[:2]
            raise KeyboardInterrupt

        def values(self) -> Iterator[Any]:  # type: ignore[override]
            return (value for _, value in self.items())

    with monkeypatch.context() as patch:
        patch.setattr(session._keeper.states, "_arrays", lambda: Interrupting(real()))
        with pytest.raises(KeyboardInterrupt):
            session.restore(checkpoint) if change == "restore" else session.reset()
    for refused in (lambda: session.decode(1), lambda: session.trim(10), session.checkpoint):
        with pytest.raises(ovp.StateError, match="failed or was interrupted; reset"):
            refused()
    session.reset()
    same_from_here(session, opened("pair", "llama-gqa"))
