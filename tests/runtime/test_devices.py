"""Device and configuration from arguments and environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovpasses as ovp
from ovpasses.runtime.device_names import may_be_cpu
from ovpasses.runtime.devices import NPU_DEFAULTS, device_name

NPU_PARAMETERS = "NPU_COMPILATION_MODE_PARAMS"


class RecordingCore:
    """Stands in for a Core: claims devices, notes what it is asked to compile."""

    available_devices = ("CPU", "GPU.0", "GPU.1", "NPU")

    def compile_model(self, model: Any, device: str, properties: dict[str, Any]) -> dict[str, Any]:
        return {"device": device, **properties}


def compile_with(model: ovp.ImportedModel, device: str | None, config: Any = None, **environ: str) -> dict[str, Any]:
    return ovp.compile_model(model, device, config, environ=environ, core=RecordingCore())  # type: ignore[return-value, arg-type]


@pytest.fixture(scope="module")
def static(recorded: Path) -> ovp.ImportedModel:
    return ovp.read_model(recorded / "after/llama-gqa/static/model_decode.xml")


@pytest.mark.parametrize("variable", ["GGML_OPENVINO_NPU_COMPILE_CONFIG", NPU_PARAMETERS])
@pytest.mark.parametrize("value", ["optimization-level=3", "optimization-level=3 performance-hint-override=latency"])
def test_compiler_parameters_reach_an_npu_and_nothing_else(
    static: ovp.ImportedModel, variable: str, value: str
) -> None:
    assert compile_with(static, "NPU", **{variable: value})[NPU_PARAMETERS] == value
    for device in ("CPU", "GPU", "GPU.1"):
        assert NPU_PARAMETERS not in compile_with(static, device, **{variable: value})


def test_ggml_variable_wins_over_the_property_name(static: ovp.ImportedModel) -> None:
    both = {"GGML_OPENVINO_NPU_COMPILE_CONFIG": "a=1", NPU_PARAMETERS: "b=2"}
    assert compile_with(static, "NPU", **both)[NPU_PARAMETERS] == "a=1"


@pytest.mark.parametrize("environ", [{}, {"GGML_OPENVINO_NPU_COMPILE_CONFIG": ""}, {NPU_PARAMETERS: ""}])
def test_empty_means_unset(static: ovp.ImportedModel, environ: dict[str, str]) -> None:
    assert NPU_PARAMETERS not in compile_with(static, "NPU", **environ)


def test_argument_wins_over_environment(static: ovp.ImportedModel) -> None:
    found = compile_with(static, "NPU", {NPU_PARAMETERS: "mine=1"}, GGML_OPENVINO_NPU_COMPILE_CONFIG="theirs=1")
    assert found[NPU_PARAMETERS] == "mine=1"


def test_npu_gets_what_llama_cpp_sets() -> None:
    assert ovp.device_config("NPU", {}) == NPU_DEFAULTS
    assert ovp.device_config("CPU", {}) == {}
    assert ovp.device_config("GPU", {}) == {}


def test_cache_directory_goes_to_the_property_of_the_device() -> None:
    environ = {"GGML_OPENVINO_CACHE_DIR": "/cache"}
    assert ovp.device_config("CPU", environ) == {"CACHE_DIR": "/cache"}
    assert ovp.device_config("NPU", environ)["NPUW_CACHE_DIR"] == "/cache"
    assert "CACHE_DIR" not in ovp.device_config("NPU", environ)


def test_device_from_argument_else_environment_else_cpu(static: ovp.ImportedModel) -> None:
    assert compile_with(static, "GPU.1", GGML_OPENVINO_DEVICE="CPU")["device"] == "GPU.1"
    assert compile_with(static, None, GGML_OPENVINO_DEVICE="GPU")["device"] == "GPU"
    assert compile_with(static, None)["device"] == "CPU"
    assert device_name(None, {"GGML_OPENVINO_DEVICE": " "}) == "CPU"


def test_absent_device_lists_those_that_are_there(static: ovp.ImportedModel) -> None:
    with pytest.raises(ovp.DeviceError, match=r"device GPU\.7 is not there, found CPU, GPU\.0, GPU\.1, NPU"):
        compile_with(static, "GPU.7")


def test_dynamic_model_never_reaches_an_npu(recorded: Path) -> None:
    dynamic = ovp.read_model(recorded / "after/llama-gqa/stateful/model.xml")
    with pytest.raises(ovp.DeviceError, match=r"input inp_pos \[1,1,1,\?\] is dynamic"):
        compile_with(dynamic, "NPU")


def test_kv_states_keep_their_declared_type_on_a_cpu(recorded: Path) -> None:
    stateful = ovp.read_model(recorded / "after/llama-gqa/stateful/model.xml")
    assert compile_with(stateful, "CPU")["KV_CACHE_PRECISION"] == "f16"
    assert compile_with(stateful, "CPU", {"KV_CACHE_PRECISION": "u8"})["KV_CACHE_PRECISION"] == "u8"
    assert "KV_CACHE_PRECISION" not in compile_with(stateful, "GPU")


def test_names_that_may_stand_for_a_cpu() -> None:
    for device in (
        "CPU",
        "CPU.0",
        "AUTO",
        "AUTO:CPU",
        "AUTO:GPU,CPU",
        "HETERO:GPU.0,CPU",
        "MULTI:CPU,GPU",
        "BATCH:CPU(4)",
    ):
        assert may_be_cpu(device), device
    for device in ("GPU", "NPU", "NPU.0", "AUTO:GPU,NPU", "AUTO:-CPU", "HETERO:GPU,XCPU", "BATCH:GPU(4)"):
        assert not may_be_cpu(device), device


@pytest.mark.parametrize("device", ["AUTO", "AUTO:CPU", "HETERO:CPU", "MULTI:CPU", "BATCH:CPU"])
def test_a_cpu_by_another_name_gives_the_same_and_tells_its_states(recorded: Path, device: str) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf")
    ovp.Pipeline.preset("stateful").run(imported)
    one_thread = {"INFERENCE_NUM_THREADS": 1}
    plain, named, rounded = (
        ovp.Session(ovp.compile_model(imported, name, config), imported.info)
        for name, config in (("CPU", one_thread), (device, one_thread), (device, {"KV_CACHE_PRECISION": "u8"}))
    )
    for session in (plain, named, rounded):
        session.prefill(range(20))
    checkpoint = named.checkpoint()
    wanted = plain.decode(7)
    assert np.array_equal(named.decode(7), wanted)
    named.restore(checkpoint)
    assert np.array_equal(named.decode(7), wanted)
    with pytest.raises(ovp.StateError, match="is held in u8 and read as f16, which is not exact"):
        rounded.checkpoint()


@pytest.mark.needs_2026_4
def test_static_attention_that_a_cpu_computes_wrong_is_refused_by_every_name(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-gemma4-mixed.gguf")
    ovp.Pipeline.preset("static-prefill", chunk=4, context=64).run(imported)
    for device in ("CPU", "AUTO", "HETERO:CPU"):
        with pytest.raises(ovp.DeviceError, match="as many tokens as heads"):
            ovp.compile_model(imported, device)


def test_stand_in_of_an_internal_op_is_refused_with_its_name(recorded: Path) -> None:
    dump = ovp.read_model(recorded / "after/qwen35/stateless/model.xml")
    with pytest.raises(ovp.DeviceError, match=r"GatedDeltaNet_338 and 2 more: the internal op GatedDeltaNet"):
        ovp.compile_model(dump, "CPU")
