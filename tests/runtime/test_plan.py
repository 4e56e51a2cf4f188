"""What ``ovpasses run`` compiles for a device, and what it prints with --dry-run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovpasses as ovp
from ovpasses.cli import main
from ovpasses.runtime.devices import NPU_DEFAULTS
from ovpasses.runtime.plan import chunk_size, flag, plan_run
from tests.conftest import nmse


@pytest.fixture
def imported(recorded: Path) -> ovp.ImportedModel:
    return ovp.read_model(recorded / "gguf/tiny-qwen35.gguf")


def cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize(
    ("value", "on"),
    [("1", True), ("2", True), ("0", False), ("-1", False), ("", False), (None, False), ("yes", False), (" 1 ", True)],
)
def test_flags_are_on_for_a_positive_integer(value: str | None, on: bool) -> None:
    assert flag(value) is on


@pytest.mark.parametrize(("value", "tokens"), [("64", 64), ("", 256), ("x", 256), ("-3", 256)])
def test_chunk_size(value: str, tokens: int) -> None:
    assert chunk_size({"GGML_OPENVINO_PREFILL_CHUNK_SIZE": value}) == tokens
    assert chunk_size({}) == 256


def test_a_cpu_gets_one_stateful_model(imported: ovp.ImportedModel) -> None:
    plan = plan_run(imported, environ={})
    assert (plan.device, list(plan.models)) == ("CPU", ["model"])
    assert len(plan.models["model"].model.get_variables()) == 8


def test_an_npu_gets_a_static_pair_and_its_configuration(imported: ovp.ImportedModel) -> None:
    environ = {"GGML_OPENVINO_NPU_COMPILE_CONFIG": "optimization-level=3", "GGML_OPENVINO_PREFILL_CHUNK_SIZE": "16"}
    plan = plan_run(imported, "NPU", {"NPUW_FOLD": "NO"}, context=64, environ=environ)
    assert list(plan.models) == ["prefill", "decode"]
    shapes = {name: m["inputs"]["inp_tokens"] for name, m in plan.to_dict()["models"].items()}
    assert shapes == {"prefill": "[1,1,1,16]", "decode": "[1,1,1,1]"}
    for properties in plan.properties.values():
        assert properties == {
            **NPU_DEFAULTS,
            "NPUW_FOLD": "NO",
            "NPU_COMPILATION_MODE_PARAMS": "optimization-level=3",
        }
    with pytest.raises(ovp.DeviceError, match="device NPU is not there, found CPU"):
        plan.session()


def test_forced_static_pair_on_the_cpu_gives_the_recorded_logits(imported: ovp.ImportedModel, recorded: Path) -> None:
    environ = {"GGML_OPENVINO_FORCE_STATIC": "1", "GGML_OPENVINO_PREFILL_CHUNK_SIZE": "16"}
    plan = plan_run(imported, config={"INFERENCE_PRECISION_HINT": "f32"}, context=128, environ=environ)
    session = plan.session()
    assert isinstance(session, ovp.ChunkedSession)
    reference = np.load(recorded / "logits/qwen35.npz")
    assert nmse(session.prefill(reference["tokens"][:76]), reference["logits"][75:76]) <= 1e-5
    for token, wanted in zip(reference["tokens"][76:], reference["logits"][76:], strict=True):
        assert nmse(session.decode(int(token)), wanted[None]) <= 1e-5


@pytest.mark.needs_2026_4
def test_npu_without_one_ends_in_one_line(capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.arange(4))
    model = recorded / "gguf/tiny-llama-gqa.gguf"
    code, _, err = cli(capsys, "run", model, "--device", "NPU", "--tokens", tmp_path / "t.npy")
    assert code == 2
    assert err.strip() == "ovpasses: device NPU is not there, found CPU; choose one of them"


@pytest.mark.needs_2026_4
def test_dry_run_prints_what_would_be_compiled(
    capsys: pytest.CaptureFixture[str], recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGML_OPENVINO_NPU_COMPILE_CONFIG", "optimization-level=3")
    model = recorded / "gguf/tiny-llama-gqa.gguf"
    code, out, _ = cli(capsys, "run", model, "--device", "NPU", "--dry-run", "--context", 64, "--json")
    found: dict[str, Any] = json.loads(out)
    assert code == 0
    assert found["device"] == "NPU"
    assert found["models"]["prefill"]["inputs"]["cache_k_l0"] == "[1,64,3,16]"
    assert found["models"]["decode"]["properties"]["NPU_COMPILATION_MODE_PARAMS"] == "optimization-level=3"
    code, out, _ = cli(capsys, "run", model, "--device", "NPU", "--dry-run", "--context", 64)
    assert code == 0
    assert "NPU_COMPILATION_MODE_PARAMS = optimization-level=3" in out
    assert "device NPU" in out


def test_passes_of_the_caller_are_run_as_they_are(imported: ovp.ImportedModel) -> None:
    pipeline = ovp.Pipeline([ovp.MakeKVStateful()])
    plan = plan_run(imported, "GPU", pipeline=pipeline, environ={})
    assert list(plan.models) == ["model"]
    with pytest.raises(ovp.DeviceError, match=r"input inp_out_ids .* is dynamic; an NPU takes static shapes only"):
        plan_run(imported, "NPU", pipeline=pipeline, environ={})


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("npu", "device npu is not known, wanted one of CPU, GPU, NPU"),
        ("HETERO:NPU,CPU", "has an NPU among others"),
        ("AUTO:GPU,NPU.0", "has an NPU among others"),
    ],
)
def test_names_that_no_device_has(imported: ovp.ImportedModel, device: str, words: str) -> None:
    with pytest.raises(ovp.DeviceError, match=words):
        plan_run(imported, device, environ={})


def test_a_chunk_is_no_longer_than_the_context(imported: ovp.ImportedModel) -> None:
    plan = plan_run(imported, "NPU", environ={"GGML_OPENVINO_PREFILL_CHUNK_SIZE": "4096"})
    shapes = plan.to_dict()["models"]["prefill"]["inputs"]
    assert shapes["inp_tokens"] == "[1,1,1,1024]"


def test_half_of_a_static_pair_is_no_pair(recorded: Path) -> None:
    half = ovp.read_model(recorded / "before/qwen35/static/model_prefill.xml")
    with pytest.raises(ovp.RewriteError, match="the model is the prefill half of a static pair"):
        plan_run(half, "NPU", environ={})


@pytest.mark.needs_2026_4
def test_convert_takes_the_sizes_of_the_static_presets(
    capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path
) -> None:
    model = recorded / "gguf/tiny-llama-gqa.gguf"
    options = ("--preset", "static-prefill", "--chunk", 8, "--context", 32)
    code, _, err = cli(capsys, "convert", model, "-o", tmp_path / "p.xml", *options)
    assert code == 0, err
    shapes = {p.get_any_name(): str(p.get_partial_shape()) for p in ovp.read_model(tmp_path / "p.xml").model.inputs}
    assert shapes["inp_tokens"] == "[1,1,1,8]"
    assert shapes["cache_k_l0"] == "[1,32,3,16]"
    code, _, err = cli(capsys, "convert", model, "-o", tmp_path / "s.xml", "--chunk", 8)
    assert code == 2
    assert "preset stateful has no option 'chunk'" in err
