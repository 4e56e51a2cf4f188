"""Depths of real sessions: reached, gone back to, and taken over from others."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from openvino import Core

import ovpasses as ovp
from ovpasses.bench import BenchError, Settings, parse_arm
from ovpasses.bench.session_runner import SessionRunner, open_session
from tests.bench.conftest import SETTINGS, Opened
from tests.conftest import nmse

EXACT = "INFERENCE_PRECISION_HINT=f32;KV_CACHE_PRECISION=f32"


def ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 320, count)


def next_logits(runner: SessionRunner) -> np.ndarray:
    return runner.session.decode(7)


def test_arms_are_rewritten_each_on_its_own(opened: Opened) -> None:
    plain, both = opened("dump="), opened("both=KVStateSeqAxis,BeamReorder")
    assert (plain.reports[0].rewritten, both.reports[0].rewritten) == (0, 12)
    assert opened("dump=").reports[0].rewritten == 0
    assert plain.threads is not None


def test_back_is_where_it_was(opened: Opened) -> None:
    runner = opened(f"a=KVStateSeqAxis,BeamReorder;{EXACT}")
    runner.logits(ids(5), ids(1))
    assert (runner.stuck, runner.session.position) == ("", 0)
    runner.reach(ids(24), [])
    wanted = next_logits(runner)
    runner.decode(ids(3))
    runner.prefill(ids(8))
    assert runner.session.position == 24 + 1 + 3 + 8
    assert runner.back()
    assert runner.session.position == 24
    assert nmse(next_logits(runner), wanted) <= 1e-9
    runner.reach(ids(40), [])
    assert runner.session.position == 40
    other = opened(f"b=;{EXACT}")
    other.reach(ids(40), [])
    assert nmse(next_logits(runner), next_logits(other)) <= 1e-6


@pytest.mark.parametrize(
    "text", ["a=", "a=KVStateSeqAxis,BeamReorder;KV_CACHE_PRECISION=f16", f"a=KVStateSeqAxis;{EXACT}"]
)
def test_states_of_another_layout_are_taken_instead_of_a_prefill(
    opened: Opened, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, runner = opened(f"source=KVStateSeqAxis,BeamReorder;{EXACT}"), opened(text)
    for one in (source, runner):
        one.logits(ids(5), ids(1))
    source.reach(ids(24), [])
    with monkeypatch.context() as patched:
        patched.setattr(runner.session, "prefill", None)
        runner.reach(ids(24), [source])
    assert runner.session.position == source.session.position == 24
    assert nmse(next_logits(runner), next_logits(source)) <= 1e-4


def test_rounded_states_are_prefilled_and_stay_where_they_are(opened: Opened) -> None:
    source = opened(f"source=KVStateSeqAxis,BeamReorder;{EXACT}")
    runner = opened("u8=KVStateSeqAxis,BeamReorder;KV_CACHE_PRECISION=u8")
    for one in (source, runner):
        one.logits(ids(5), ids(1))
    assert "held in u8" in runner.stuck
    assert runner.held == "u8"
    source.reach(ids(24), [])
    runner.reach(ids(24), [source])
    assert runner.session.position == 24
    runner.decode(ids(3))
    assert not runner.back()
    assert runner.session.position == 27
    runner.reach(ids(26), [])  # past it already: from the start
    assert runner.session.position == 26
    source.reach(ids(26), [runner])
    assert source.session.position == 26
    runner.reach(ids(0), [])
    runner.prefill(ids(3))
    assert runner.back()
    assert runner.session.position == 0


@pytest.mark.needs_2026_4
def test_recurrent_states_go_back_too(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-qwen35.gguf")
    runner, other = (open_session(parse_arm(f"{n}=stateful;{EXACT}"), imported, SETTINGS, Core()) for n in "ab")
    for one in (runner, other):
        one.logits(ids(5), ids(1))
    runner.reach(ids(24), [])
    wanted = next_logits(runner)
    runner.prefill(ids(8))
    assert runner.back()
    assert runner.session.position == 24
    assert runner.back()  # the token above is gone again
    assert nmse(next_logits(runner), wanted) <= 1e-9
    assert runner.back()
    other.reach(ids(24), [runner])
    assert nmse(next_logits(other), wanted) <= 1e-6


@pytest.mark.needs_2026_4
def test_a_static_pair_is_an_arm(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf")
    settings = Settings(depths=(0, 24), chunk=8, tokens=2, rounds=2)
    pair = open_session(parse_arm("static"), imported, settings, Core())
    plain = open_session(parse_arm("stateful"), imported, settings, Core())
    assert pair.session.capacity == 24 + settings.room
    assert [report.name for report in pair.reports] == ["static-prefill", "static-decode"]
    pair.reach(ids(24), [])
    plain.reach(ids(24), [pair])
    assert nmse(next_logits(plain), next_logits(pair)) <= 1e-4


def test_what_is_timed_is_the_session_and_nothing_else(opened: Opened) -> None:
    runner = opened("a=")
    ticks = itertools.count()
    timed = SessionRunner(runner.arm, runner.session, clock=lambda: float(next(ticks)))
    assert timed.prefill(ids(8)) == 1.0
    assert timed.decode(ids(4)) == [1.0, 1.0, 1.0]
    assert next(ticks) == 8
    assert timed.session.position == 12


def test_a_refusal_names_the_arm(dump: Path) -> None:
    imported = ovp.read_model(dump)
    with pytest.raises(BenchError, match=r"^arm odd: device CPU cannot compile the model"):
        open_session(parse_arm("odd=;KV_CACHE_PRECISION=nonsense"), imported, SETTINGS, Core())


def test_threads_reach_the_device(dump: Path) -> None:
    settings = Settings(depths=(0,), chunk=4, threads=1)
    assert open_session(parse_arm("a="), ovp.read_model(dump), settings, Core()).threads == 1
