"""Three formats, and what is read off them."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import onnx
import openvino
import pytest
from onnx import TensorProto, helper
from openvino import Model, PartialShape, Tensor, Type

import ovpasses as ovp
from models import tiny_graphs as tiny
from models.tiny_gguf import write_llama
from ovpasses._openvino import Parameter, ops
from ovpasses.export import save_ir
from ovpasses.importers.graph_info import info_from_graph
from ovpasses.importers.internal_ops import placeholders


def heads(info: ovp.GraphInfo) -> list[int | None]:
    return [layer.n_heads_kv for layer in info.layers]


def test_gguf_with_mixed_heads_and_windows(recorded: Path) -> None:
    info = ovp.read_model(recorded / "gguf/tiny-gemma4-mixed.gguf").info
    assert info.architecture == "gemma4"
    assert heads(info) == [4, 4, 4, 4, 4, 1]
    assert [layer.key_size for layer in info.layers] == [16, 16, 16, 16, 16, 32]
    assert [layer.value_size for layer in info.layers] == [16, 16, 16, 16, 16, 32]
    assert [layer.window for layer in info.layers] == [64, 64, 64, 64, 64, None]
    assert (info.position_planes, info.n_vocab, info.context_length) == (1, 320, 2048)
    assert info.contradictions == ()


def test_gguf_with_recurrent_layers_and_mrope(recorded: Path) -> None:
    info = ovp.read_model(recorded / "gguf/tiny-qwen35.gguf").info
    assert [layer.kind for layer in info.layers] == ["recurrent", "recurrent", "recurrent", "attention"]
    assert info.position_planes == 4
    assert info.layers[3] == ovp.LayerInfo(3, "attention", 2, 16, 16, None)


def test_gguf_with_one_window_in_two_layers(recorded: Path) -> None:
    info = ovp.read_model(recorded / "families/gemma2-dense.gguf").info  # soft-capped: no SDPA in its graph
    assert [layer.window for layer in info.layers] == [32, None]


def test_window_without_a_pattern_in_the_file(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real gemma2 files have a window and no pattern: every other layer slides, and the mask is there to be read."""
    from ovpasses.importers import gguf as importer

    read = importer._read_metadata
    key = "gemma2.attention.sliding_window_pattern"
    monkeypatch.setattr(importer, "_read_metadata", lambda p: {k: v for k, v in read(p).items() if k != key})
    imported = ovp.read_model(recorded / "families/gemma2-dense.gguf")
    assert [layer.window for layer in imported.info.layers] == [32, None]
    assert info_from_graph(imported.model, window=32).windows == [32]


@pytest.mark.parametrize(
    ("architecture", "pattern", "sliding"),
    [
        ("gemma3", None, [1, 1, 1, 1, 1, 0, 1, 1]),
        ("x", 4, [1, 1, 1, 0, 1, 1, 1, 0]),
        ("x", 0, [1] * 8),
        ("x", None, [0] * 8),
    ],
)
def test_period_of_sliding_layers(architecture: str, pattern: int | None, sliding: list[int]) -> None:
    from ovpasses.importers.gguf import info_from_metadata

    keys = {"block_count": 8, "attention.head_count": 2, "embedding_length": 16, "attention.sliding_window": 32}
    metadata = {"general.architecture": architecture, **{f"{architecture}.{k}": v for k, v in keys.items()}}
    metadata |= {} if pattern is None else {f"{architecture}.attention.sliding_window_pattern": pattern}
    found = info_from_metadata(metadata)
    assert [layer.window for layer in found.layers] == [32 if s else None for s in sliding]


def test_real_gguf(smollm2: Path) -> None:
    info = ovp.read_model(smollm2).info
    assert len(info.layers) == 30
    assert set(info.layers[7:8]) == {ovp.LayerInfo(7, "attention", 3, 64, 64, None)}
    assert (info.n_vocab, info.context_length) == (49152, 8192)


def test_contradicting_sources_are_reported_with_both_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ovpasses.importers import gguf as importer

    path = write_llama(tmp_path / "m.gguf", heads_kv=2)
    read = importer._read_metadata
    monkeypatch.setattr(importer, "_read_metadata", lambda p: {**read(p), "llama.attention.head_count_kv": 8})
    info = ovp.read_model(path).info
    assert heads(info) == [2]
    assert info.contradictions == ("layer 0 n_heads_kv: 2 in the graph, 8 in the GGUF metadata; the graph's is used",)


def test_ir_alone(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "after/gemma4-mixed/stateful/model.xml")
    assert heads(imported.info) == [4, 4, 4, 4, 4, 1]
    assert imported.source is not None


DUMPS = {
    "llama-gqa": ([3] * 3, [16] * 3),
    "gemma4-mixed": ([4] * 5 + [1], [16] * 5 + [32]),
}


