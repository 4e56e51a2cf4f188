"""Checkpoints: going back is exact, recurrent states included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovpasses as ovp
from ovpasses.runtime.checkpoints import Checkpoints
from ovpasses.runtime.request_states import RequestStates
from tests.runtime.state_helpers import F32, NAMES, ONE_THREAD, OTHER, TOKENS, Prepared, content, prepared


@pytest.fixture(scope="module", params=[ONE_THREAD, F32], ids=["f16", "f32"])
def hybrid(request: pytest.FixtureRequest, recorded: Path) -> Prepared:
    return prepared(recorded / "gguf/tiny-qwen35.gguf", config=request.param)


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, recorded: Path) -> Prepared:
    return prepared(recorded / f"gguf/tiny-{request.param}.gguf", config=ONE_THREAD)


def test_going_back_is_never_having_gone_further(model: Prepared) -> None:
    session, control = ovp.Session(*model), ovp.Session(*model)
    for one in (session, control):
        one.prefill(TOKENS[:70])
    checkpoint = session.checkpoint()
    assert (checkpoint.position, checkpoint.nbytes > 0) == (70, True)
    for token in OTHER[:5]:
        session.decode(int(token))
    assert session.restore(checkpoint) == session.position == 70
    assert content(session) == content(control)
    for token in TOKENS[70:74]:
        assert np.array_equal(session.decode(int(token)), control.decode(int(token)))
    assert session.restore(checkpoint) == 70
    assert content(session) == {name: value.tobytes() for name, value in checkpoint.values.items()}


def test_trim_of_a_recurrent_model_goes_to_a_checkpoint(hybrid: Prepared) -> None:
    session, control = ovp.Session(*hybrid), ovp.Session(*hybrid)
    for one in (session, control):
        one.prefill(TOKENS[:10])
    session.checkpoint()
    session.prefill(TOKENS[10:20])
    session.checkpoint()
    session.prefill(TOKENS[20:24])
    assert session.trim(22) == session.position == 20  # run tokens 20 and 21 again
    assert session.trim(10) == session.position == 10
    assert content(session) == content(control)
    assert np.array_equal(session.prefill(OTHER), control.prefill(OTHER))
    with pytest.raises(ovp.StateError, match="recurrent state"):
        session.trim(9)


def test_checkpoints_of_dropped_tokens_are_forgotten(hybrid: Prepared) -> None:
    session = ovp.Session(*hybrid)
    session.prefill(TOKENS[:10])
    early = session.checkpoint()
    session.prefill(TOKENS[10:20])
    session.checkpoint()
    session.restore(early)
    session.prefill(OTHER[:16])
    assert session.trim(20) == 10  # what was kept at 20 had run other tokens
    session.reset()
    session.prefill(OTHER[:12])
    with pytest.raises(ovp.StateError, match="recurrent state"):
        session.trim(11)


def test_no_more_are_kept_than_asked_for(hybrid: Prepared) -> None:
    session = ovp.Session(*hybrid, checkpoints=2)
    for i in range(4):
        session.decode(i)
        session.checkpoint()
    assert session.trim(3) == 3
    with pytest.raises(ovp.StateError, match="recurrent state"):
        session.trim(2)


def test_none_kept() -> None:
    assert Checkpoints(0).at_or_before(5) is None


def test_another_session_of_the_model_goes_on_from_one(hybrid: Prepared) -> None:
    session, other = ovp.Session(*hybrid), ovp.Session(*hybrid)
    session.prefill(TOKENS[:12])
    other.prefill(OTHER)
    assert other.restore(session.checkpoint()) == 12
    assert np.array_equal(session.decode(4), other.decode(4))


def test_a_new_session_has_one_too(hybrid: Prepared) -> None:
    session = ovp.Session(*hybrid)
    checkpoint = session.checkpoint()
    first = session.prefill(TOKENS[:12])
    assert session.restore(checkpoint) == 0
    assert np.array_equal(session.prefill(TOKENS[:12]), first)


def test_one_of_another_model_is_refused(hybrid: Prepared, recorded: Path) -> None:
    session, control = ovp.Session(*hybrid), ovp.Session(*hybrid)
    other = ovp.Session(*prepared(recorded / "gguf/tiny-qwen35.gguf"))
    other.prefill(TOKENS[:3])
    for one in (session, control):
        one.prefill(TOKENS[:7])
    with pytest.raises(ovp.StateError, match="the checkpoint at position 3 is of another compiled model"):
        session.restore(other.checkpoint())
    assert (session.position, content(session)) == (7, content(control))


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (RuntimeError("too little"), ovp.StateError, "refuses to set its states: too little"),
        (MemoryError(), ovp.StateError, "refuses to set its states: MemoryError"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_a_device_that_fails_half_way_changes_nothing(
    hybrid: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    raised: type[BaseException],
    message: str,
) -> None:
    session, control = ovp.Session(*hybrid), ovp.Session(*hybrid)
    session.prefill(TOKENS[:5])
    checkpoint = session.checkpoint()
    session.prefill(TOKENS[5:9])
    control.prefill(TOKENS[:5])
    control.prefill(TOKENS[5:9])
    whole, calls = RequestStates._set, []

    def broken(states: RequestStates, handle: Any, value: np.ndarray) -> None:
        calls.append(handle.name)
        whole(states, handle, value)
        if len(calls) == 3:
            raise error

    monkeypatch.setattr(RequestStates, "_set", broken)
    with pytest.raises(raised, match=message):
        session.restore(checkpoint)
    assert (session.position, content(session)) == (9, content(control))
    assert np.array_equal(session.decode(1), control.decode(1))


def test_a_state_that_was_set_holds_a_copy(model: Prepared) -> None:
    """What is set on a CPU is lent to it: it must not look there again."""
    session, control = ovp.Session(*model), ovp.Session(*model)
    for one in (session, control):
        one.prefill(TOKENS[:20])
    checkpoint = session.checkpoint()
    session.prefill(OTHER)
    session.restore(checkpoint)
    for value in checkpoint.values.values():
        value[...] = np.nan
    assert content(session) == content(control)
    for token in OTHER[:4]:
        assert np.array_equal(session.decode(int(token)), control.decode(int(token)))


def test_an_interrupt_between_the_states_and_the_position(model: Prepared) -> None:
    """Ctrl-C is told of when the inference has ended: the states are a step further, the position is not."""
    session = ovp.Session(*model)
    session.prefill(TOKENS[:20])
    checkpoint = session.checkpoint()
    request = session._inside.request

    class Interrupted:
        def infer(self, feed: dict[str, Any]) -> None:
            request.infer(feed)
            raise KeyboardInterrupt

    session._inside.request = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        session.decode(1)
    session._inside.request = request
    for refused in (lambda: session.decode(1), lambda: session.trim(10), lambda: session.restore(checkpoint)):
        with pytest.raises(ovp.StateError, match=r"failed or was interrupted; reset"):
            refused()
    session.reset()
    assert session.restore(checkpoint) == 20
    control = ovp.Session(*model)
    control.prefill(TOKENS[:20])
    assert np.array_equal(session.decode(1), control.decode(1))


def test_an_interrupted_reset_is_not_forgotten(hybrid: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ovp.Session(*hybrid)
    session.prefill(TOKENS[:5])
    whole = RequestStates.clear

    def interrupted(states: RequestStates) -> None:
        whole(states)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RequestStates, "clear", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.reset()
    with pytest.raises(ovp.StateError, match="failed or was interrupted; reset"):
        session.decode(1)
    session.reset()
    assert np.array_equal(session.prefill(TOKENS[:5]), ovp.Session(*hybrid).prefill(TOKENS[:5]))
