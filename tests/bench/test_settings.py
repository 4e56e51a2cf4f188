"""Which depths are run."""

from __future__ import annotations

import pytest

from ovpasses.bench import BenchError, Settings


def test_all_that_fits_is_left_as_it_is() -> None:
    asked = Settings(depths=(2048, 0, 512, 512))
    fitted, notes = asked.fitted(8192)
    assert fitted.depths == (0, 512, 2048)
    assert fitted.chunk == 512
    assert notes == []


def test_without_a_known_context_nothing_is_cut() -> None:
    assert Settings().fitted(None)[0].depths == (0, 512, 2048, 8192)


def test_a_depth_that_does_not_fit_becomes_the_deepest_that_does() -> None:
    """8192 - (512 + 5 rounds of 4 + 1 tokens) = 7655, in blocks of 32: 7648."""
    fitted, notes = Settings().fitted(8192)
    assert fitted.depths == (0, 512, 2048, 7648)
    assert notes == ["depth 8192 and the 537 tokens after it do not fit into the context of 8192: 7648 instead"]
    assert fitted.depths[-1] + fitted.room <= 8192 < fitted.depths[-1] + 32 + fitted.room


def test_depths_that_become_the_same_are_run_once() -> None:
    fitted, notes = Settings(chunk=16, rounds=2, tokens=1).fitted(100)
    assert fitted.depths == (0, 64)  # 100 - (16 + 4) = 80
    assert [note.split(" and")[0] for note in notes] == ["depth 512", "depth 2048", "depth 8192"]


def test_a_prompt_that_fills_the_context_is_cut() -> None:
    fitted, notes = Settings(depths=(0,), rounds=2).fitted(64)
    assert (fitted.chunk, fitted.depths) == (32, (0,))
    assert "512 tokens leaves no room in the context of 64: 32" in notes[0]


def test_rounds_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BenchError, match=r"5 rounds of 20 tokens do not fit into the model's context of 64 tokens"):
        Settings(tokens=20).fitted(64)


def test_a_long_prompt_is_run_in_several_inferences() -> None:
    assert (Settings(chunk=2000).step, Settings(chunk=16).step) == (512, 16)