@pytest.mark.parametrize("age", ["before", "after"])
@pytest.mark.parametrize("name", DUMPS)
def test_every_dump_alone_in_an_empty_folder(recorded: Path, tmp_path: Path, age: str, name: str) -> None:
    found = sorted((recorded / age / name).glob("*/*.xml"))
    assert found
    for number, source in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        for suffix in (".xml", ".bin"):
            shutil.copy(source.with_suffix(suffix), folder)
        info = ovp.read_model(folder / source.name).info
        wanted_heads, sizes = DUMPS[name]
        assert heads(info) == wanted_heads, source
        assert [layer.key_size for layer in info.layers] == sizes, source
        assert [layer.value_size for layer in info.layers] == sizes, source
        assert {layer.kind for layer in info.layers} == {"attention"}


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("age", ["before", "after"])
def test_every_recurrent_dump_alone_in_an_empty_folder(recorded: Path, tmp_path: Path, age: str) -> None:
    for number, source in enumerate(sorted((recorded / age / "qwen35").glob("*/*.xml"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        for suffix in (".xml", ".bin"):
            shutil.copy(source.with_suffix(suffix), folder)
        info = ovp.read_model(folder / source.name).info
        assert [layer.kind for layer in info.layers] == ["recurrent"] * 3 + ["attention"], source
        assert info.layers[3] == ovp.LayerInfo(3, "attention", 2, 16, 16, None), source
        assert info.position_planes == 4, source


@pytest.mark.parametrize("age", ["before", "after"])
def test_ggml_graph_beside_a_dump_agrees_with_it(recorded: Path, age: str) -> None:
    for source in sorted((recorded / age).glob("*/*/cgraph_ov.txt")):
        model = next(path for path in sorted(source.parent.glob("*.xml")))
        if "slots" in str(source) or "qwen35" in str(source):
            continue
        from ovpasses.importers.cgraph import info_from_cgraph

        imported = ovp.read_model(model).info
        assert heads(info_from_cgraph(source)) == heads(imported), source
        assert imported.contradictions == ()


def test_ggml_graph_that_contradicts_is_reported(recorded: Path, tmp_path: Path) -> None:
    source = recorded / "after/llama-gqa/stateful"
    for name in ("model.xml", "model.bin"):
        shutil.copy(source / name, tmp_path)
    text = (source / "cgraph_ov.txt").read_text().replace("[    16,     3,", "[    24,     2,")
    (tmp_path / "cgraph_ov.txt").write_text(text)
    info = ovp.read_model(tmp_path / "model.xml").info
    assert heads(info) == [3, 3, 3]
    assert (
        "layer 0 n_heads_kv: 3 in the graph, 2 in cgraph_ov.txt beside it; the graph's is used" in info.contradictions
    )


@pytest.mark.parametrize("age", ["before", "after"])
def test_dump_with_an_internal_op_is_read_and_rewritten(recorded: Path, age: str) -> None:
    imported = ovp.read_model(recorded / age / "qwen35/stateless/model.xml")
    held = placeholders(imported.model)
    assert [op.get_type_name() for op in held] == ["GatedDeltaNet"] * 3
    assert str(held[0].get_output_partial_shape(1)) == str(held[0].get_input_partial_shape(3))
    assert held[0].attributes["k_l2_norm_eps"] == pytest.approx(1e-6)
    assert len(imported.model.clone().get_ops()) == len(imported.model.get_ops())


def test_onnx(tmp_path: Path) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    model = ovp.read_model(tmp_path / "m.onnx").model
    assert [str(port.get_partial_shape()) for port in model.inputs] == ["[?,4]"]
    assert model.output(0).get_any_name() == "y"


def test_model_in_memory_and_info_of_the_caller(recorded: Path) -> None:
    model = openvino.Core().read_model(recorded / "after/llama-gqa/stateful/model.xml")
    imported = ovp.read_model(model)
    assert imported.model is model
    assert heads(imported.info) == [3, 3, 3]
    mine = ovp.GraphInfo(architecture="mine")
    assert ovp.read_model(model, info=mine).info is mine


def test_info_survives_saving(recorded: Path, tmp_path: Path) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-gemma4-mixed.gguf")
    ovp.Pipeline.preset("stateful").run(imported)
    save_ir(imported, tmp_path / "m.xml")
    again = ovp.read_model(tmp_path / "m.xml")
    assert again.info == imported.info
    assert info_from_graph(again.model).layers[0].window is None  # the graph alone does not say it


def test_metadata_reader_agrees_with_the_package(smollm2: Path) -> None:
    import gguf

    from ovpasses.importers.gguf import _read_metadata

    found = _read_metadata(smollm2)
    for name, entry in gguf.GGUFReader(smollm2).fields.items():
        wanted = entry.contents()
        if isinstance(wanted, list) and wanted and isinstance(wanted[0], str):
            assert found[f"{name}.count"] == len(wanted)
        elif isinstance(wanted, list):
            assert np.array_equal(found[name], wanted)
        else:
            assert found[name] == wanted


def test_a_model_in_memory_gets_the_masks_of_the_callers_windows(recorded: Path) -> None:
    info = ovp.read_model(recorded / "gguf/tiny-gemma4-mixed.gguf").info
    path = recorded / "after/gemma4-mixed/stateful/model.xml"
    in_memory = ovp.read_model(openvino.Core().read_model(path), info=info)
    assert "self_kq_mask_swa" in {name for port in in_memory.model.inputs for name in port.get_names()}
    assert ovp.compare_structure(in_memory.model, ovp.read_model(path, info=info).model)


def test_a_text_of_a_gguf_that_is_no_utf8_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(gguf.GGUFWriter):
        def add_context_length(self, length: int) -> None:
            super().add_context_length(length)
            self.add_name("NAMED")

    monkeypatch.setattr(gguf, "GGUFWriter", Named)
    path = write_llama(tmp_path / "m.gguf", heads=2, heads_kv=2, size=16, layers=1)
    path.write_bytes(path.read_bytes().replace(b"NAMED", b"NA\xffED"))
    assert ovp.read_model(path).info.architecture == "llama"


@pytest.mark.parametrize(("name", "rank"), [("cache_s_l0", 2), ("past_key_values.0.key", 3)])
def test_a_cache_of_another_rank_is_read(name: str, rank: int) -> None:
    past = tiny.parameter(name, [1, 16, 1][:rank], "f32")
    turned = ops.transpose(ops.reshape(past, tiny.int_constant([1, 2, 2, 4]), False), tiny.int_constant([0, 2, 1, 3]))
    assert ovp.read_model(Model([tiny.result(turned.output(0), "y")], [past])).info.layers is not None


def test_positions_of_an_unknown_rank_are_read() -> None:
    given = Parameter(Type.i32, PartialShape.dynamic())
    given.output(0).get_tensor().set_names({"inp_pos"})
    planes = ops.reshape(given, tiny.int_constant([1, 1, 4, -1]), False)
    assert ovp.read_model(Model([tiny.result(planes.output(0), "y")], [given])).info.position_planes == 1


def test_an_offset_that_is_no_constants_is_no_weight(tmp_path: Path) -> None:
    given = tiny.parameter("x", [2], "i64")
    boxes = ops.prior_box(given, tiny.int_constant([32, 32]), {"min_size": [1.0], "offset": 0.5, "clip": True})
    openvino.save_model(Model([tiny.result(boxes.output(0), "y")], [given]), tmp_path / "m.xml")
    assert 'offset="0.5"' in (tmp_path / "m.xml").read_text()
    assert len(ovp.read_model(tmp_path / "m.xml").model.inputs) == 1


def test_a_name_that_no_disk_takes_is_one_line() -> None:
    with pytest.raises(ovp.ModelReadError, match="cannot be read: File name too long"):
        ovp.read_model("x" * 300 + ".gguf")


def test_stand_ins_are_found_in_bodies_and_compute_nothing(recorded: Path) -> None:
    dump = ovp.read_model(recorded / "after/qwen35/stateless/model.xml").model
    net = placeholders(dump)[0]
    inner = [Parameter(net.get_input_element_type(i), net.get_input_partial_shape(i)) for i in range(6)]
    stand_in = type(net)([p.output(0) for p in inner], **net.attributes)
    result = ops.result(stand_in.output(0))
    outer = [Parameter(p.get_element_type(), p.get_partial_shape()) for p in inner]
    flag = Parameter(Type.boolean, PartialShape([]))
    node = ops.if_op(flag.output(0))
    node.set_then_body(Model([result], inner))
    other = Parameter(inner[2].get_element_type(), inner[2].get_partial_shape())
    same = ops.result(other)
    node.set_else_body(Model([same], [other]))
    for number, value in enumerate(outer):
        node.set_input(value.output(0), inner[number], other if number == 2 else None)
    model = Model([ops.result(node.set_output(result, same))], [flag, *outer])
    assert len(placeholders(model)) == 1
    with pytest.raises(ovp.DeviceError, match="the internal op GatedDeltaNet of this IR cannot be computed"):
        ovp.compile_model(model, "CPU")
    with pytest.raises(ovp.RewriteError, match="cannot read back the internal op GatedDeltaNet"):
        save_ir(ovp.ImportedModel(model), Path("never.xml"))
    values = [Tensor(np.ones([1, 1, 1, 1][: p.get_partial_shape().rank.get_length()], np.float32)) for p in inner]
    assert not stand_in.evaluate([Tensor(np.zeros([1, 1, 1, 1], np.float32))] * 2, values)


@pytest.mark.parametrize(("name", "told"), [("gemma4-mixed", True), ("llama-gqa", False), ("qwen35", False)])
def test_a_window_that_nothing_tells_is_warned_of(
    recorded: Path, name: str, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = recorded / f"after/{name}/stateless/model.xml"
    ovp.read_model(path)
    assert ("layers differ in their heads" in caplog.text) == told
    caplog.clear()
    ovp.read_model(path, info=ovp.read_model(recorded / f"gguf/tiny-{name}.gguf").info)
    assert not caplog.text
