"""Pictures of what a pass changed: the right nodes, marked, with shapes, and nothing of the caller's touched."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from openvino import Model

import ovpasses as ovp
from ovpasses import visualize
from ovpasses._openvino import ops as ops_of
from ovpasses.equivalence import compare_structure, structure_digest
from ovpasses.visualize import PictureError
from ovpasses.visualize._draw import new_graph
from ovpasses.visualize._engine import _draw, draw_svg
from ovpasses.visualize._frames import MARGIN, frames
from tests.visualize.svg import MINUS, drawn, edges, nodes, ops, text

pytestmark = pytest.mark.usefixtures("drawn_by_package")


@pytest.fixture
def prerelayout(recorded: Path) -> ovp.ImportedModel:
    return ovp.read_model(recorded / "after/llama-gqa/stateful-prerelayout/model.xml")


def test_sequence_axis_before_and_after(prerelayout: ovp.ImportedModel, recorded: Path) -> None:
    picture = visualize.rewrite(prerelayout, ovp.KVStateSeqAxis())
    both = Counter({"ReadValue": 1, "Concat": 1})
    assert ops(picture, "before", "changed") == ops(picture, "after", "changed") == both
    assert ops(picture, "before", "removed") == ops(picture, "after", "new") == Counter({"Transpose": 1})
    assert not ops(picture, "before", "new")
    assert not ops(picture, "after", "removed")
    assert {node.op for node in nodes(picture, "after") if node.look == "boundary"} == {"Reshape", "Unsqueeze"}
    assert ops(picture, "after", "kept") == Counter({"Assign": 1})
    assert {edge.lines[0] for edge in edges(picture, "before") if edge.look == "changed"} == {"f16 [1,?,3,16]"}
    assert {edge.lines[0] for edge in edges(picture, "after") if edge.look == "changed"} == {"f16 [1,3,?,16]"}
    concats = {side: next(n for n in nodes(picture, side) if n.op == "Concat") for side in ("before", "after")}
    assert concats["before"].lines[0] == "~ Concat axis 1"
    assert concats["after"].lines[0] == "~ Concat axis 2"
    assert "order [0,2,1,3]" in text(picture)
    assert str(recorded.parent) not in picture.svg
    assert "KVStateSeqAxis: cache_k_l0" in text(picture)


def test_looks_are_told_apart_without_colour(prerelayout: ovp.ImportedModel) -> None:
    picture = visualize.rewrite(prerelayout, "kv-state-seq-axis")
    marks = {node.look: node.lines[0][:2] for node in nodes(picture)}
    assert marks["removed"] == MINUS + " "
    assert marks["new"] == "+ "
    assert marks["changed"] == "~ "
    for entry in (MINUS + " removed", "+ new", "~ changed in place", "dashed: more of the graph"):
        assert entry in text(picture)


def test_report_of_a_run_is_pictured(prerelayout: ovp.ImportedModel) -> None:
    alone = visualize.rewrite(prerelayout, "KVStateSeqAxis")
    pipeline = ovp.Pipeline([ovp.KVHeadSplit(), ovp.KVStateSeqAxis(), ovp.BeamReorder()])
    report = pipeline.run(prerelayout)
    reports = [step.report for step in pipeline.passes]
    told, digest = copy.deepcopy(report.to_dict()), structure_digest(prerelayout.model)
    picture = visualize.rewrite(report, "KVStateSeqAxis")
    assert ops(picture, "after", "new") == ops(alone, "after", "new")
    assert ops(picture, "before", "boundary") == ops(alone, "before", "boundary")
    assert ops(visualize.rewrite(report, ovp.BeamReorder), "after", "new") == Counter({"Gather": 1, "Parameter": 1})
    assert report.to_dict() == told
    assert [step.report for step in pipeline.passes] == reports
    assert structure_digest(prerelayout.model) == digest


def test_model_is_not_changed(prerelayout: ovp.ImportedModel) -> None:
    untouched = prerelayout.model.clone()
    visualize.rewrite(prerelayout, ovp.KVStateSeqAxis)
    assert compare_structure(prerelayout.model, untouched).same


def test_chosen_site(prerelayout: ovp.ImportedModel) -> None:
    picture = visualize.rewrite(prerelayout, "KVStateSeqAxis", site="cache_v_l1")
    assert "cache_v_l1" in text(picture)
    assert "cache_k_l0" not in text(picture)


def test_head_split(recorded: Path) -> None:
    picture = visualize.rewrite(ovp.read_model(recorded / "before/gemma4-mixed/stateless/model.xml"), ovp.KVHeadSplit)
    assert ops(picture, "before", "removed") == Counter({"Reshape": 1})
    assert ops(picture, "after", "changed") == Counter({"Parameter": 1, "Reshape": 1, "ScatterUpdate": 1})
    assert "f16 [1,1,?,64]" in {edge.lines[0] for edge in edges(picture, "before")}
    assert "f16 [1,?,4,16]" in {edge.lines[0] for edge in edges(picture, "after")}


@pytest.mark.needs_2026_4
def test_delta_net_gate_shows_one_layer(recorded: Path) -> None:
    """The mask is shared by all layers: those that are not pictured are counted."""
    imported = ovp.read_model(recorded / "gguf/tiny-qwen35.gguf")
    report = ovp.Pipeline.preset("static-prefill", chunk=16, context=128).run(imported)
    picture = visualize.rewrite(report, "ChunkValidLen")
    assert ops(picture, "after", "new") == Counter(
        {"Parameter": 1, "Less": 1, "Convert": 1, "Unsqueeze": 1, "Multiply": 2}
    )
    assert ops(picture, "after", "boundary")["GatedDeltaNet"] == 1
    assert "+4 more readers" in text(picture)


@pytest.mark.needs_2026_4
def test_loop_is_one_node_with_its_bodys_name(recorded: Path) -> None:
    picture = visualize.rewrite(ovp.read_model(recorded / "gguf/tiny-qwen35.gguf"), "LowerGatedDeltaNet")
    (loop,) = [node for node in nodes(picture, "after") if node.op == "Loop"]
    assert loop.look == "new"
    assert loop.lines[0] == "+ Loop of gated_delta_rule"


def test_one_place_of_many_and_what_feeds_all_of_them(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "after/llama-gqa/stateful/model.xml")
    picture = visualize.rewrite(imported, ovp.BeamReorder, site="cache_v_l1")
    assert ops(picture, "after", "new") == Counter({"Parameter": 1, "Gather": 1})
    assert "+5 more readers" in text(picture)


def test_difference_of_two_graphs(recorded: Path, prerelayout: ovp.ImportedModel) -> None:
    after = ovp.read_model(recorded / "after/llama-gqa/stateful/model.xml")
    picture = visualize.difference(prerelayout, after, site="cache_k_l1cache_k_l1")
    assert ops(picture, "before", "removed") == ops(picture, "after", "new") == Counter({"Transpose": 1})
    assert ops(visualize.difference(prerelayout, after), "after", "new") == Counter({"Transpose": 1})
    with pytest.raises(PictureError, match="no node differs there"):
        visualize.difference(after, after.model.clone())
    with pytest.raises(PictureError, match="closest are"):
        visualize.difference(prerelayout, after, site="cache_k_l77")


def adds(value: float) -> Model:
    source = ops_of.parameter([2], np.float32, name="source")
    added = ops_of.add(source, ops_of.constant(np.full(2, value, np.float32)))
    added.set_friendly_name("added")
    result = ops_of.result(added)
    result.set_friendly_name("result")
    return Model([result], [source])


def test_constant_that_changed_is_a_change_of_its_reader() -> None:
    picture = visualize.difference(adds(1), adds(2))
    assert ops(picture, "before", "changed") == ops(picture, "after", "changed") == Counter({"Add": 1})
    assert {"input 1 [1,1]", "input 1 [2,2]"} <= set(text(picture).splitlines())
    with pytest.raises(PictureError, match="no node differs"):
        visualize.difference(adds(1), adds(1))


def refusal(report: ovp.PipelineReport | ovp.ImportedModel, what: str, site: str | None = None) -> str:
    with pytest.raises(ovp.OvpassesError) as raised:
        visualize.rewrite(report, what, site=site)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_refusals_say_why(prerelayout: ovp.ImportedModel) -> None:
    assert "rewrote nothing" in refusal(prerelayout, "MakeKVStateful")
    assert "no cache input" in refusal(prerelayout, "MakeKVStateful")
    assert "did not rewrite 'cache_k_l9'; it rewrote cache_k_l0" in refusal(prerelayout, "KVStateSeqAxis", "cache_k_l9")
    assert "pass 'Nothing' is not known" in refusal(prerelayout, "Nothing")
    report = ovp.Pipeline([ovp.KVStateSeqAxis()]).run(prerelayout, keep_graph=False)
    assert "keep_graph=True" in refusal(report, "KVStateSeqAxis")
    assert "it ran KVStateSeqAxis" in refusal(report, "BeamReorder")


def test_report_stays_plain_data(prerelayout: ovp.ImportedModel) -> None:
    report = ovp.Pipeline.preset("stateful").run(prerelayout)
    copied = pickle.loads(pickle.dumps(report))
    assert copied.to_dict() == report.to_dict()
    assert set(report.to_dict()) == {"name", "passes"}
    assert copied.start is None
    assert report.start is not None


def test_picture_of_the_readme_is_what_the_pass_does(prerelayout: ovp.ImportedModel) -> None:
    kept = (Path(visualize.__file__).parent / "kv_state_seq_axis.svg").read_text()
    now = visualize.rewrite(prerelayout, "KVStateSeqAxis").svg
    assert drawn(kept, "node") == drawn(now, "node")
    assert drawn(kept, "edge") == drawn(now, "edge")


EVERY = [
    ("after/llama-gqa/stateful-prerelayout/model.xml", "KVStateSeqAxis"),
    ("after/llama-gqa/stateful-prerelayout/model.xml", "BeamReorder"),
    ("before/gemma4-mixed/stateless/model.xml", "KVHeadSplit"),
    ("gguf/tiny-qwen35.gguf", "MakeKVStateful"),
    ("gguf/tiny-qwen35.gguf", "LowerGatedDeltaNet"),
    ("before/qwen35/stateless/model.xml", "ChunkValidLen"),
]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        pytest.param(*one, marks=pytest.mark.needs_2026_4 if "gguf" in one[0] or "qwen35" in one[0] else ())
        for one in EVERY
    ],
)
def test_labels_stay_inside_their_frames(model: str, name: str, recorded: Path) -> None:
    picture = visualize.rewrite(ovp.read_model(recorded / model), name)
    found = list(frames(picture.svg))
    assert {frame.name for frame in found} == {"before", "after"}
    assert all(frame.labels and frame.overhang == 0 for frame in found)


def test_a_label_that_stands_out_gets_room() -> None:
    graph = new_graph()
    with graph.subgraph(name="cluster_after") as part:
        part.attr(margin=str(MARGIN))
        for i, j in ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4)):  # the last one goes round the others
            part.edge(f"after{i}", f"after{j}", label=" f32 [1,4,1..,16] ")
    (tight,), (roomy,) = (list(frames(svg)) for svg in (_draw(graph.source), draw_svg(graph.source)))
    assert tight.overhang > 10
    assert len(roomy.labels) == 5
    assert roomy.overhang == 0


@pytest.mark.needs_2026_4
def test_a_picture_is_of_one_place(recorded: Path) -> None:
    """All share the new input; what else reads it is of other places."""
    model = ovp.read_model(recorded / "before/qwen35/stateless/model.xml")
    net = visualize.rewrite(model, "ChunkValidLen", site="GatedDeltaNet_429")
    window = visualize.rewrite(model, "ChunkValidLen", site="cache_r_l1#1140")
    assert ops(net, "after", "new")["Multiply"] == 2
    assert not ops(net, "before", "removed")
    assert ops(window, "after", "new")["Gather"] == ops(window, "before", "removed")["Slice"] == 1
    assert "+3 more readers" in text(net)
