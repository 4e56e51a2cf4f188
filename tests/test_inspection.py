"""What ``inspect`` says of a model: summary, layers, states by what their dims are, and near misses with reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import Model

import ovpasses as ovp
from models import tiny_graphs as tiny
from models.tiny_graphs import Decoder
from ovpasses._openvino import ops
from ovpasses._tables import alike, html_table, ranges
from ovpasses._weights import weights_of
from ovpasses.cli import main
from ovpasses.inspection import Inspection, inspect_model
from ovpasses.passes._states import find_append, states
from ovpasses.pipeline import PASSES


def inspected(path: Path) -> Inspection:
    return inspect_model(ovp.read_model(path))


def lines(found: Inspection) -> str:
    """The text with the borders and the breaks of cells taken out."""
    return " ".join("".join(" " if "─" <= c <= "╿" else c for c in str(found)).split())


def passes(found: Inspection) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads(json.dumps(found.to_dict()))["passes"]}


def test_llama_stateful(recorded: Path) -> None:
    found = inspected(recorded / "after/llama-gqa/stateful/model.xml")
    text = lines(found)
    for words in (
        "ops 446",
        "parameters 0.3 M; stored: f32 1.0 MB",
        "vocabulary 320 tokens",
        "cache_k_l0 ... cache_k_l2 (3) f16 [1, heads 3, seq, size 16] 2",
        "0-2 attention 3 16 16 -",
        "BeamReorder 6 of 6 would be rewritten",
        "6x already: cache_k_l0: the sequence is on dim 2 already",
        "nothing matched: no GatedDeltaNet op among 446 ops",
    ):
        assert words in text
    assert set(passes(found)) == set(PASSES)


def test_before_the_relayout_the_sequence_comes_first(recorded: Path) -> None:
    found = inspected(recorded / "after/gemma4-mixed/stateful-prerelayout/model.xml")
    layouts = {state["name"]: state["layout"] for state in found.states}
    assert layouts["cache_k_l0"] == ["1", "seq", "heads 4", "size 16"]
    assert layouts["cache_v_l5"] == ["1", "seq", "heads 1", "size 32"]
    assert "12 of 12 would be rewritten" in lines(found)


@pytest.mark.needs_2026_4
def test_kinds_of_states(recorded: Path) -> None:
    """O-18: the one KV layer is 3; conv and delta-net states have no sequence axis although one is of rank 4."""
    imported = ovp.read_model(recorded / "gguf/tiny-qwen35.gguf")
    ovp.Pipeline.preset("stateful").run(imported)
    found = inspect_model(imported)
    by_name = {state["name"]: state for state in found.to_dict()["states"]}
    assert {name for name, state in by_name.items() if state["sequence_axis"] is not None} == {
        "cache_k_l3",
        "cache_v_l3",
    }
    assert by_name["ssm_state_l0"]["layout"] == ["1", "heads 4", "16", "16"]
    text = lines(found)
    assert "ssm_state_l0 ... ssm_state_l2 (3) f32 [1, heads 4, 16, 16] none (recurrent)" in text
    assert "0-2 recurrent 4 16 16 - 3 attention 2 16 16 -" in text


def test_thirty_layers_are_read_within_two_screens(smollm2: Path) -> None:
    found = inspected(smollm2)
    assert len(str(found).splitlines()) < 70
    assert "cache_k_l0 ... cache_k_l29 (30) f16 [1,?,3,64]" in lines(found)
    assert "0-29 attention 3 64 64 -" in lines(found)
    assert found.weights.parameters == pytest.approx(134.515e6, rel=1e-4)  # as its model card says
    assert found.weights.sizes["u4"] * 2 == found.weights.elements["u4"]


def near_miss(change: str) -> ovp.ImportedModel:
    """The graph before the relayout, with one thing about the state cache_k_l2 that the pass does not take."""
    root = Path(__file__).parent.parent / "models/recorded/after/llama-gqa/stateful-prerelayout/model.xml"
    imported = ovp.read_model(root)
    state = next(state for state in states(imported.model) if "cache_k_l2" in state.name)
    append = find_append(state)
    assert not isinstance(append, str)
    if change == "third input":
        past, rows = append.concat.input_values()
        grown = ops.concat([past, rows, rows], append.axis)
        state.assign.input(0).replace_source_output(grown.output(0))
    else:
        other = next(s for s in states(imported.model) if "cache_k_l1" in s.name)
        state.assign.input(0).replace_source_output(other.assign.input_value(0))
    imported.model.validate_nodes_and_infer_types()
    return imported


@pytest.mark.parametrize(
    ("change", "why"), [("third input", "has 3 inputs, wanted 2"), ("other state", "wanted the state's own past")]
)
def test_pattern_that_no_longer_matches_is_named(change: str, why: str) -> None:
    """O-07: five of six states are rewritten, and the report says what stopped the sixth."""
    found = inspect_model(near_miss(change))
    (miss,) = passes(found)["KVStateSeqAxis"]["near_misses"]
    assert (miss["count"], miss["node"], miss["step"]) == (1, "cache_k_l2", "append")
    assert why in miss["reason"]
    text = lines(found)
    assert "KVStateSeqAxis 5 of 6 would be rewritten near miss 1x: cache_k_l2: step 'append':" in text
    assert why in text


def test_near_misses_of_one_kind_are_one_line() -> None:
    found = inspect_model(ovp.read_model(tiny.stateful(Decoder(layers=2, layout=("bshd", "sbhd")))))
    (miss,) = passes(found)["KVStateSeqAxis"]["near_misses"]
    assert miss["count"] == 2
    assert "2 of 4 would be rewritten near miss 2x: cache_k_l1:" in lines(found)


def test_pass_that_refuses_a_model_says_so(recorded: Path) -> None:
    found = inspected(recorded / "after/gemma4-mixed/stateless/model.xml")
    entry = passes(found)["StaticTokens"]
    assert entry["rewritten"] == 0
    assert "not all is static" in entry["refused"]
    text = lines(found)
    assert "StaticTokens refused: with 1 tokens" in text
    assert "more near misses (all are in --json)" in text
    assert passes(found)["KVHeadSplit"]["refused"] is None


def test_shared_constants_count_once() -> None:
    weight = np.ones((4, 4), np.float32)
    source = ops.parameter([4], np.float32)
    one, two = (ops.constant(weight, shared_memory=True) for _ in range(2))
    half = ops.convert(ops.constant(np.ones(6, np.float16)), "f32")
    value = ops.add(ops.matmul(source, one, False, False), ops.matmul(source, one, False, True))
    model = Model([ops.result(ops.matmul(value, two, False, False)), ops.result(half)], [source])
    found = weights_of(model)
    assert found.sizes == {"f32": 64, "f16": 12}
    assert found.elements == {"f32": 16, "f16": 6}
    assert found.parameters == 16 + 6


def test_constants_of_bodies_count() -> None:
    condition = ops.parameter([], bool)
    chosen = ops.if_op(condition)
    bodies = [Model([ops.result(ops.constant(np.full(size, 2, np.float32)))], []) for size in (3, 5)]
    chosen.set_then_body(bodies[0])
    chosen.set_else_body(bodies[1])
    out = chosen.set_output(bodies[0].get_results()[0], bodies[1].get_results()[0])
    found = weights_of(Model([ops.result(out)], [condition]))
    assert (found.elements, found.parameters) == ({"f32": 8}, 8)


def test_alike_but_for_numbers() -> None:
    texts = ["node#9 has 3", "node#10 has 4", "node#11 has 12", "a [1,128]", "a [2,16]"]
    assert alike(texts, str) == [texts[:2], texts[2:3], texts[3:4], texts[4:]]


def test_runs_of_numbers() -> None:
    assert ranges([0, 1, 2, 5, 7, 6, 9]) == "0-2, 5-7, 9"
    assert ranges([]) == ""


def test_html_shows_names_as_they_are(recorded: Path) -> None:
    name = "<img src=x>&'"
    table = html_table(name, [name], [[name + "\nsecond"]])
    assert table.count("&lt;img src=x&gt;&amp;") == 3
    assert "<img" not in table
    assert "<br>second" in table
    report = ovp.PassReport("P", "state")
    report.skip(name, "append", name)
    imported = ovp.read_model(recorded / "after/llama-gqa/stateful/model.xml")
    imported.info = ovp.GraphInfo(architecture=name, layers=imported.info.layers)
    pipeline = ovp.PipelineReport(name, [report])
    for shown in (report, imported, imported.info, pipeline, inspect_model(imported)):
        markup = shown._repr_html_()
        assert "<table" in markup
        assert "&lt;img" in markup
        assert "<img" not in markup


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return captured.out if ended.value.code == 0 else captured.err


def test_names_in_brackets_are_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = ops.parameter([2], np.float32, name="[bold]in[/bold]")
    source.output(0).set_names({"[bold]in[/bold]"})
    model = Model([ops.result(ops.relu(source))], [source])
    openvino.save_model(model, tmp_path / "m.xml")
    assert "[bold]in[/bold]" in call(capsys, "inspect", tmp_path / "m.xml")
