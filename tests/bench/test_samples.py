"""Medians, spread, ratios."""

from __future__ import annotations

import pytest

from ovpasses.bench import Series


def series(rounds: dict[int, list[float]], tokens: int = 1, *, paired: bool = True) -> Series:
    return Series("a", 8, "decode", tokens, rounds, paired)


def test_median_and_spread_are_of_all_samples() -> None:
    found = series({0: [1.0, 4.0], 1: [2.0, 3.0, 9.0]}, tokens=6)
    assert found.median == 3.0
    assert found.rate == 2.0
    data = found.to_dict()
    assert (data["min_s"], data["median_s"], data["max_s"], data["tokens_per_s"]) == (1.0, 3.0, 9.0, 2.0)
    assert data["rounds"][1] == {"round": 1, "seconds": [2.0, 3.0, 9.0]}


def test_a_ratio_is_of_the_same_rounds() -> None:
    """The machine is three times as slow in round 1; the ratio of medians over all samples would be 1.5."""
    base = series({0: [2.0, 2.0], 1: [6.0], 2: [2.0]})
    arm = series({0: [1.0], 1: [3.0, 3.0, 3.0], 2: [1.0]})
    assert base.median / arm.median != 2.0
    assert arm.times_as_fast(base) == 2.0
    assert base.times_as_fast(arm) == 0.5


def test_rounds_that_only_one_has_do_not_count() -> None:
    assert series({0: [1.0]}).times_as_fast(series({0: [5.0], 1: [1.0], 2: [1.0]})) == 5.0
    assert series({0: [1.0]}).times_as_fast(series({1: [1.0]})) is None


def test_a_ratio_counts_tokens() -> None:
    assert series({0: [1.0]}, tokens=4).times_as_fast(series({0: [1.0]}, tokens=2)) == 2.0


def test_rounds_of_another_program_are_not_paired() -> None:
    other = series({0: [1.0], 1: [1.0], 2: [4.0]}, paired=False)
    assert other.times_as_fast(series({0: [3.0], 1: [2.0], 2: [1.0]})) == pytest.approx(2.0)
