"""Rewrites gone wrong are found: ``scripts/mutants.py`` shows by what."""

from __future__ import annotations

import pytest

from tests.equivalence.mutants import BASES, MUTANTS, Mutant, killed_by

# A third, with some of each base; the others are a sweep of their own.
QUICK = MUTANTS[::3]


def parameters() -> list[object]:
    marks = {name: [pytest.mark.needs_2026_4] if base.new else [] for name, base in BASES.items()}
    slow = {one.name: [] if one in QUICK else [pytest.mark.slow] for one in MUTANTS}
    return [pytest.param(one, id=one.name, marks=[*marks[one.base], *slow[one.name]]) for one in MUTANTS]


def test_there_are_enough() -> None:
    assert len({one.name for one in MUTANTS}) == len(MUTANTS) >= 30
    assert {one.base for one in QUICK} == set(BASES)


@pytest.mark.parametrize("one", parameters())
def test_is_found(one: Mutant) -> None:
    report = one.check()
    assert not report.equivalent, report
    assert killed_by(report)


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("base", [pytest.param(b, marks=[pytest.mark.slow] * (b != "qwen pair")) for b in BASES])
def test_without_a_change_nothing_is_found(base: str) -> None:
    report = Mutant("none", base, lambda model: None).check()
    assert report.equivalent, report
    assert killed_by(report) == ""
