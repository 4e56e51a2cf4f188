"""Ctrl-C at random moments: a session goes on right from where its position says, or asks for a reset."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ovpasses as ovp
from tests.conftest import nmse
from tests.runtime.pair_helpers import AnySession, opened
from tests.runtime.state_helpers import TOKENS

pytestmark = [pytest.mark.slow, pytest.mark.needs_2026_4]

SECONDS, LONGEST = 15, 0.012  # of one case; of an operation before it is interrupted
SAVED = [int(token) for token in TOKENS[:20]]


class CtrlC:
    """Raises once after a while, unless it is put down before."""

    def __init__(self) -> None:
        self.armed = False

    def arm(self, seconds: float) -> None:
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def press(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


@pytest.fixture
def ctrl_c() -> Iterator[CtrlC]:
    key = CtrlC()
    before = signal.signal(signal.SIGALRM, key.press)
    yield key
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def attempted(
    session: AnySession, what: str, ran: list[int], path: Path, dice: random.Random, ctrl_c: CtrlC
) -> list[int]:
    """The tokens that a session has run when the operation is through; it may be interrupted at any moment."""
    new = [dice.randrange(320) for _ in range(dice.randint(1, 9))]
    keep = dice.randint(0, len(ran))
    after = {"prefill": ran + new, "decode": ran + new[:1], "restore": SAVED, "reset": []}.get(what, ran)
    operation = {
        "prefill": lambda: session.prefill(new),
        "decode": lambda: session.decode(new[0]),
        "restore": lambda: session.restore(path),
        "save": lambda: session.save(path.with_name("other.safetensors")),
        "checkpoint": session.checkpoint,
        "trim": lambda: session.trim(keep),
        "reset": session.reset,
    }[what]
    try:
        try:
            ctrl_c.arm(dice.uniform(1e-5, LONGEST))
            operation()
        finally:
            ctrl_c.armed = False
    except KeyboardInterrupt:  # it is as it was before, or as it is after, and the position tells
        after = ran if session.position == len(ran) else after
    return after[: session.position]


@pytest.mark.parametrize("name", ["llama-gqa", "qwen35"])
@pytest.mark.parametrize("form", ["dynamic", "pair"])
def test_an_interrupt_at_any_moment(form: str, name: str, tmp_path: Path, ctrl_c: CtrlC) -> None:
    dice, path, seen = random.Random(7), tmp_path / "s.safetensors", Counter[str]()
    source = opened(form, name)
    source.prefill(SAVED)
    source.save(path)
    session, ran = opened(form, name), list[int]()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        what = dice.choice(["prefill", "decode", "restore", "save", "checkpoint", "trim", "reset"])
        if len(ran) > 120:
            session, ran = opened(form, name), []
        try:
            ran = attempted(session, what, ran, path, dice, ctrl_c)
        except ovp.StateError as refusal:  # a recurrent state that cannot be cut, or an interrupt before this one
            seen[f"refused {what}"] += "recurrent" in str(refusal)
        try:
            found = session.decode(7)
        except ovp.StateError:
            with pytest.raises(ovp.StateError, match="reset it"):
                session.decode(7)
            seen["asked for a reset"] += 1
            session.reset()
            ran, found = [], session.decode(7)
        ran = [*ran, 7]
        control = opened(form, name)
        assert session.position == len(ran), what
        assert nmse(found, control.prefill(ran)) < 1e-3, what  # f16 caches, one by one or at once
        seen[what] += 1
    assert seen["asked for a reset"] > 0
    assert min(seen[what] for what in ("prefill", "decode", "restore", "save", "trim", "reset")) > 5
    assert np.isfinite(found).all()
