"""Pipelines: order, report, errors, a hook between passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from openvino import Model

import ovpasses as ovp
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport


def test_report_of_the_preset(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-qwen35.gguf")
    report = ovp.Pipeline.preset("stateful").run(imported)
    axis = report["KVStateSeqAxis"]
    assert (axis.candidates, axis.rewritten, len(axis.skipped)) == (8, 2, 6)
    assert axis.ops_before == report["MakeKVStateful"].ops_after > 700
    assert axis.seconds > 0
    text = str(report)
    assert "2 of 8 rewritten" in text
    assert "3x kind: conv_state_l0: fixed shape [1,1,128,3] and no append, not a KV cache" in axis.skip_lines()
    assert json.loads(json.dumps(report.to_dict()))["passes"]
    assert "added input beam_idx (i32 [beams])" in " ".join(text.replace("│", " ").split())
    assert "<table>" in report._repr_html_()


def test_a_pass_that_matches_nothing_says_so(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf")
    report = ovp.Pipeline([ovp.KVStateSeqAxis()]).run(imported)
    assert "nothing matched: no state (ReadValue/Assign pair) among" in str(report)


def test_static_caches_are_named_with_their_sequence(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "after/llama-gqa/static/model_decode.xml")
    report = ovp.Pipeline([ovp.MakeKVStateful()]).run(imported)
    assert report.rewritten == 0
    assert len(report["MakeKVStateful"].skipped) == 6


def test_hook_sees_the_model_after_every_pass(recorded: Path) -> None:
    seen: list[tuple[str, int]] = []

    def hook(step: ReportedPass, model: Model) -> None:
        seen.append((type(step).__name__, len(model.get_variables())))

    passes = [ovp.MakeKVStateful(), ovp.KVStateSeqAxis()]
    ovp.Pipeline(passes, hook=hook).run(ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf"))
    assert seen == [("MakeKVStateful", 6), ("KVStateSeqAxis", 6)]


class Broken(ReportedPass):
    """Plans an edit that fails."""

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        report.done("x")
        return [self._edit]

    def _edit(self) -> None:
        raise RuntimeError("Check 'a == b' failed at src/core.cpp:1:\nshapes differ")


def test_a_failing_pass_is_named_with_those_before_it(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf")
    with pytest.raises(ovp.RewriteError, match=r"Broken \(after MakeKVStateful\): .*shapes differ") as raised:
        ovp.Pipeline([ovp.MakeKVStateful(), Broken()]).run(imported)
    assert [report.name for report in raised.value.reports] == ["MakeKVStateful", "Broken"]


def test_a_refusal_tells_what_has_changed_the_model_before_it(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "after/qwen35/stateless/model.xml")
    with pytest.raises(ovp.RewriteError) as raised:
        ovp.Pipeline.preset("static-prefill", chunk=2000).run(imported)
    assert str(raised.value) == (
        "StaticTokens: tokens is 2000, wanted at most the context of 1024 cells; "
        "OneSequence, StaticSlotCopy ran before it and changed the model, read that again"
    )
    alone = ovp.read_model(recorded / "after/llama-gqa/stateless/model.xml")
    with pytest.raises(ovp.RewriteError, match=r"^StaticTokens: tokens is 2000, .* of \d+ cells$"):
        ovp.Pipeline([ovp.StaticTokens(tokens=2000)]).run(alone)


def test_a_graph_that_cannot_be_read_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ReportedPass, model: Model, report: PassReport) -> list[Edit]:
        raise RuntimeError("Check 'rank' failed at src/core.cpp:1:\nno rank")

    monkeypatch.setattr(ovp.BeamReorder, "plan", broken)
    with pytest.raises(ovp.RewriteError, match=r"^BeamReorder: cannot read this graph: .*no rank; nothing"):
        ovp.BeamReorder().run_on_model(Model([], [], "empty"))


def test_repr_rebuilds_the_pipeline() -> None:
    pipeline = ovp.Pipeline.preset("stateful", strict=True, pairs={"a": "b"})
    names = {name: getattr(ovp, name) for name in ovp.__all__}
    again = eval(repr(pipeline), names)
    assert repr(again) == repr(pipeline)


def test_unknown_preset() -> None:
    with pytest.raises(ovp.RewriteError, match="preset 'x' is not known, wanted one of stateful"):
        ovp.Pipeline.preset("x")
