"""Bad input through the command line: one line on stderr that says what is wrong, exit 2, no traceback, no signal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.tiny_gguf import write_llama

RUN = ("run", "-n", "1")
IR = "after/llama-gqa/stateful/model.xml"


def ovpasses(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ovpasses.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def refused(*arguments: object) -> str:
    """Run, expect a refusal in form, return its line."""
    done = ovpasses(*arguments)
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("ovpasses: ")
    return lines[0]


@pytest.fixture
def tokens(tmp_path: Path) -> Callable[..., Path]:
    def write(*ids: float, dtype: str = "int64") -> Path:
        np.save(tmp_path / "tokens.npy", np.array(ids, dtype=dtype))
        return tmp_path / "tokens.npy"

    return write


def test_missing_file(tmp_path: Path, tokens: Callable[..., Path]) -> None:
    line = refused(*RUN, tmp_path / "none.gguf", "--tokens", tokens(1))
    assert "none.gguf: is not there, wanted a .gguf, .xml, .onnx file" in line


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    assert "is a folder" in refused("inspect", tmp_path)


def test_unknown_suffix(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"x")
    assert "suffix .pt is not known" in refused("inspect", tmp_path / "model.pt")


@pytest.mark.parametrize("kept", [3, 20, 400, 5000, 60_000, 1_032_470])
def test_truncated_gguf(tmp_path: Path, recorded: Path, kept: int) -> None:
    whole = (recorded / "gguf" / "tiny-llama-gqa.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:kept])
    line = refused("inspect", tmp_path / "cut.gguf")
    assert "cut.gguf" in line
    assert "truncated" in line or kept < 4


def test_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>not found</html>")
    assert "does not start with GGUF" in refused("inspect", tmp_path / "page.gguf")


@pytest.mark.needs_2026_4
def test_unknown_architecture(tmp_path: Path) -> None:
    write_llama(tmp_path / "odd.gguf", architecture="nosuchmodel")
    assert "architecture 'nosuchmodel'" in refused("inspect", tmp_path / "odd.gguf")


def test_ir_without_weights(tmp_path: Path, recorded: Path) -> None:
    shutil.copy(recorded / "after/llama-gqa/stateful/model.xml", tmp_path)
    assert "its weights are missing, wanted model.bin beside it" in refused("inspect", tmp_path / "model.xml")


@pytest.mark.parametrize("kept", [0, 1000, 500_000])
def test_ir_with_truncated_weights(tmp_path: Path, recorded: Path, kept: int) -> None:
    shutil.copy(recorded / "after/llama-gqa/stateful/model.xml", tmp_path)
    weights = (recorded / "after/llama-gqa/stateful/model.bin").read_bytes()
    (tmp_path / "model.bin").write_bytes(weights[:kept])
    assert "model.bin" in refused("inspect", tmp_path / "model.xml")


def test_damaged_xml(tmp_path: Path, recorded: Path) -> None:
    xml = (recorded / "after/llama-gqa/stateful/model.xml").read_text()
    (tmp_path / "model.xml").write_text(xml[: len(xml) // 2])
    (tmp_path / "model.bin").write_bytes(b"")
    assert "the XML is damaged" in refused("inspect", tmp_path / "model.xml")


def test_xml_that_is_no_ir(tmp_path: Path) -> None:
    (tmp_path / "page.xml").write_text("<html><body/></html>")
    assert "no IR" in refused("inspect", tmp_path / "page.xml")


def test_unknown_extension_op(tmp_path: Path, recorded: Path) -> None:
    source = recorded / "after/qwen35/stateless"
    xml = (source / "model.xml").read_text().replace('type="GatedDeltaNet"', 'type="FluxCapacitor"')
    (tmp_path / "model.xml").write_text(xml)
    shutil.copy(source / "model.bin", tmp_path)
    line = refused("inspect", tmp_path / "model.xml")
    assert "unknown extension op FluxCapacitor" in line
    assert "GatedDeltaNet_338" in line  # the layer's own name


def test_onnx_with_missing_external_file(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], np.eye(2, dtype=np.float32).tobytes(), raw=True)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy"]
    graph = helper.make_graph([node], "g", value[:1], value[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert ovpasses("inspect", tmp_path / "m.onnx").returncode == 0
    (tmp_path / "weights.bin").unlink()
    assert "weights.bin" in refused("inspect", tmp_path / "m.onnx")


def test_damaged_onnx(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07garbage" * 10)
    assert "cannot read this ONNX model" in refused("inspect", tmp_path / "m.onnx")


def test_empty_prompt(tmp_path: Path, recorded: Path, tokens: Callable[..., Path]) -> None:
    line = refused(*RUN, recorded / IR, "--tokens", tokens())
    assert "the prompt is empty" in line


def test_empty_text(smollm2: Path) -> None:
    assert "the prompt is empty" in refused(*RUN, smollm2, "--prompt", "")


@pytest.mark.parametrize("token", [320, -1, 2**40])
def test_token_outside_the_vocabulary(recorded: Path, tokens: Callable[..., Path], token: int) -> None:
    line = refused(*RUN, recorded / IR, "--tokens", tokens(1, token))
    assert f"token id {token} is outside the vocabulary, wanted 0 to 319" in line


def test_tokens_that_are_no_integers(recorded: Path, tokens: Callable[..., Path]) -> None:
    line = refused(*RUN, recorded / IR, "--tokens", tokens(1.5, dtype="float32"))
    assert "holds float32, wanted integers" in line


@pytest.mark.needs_2026_4
def test_prompt_past_the_context(tmp_path: Path, tokens: Callable[..., Path]) -> None:
    model = write_llama(tmp_path / "m.gguf", context=32)
    line = refused(*RUN, model, "--tokens", tokens(*[1] * 33))
    assert "33 tokens at position 0 go past the model's context of 32 tokens" in line


@pytest.mark.needs_2026_4
def test_generation_past_the_context(tmp_path: Path, tokens: Callable[..., Path]) -> None:
    model = write_llama(tmp_path / "m.gguf", context=32)
    line = refused("run", model, "--tokens", tokens(*[1] * 30), "-n", "9")
    assert "30 prompt tokens and 9 to generate" in line


def test_text_for_a_model_without_tokenizer(recorded: Path) -> None:
    line = refused(*RUN, recorded / "after/llama-gqa/stateful/model.xml", "--prompt", "x")
    assert "only a GGUF carries a tokenizer" in line


@pytest.mark.needs_2026_4
def test_model_with_an_internal_op_is_refused_not_crashed(recorded: Path, tokens: Callable[..., Path]) -> None:
    dump = recorded / "after/qwen35/stateless/model.xml"
    line = refused(*RUN, dump, "--tokens", tokens(1), "--pass", "BeamReorder")
    assert "GatedDeltaNet_338" in line
    assert "internal op GatedDeltaNet" in line


def test_absent_device(recorded: Path, tokens: Callable[..., Path]) -> None:
    line = refused(*RUN, recorded / IR, "--tokens", tokens(1), "--device", "TPU")
    assert "device TPU is not there, found CPU" in line


def test_unknown_property(recorded: Path, tokens: Callable[..., Path]) -> None:
    model = recorded / IR
    assert "NO_SUCH" in refused(*RUN, model, "--tokens", tokens(1), "--config", "NO_SUCH=1")
    assert "wanted KEY=VALUE" in refused(*RUN, model, "--tokens", tokens(1), "--config", "NO_SUCH")


def test_unknown_preset_and_pass(recorded: Path, tmp_path: Path) -> None:
    model = recorded / IR
    assert "preset 'fast' is not known" in refused("convert", model, "-o", tmp_path / "o.xml", "--preset", "fast")
    assert "pass 'Nope' is not known" in refused("convert", model, "-o", tmp_path / "o.xml", "--pass", "Nope")


def test_output_that_cannot_be_written(recorded: Path, tmp_path: Path) -> None:
    model = recorded / IR
    assert "an IR ends in .xml" in refused("convert", model, "-o", tmp_path / "o.bin")
    assert "the folder" in refused("convert", model, "-o", tmp_path / "none" / "o.xml")


def test_usage_error() -> None:
    assert "Missing argument" in refused("run")
    assert "No such command" in refused("frobnicate")


def test_skipping_what_was_meant_fails_when_strict(recorded: Path, tmp_path: Path) -> None:
    dump = recorded / "after/llama-gqa/static/model_decode.xml"
    line = refused("convert", dump, "-o", tmp_path / "o.xml", "--pass", "MakeKVStateful", "--strict")
    assert "MakeKVStateful" in line
    assert "cache_k_l0" in line
    assert not (tmp_path / "o.xml").exists()


def test_an_offset_that_is_no_number(tmp_path: Path, recorded: Path) -> None:
    text = (recorded / "after/llama-gqa/stateful/model.xml").read_text().replace('offset="0"', 'offset="x"', 1)
    (tmp_path / "model.xml").write_text(text)
    assert "the XML is damaged" in refused("inspect", tmp_path / "model.xml")
