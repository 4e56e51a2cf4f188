"""PassReport: counts, reasons, their words, and how a run is told."""

from __future__ import annotations

import json

from models import tiny_graphs as tiny
from models.tiny_graphs import Decoder
from ovpasses import BeamReorder, KVStateSeqAxis, PassReport, Pipeline, Skip


def report() -> PassReport:
    found = PassReport("KVStateSeqAxis", "state", ops_before=10, ops_after=12)
    found.done("cache_k_l0")
    found.skip("cache_k_l1", "append", "its Concat c1 has 3 inputs, wanted 2")
    found.skip("cache_k_l2", "append", "its Concat c2 has 4 inputs, wanted 2")
    found.skip("cache_k_l3", "already", "the sequence is on dim 2 already")
    return found


def test_counts_add_up() -> None:
    found = report()
    assert (found.candidates, found.rewritten, len(found.skipped)) == (4, 1, 3)
    assert found.summary() == "1 of 4 rewritten"


def test_what_is_settled_is_not_in_the_way() -> None:
    assert [skip.node for skip in report().unsettled] == ["cache_k_l1", "cache_k_l2"]
    assert Skip("x", "kind", "").settled
    assert not Skip("x", "append", "").settled


def test_skips_of_one_wording_are_grouped_under_the_first() -> None:
    assert report().skip_lines() == [
        "1x already: cache_k_l3: the sequence is on dim 2 already",
        "2x append: cache_k_l1: its Concat c1 has 3 inputs, wanted 2",
    ]


def test_says_what_it_looked_for_when_there_was_none() -> None:
    assert PassReport("P", "state", ops_before=7).summary() == "nothing matched: no state among 7 ops"


def test_dict_is_json_and_complete() -> None:
    found = json.loads(json.dumps(report().to_dict()))
    assert found["candidates"] == found["rewritten"] + len(found["skipped"])
    assert found["sites"] == ["cache_k_l0"]
    assert found["skipped"][0] == {
        "node": "cache_k_l1",
        "step": "append",
        "reason": "its Concat c1 has 3 inputs, wanted 2",
    }
    assert (found["ops_before"], found["ops_after"]) == (10, 12)


def test_a_run_counts_ops_and_time() -> None:
    model = tiny.stateful(Decoder())
    one = KVStateSeqAxis()
    before = len(model.get_ops())
    one.run_on_model(model)
    assert (one.report.ops_before, one.report.ops_after) == (before, len(model.get_ops()))
    assert one.report.seconds > 0


def test_every_run_has_a_report_of_its_own() -> None:
    one = KVStateSeqAxis()
    one.run_on_model(tiny.stateful(Decoder()))
    first = one.report
    one.run_on_model(tiny.stateful(Decoder(layers=2)))
    assert (first.rewritten, one.report.rewritten) == (2, 4)


def test_a_pipeline_tells_all_of_it() -> None:
    model = tiny.stateful(Decoder(layers=2, layout=("bshd", "sbhd")))
    found = Pipeline([KVStateSeqAxis(), BeamReorder()]).run(model)
    assert found.rewritten == 2 + 4
    text = str(found)
    for words in ("KVStateSeqAxis", "2 of 4 rewritten", "2x state: cache_k_l1", "BeamReorder", "4 of 4 rewritten"):
        assert words in text
    assert [entry["name"] for entry in json.loads(json.dumps(found.to_dict()))["passes"]] == [
        "KVStateSeqAxis",
        "BeamReorder",
    ]
    assert "cache_k_l1" in found._repr_html_()
