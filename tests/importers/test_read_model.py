"""Three formats, and what is read off them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
from onnx import TensorProto, helper

import ovpasses as ovp
from models.tiny_gguf import write_llama
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
    from ovpasses.export import save_ir

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
