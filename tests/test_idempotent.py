"""Rewriting twice changes nothing the second time, on every recorded model, and the report says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import ovpasses as ovp
from ovpasses.equivalence import structure_digest

RECORDED = Path(__file__).parent.parent / "models/recorded"
GGUFS = sorted(RECORDED.glob("*/*.gguf"))
DUMPS = sorted(RECORDED.glob("*/*/*/*.xml"))


def name(path: Path) -> str:
    return str(path.relative_to(RECORDED).with_suffix(""))


@pytest.mark.parametrize("path", [*GGUFS, *DUMPS], ids=name)
def test_second_run_of_the_preset(path: Path) -> None:
    imported = ovp.read_model(path)
    first = ovp.Pipeline.preset("stateful", portable=True).run(imported)
    digest = structure_digest(imported.model)
    second = ovp.Pipeline.preset("stateful", portable=True).run(imported)
    assert [report.rewritten for report in second.passes] == [0] * len(second.passes)
    assert structure_digest(imported.model) == digest
    for report in [*first.passes, *second.passes]:
        assert report.candidates == report.rewritten + len(report.skipped)
        assert all(skip.reason for skip in report.skipped)
    if "static" not in str(path) and "slots" not in str(path) and "qwen35" not in str(path):
        assert first.rewritten
