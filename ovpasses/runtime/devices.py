"""Which device, with which configuration: from arguments, else from the environment people already set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from openvino import CompiledModel, Core, Model

from ovpasses.errors import DeviceError, one_line
from ovpasses.importers import ImportedModel
from ovpasses.importers.internal_ops import placeholders
from ovpasses.runtime.device_names import is_npu, may_be_cpu
from ovpasses.runtime.fingerprint import keep_fingerprint
from ovpasses.runtime.square_attention import refuse_square_attention
from ovpasses.runtime.state_types import declared_as_held

DEVICE_VARIABLE = "GGML_OPENVINO_DEVICE"
CACHE_DIR_VARIABLE = "GGML_OPENVINO_CACHE_DIR"
NPU_CONFIG_VARIABLE = "GGML_OPENVINO_NPU_COMPILE_CONFIG"
NPU_CONFIG_PROPERTY = "NPU_COMPILATION_MODE_PARAMS"

# What llama.cpp's OpenVINO backend compiles with for an NPU (ggml/src/ggml-openvino).
NPU_DEFAULTS = {
    "NPU_USE_NPUW": "YES",
    "NPUW_DEVICES": "NPU",
    "NPUW_FOLD": "YES",
    "NPUW_WEIGHTS_BANK": "shared",
    "NPUW_FUNCALL_FOR_ALL": "YES",
    "NPUW_FUNCALL_ASYNC": "YES",
    "NPUW_DQ": "YES",
    "NPUW_DQ_FULL": "NO",
    "NPU_COMPILER_DYNAMIC_QUANTIZATION": "YES",
}


def device_name(device: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The device asked for: the argument, else ``GGML_OPENVINO_DEVICE``, else ``CPU``."""
    return device or environ.get(DEVICE_VARIABLE, "").strip() or "CPU"


def device_config(device: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The configuration that a device gets from the environment; computes it and touches nothing.

    Args:
        device: OpenVINO device name.
        environ: where the variables are looked up.

    Returns:
        Property names to values. For an NPU: what llama.cpp's backend sets, its cache directory as
        ``NPUW_CACHE_DIR``, and ``NPU_COMPILATION_MODE_PARAMS`` from ``GGML_OPENVINO_NPU_COMPILE_CONFIG``, else
        from the variable of the property's own name, unchanged; empty means unset. For others: ``CACHE_DIR``.
    """
    config: dict[str, Any] = {}
    cache_dir = environ.get(CACHE_DIR_VARIABLE, "")
    if is_npu(device):
        config.update(NPU_DEFAULTS)
        parameters = environ.get(NPU_CONFIG_VARIABLE) or environ.get(NPU_CONFIG_PROPERTY)
        if parameters:
            config[NPU_CONFIG_PROPERTY] = parameters
        if cache_dir:
            config["NPUW_CACHE_DIR"] = cache_dir
    elif cache_dir:
        config["CACHE_DIR"] = cache_dir
    return config


def compile_model(
    imported: ImportedModel | Model,
    device: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    core: Core | None = None,
) -> CompiledModel:
    """Compile a model for a device.

    States that a CPU will hold in f32 are declared f32 in what is compiled, so that a session can read them exactly.

    Args:
        imported: the model.
        device: CPU, GPU, GPU.1, NPU, ...; else ``GGML_OPENVINO_DEVICE``, else CPU.
        config: OpenVINO properties; they win over those from the environment.
        environ: where the variables are looked up.
        core: the Core to use; a new one unless given.

    Returns:
        The compiled model.

    Raises:
        DeviceError: the device is not there, the model holds an op that cannot be computed or dynamic shapes
            that an NPU does not take, static attention that a CPU computes wrong, or the plugin refuses it.
    """
    model = imported.model if isinstance(imported, ImportedModel) else imported
    core = core or Core()
    name = device_name(device, environ)
    _refuse_placeholders(model)
    if is_npu(name):
        refuse_dynamic(model)
    if may_be_cpu(name):
        refuse_square_attention(model)
    refuse_absent(name, core)
    properties = compile_properties(model, name, config, environ)
    try:
        compiled = core.compile_model(declared_as_held(model, name, properties, core), name, properties)
    except Exception as error:
        raise DeviceError(f"device {name} cannot compile the model: {one_line(error)}") from error
    keep_fingerprint(compiled, model)
    return compiled


def compile_properties(
    model: Model, device: str, config: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """All properties a model is compiled with: those of the arguments over those of the environment over our own."""
    return {**_declared_precision(model, device), **device_config(device, environ), **(config or {})}


def _declared_precision(model: Model, device: str) -> dict[str, Any]:
    """Keep KV states on a CPU in the type that the graph declares; the plugin would make them u8 on its own."""
    dynamic = [v.info for v in model.get_variables() if v.info.data_shape.is_dynamic]
    types = {info.data_type.get_type_name() for info in dynamic}
    return {"KV_CACHE_PRECISION": types.pop()} if may_be_cpu(device) and types in ({"f16"}, {"f32"}, {"bf16"}) else {}


def _refuse_placeholders(model: Model) -> None:
    held = placeholders(model)
    if held:
        more = f" and {len(held) - 1} more" if len(held) > 1 else ""
        raise DeviceError(
            f"{held[0].get_friendly_name()}{more}: the internal op {held[0].get_type_name()} of this IR cannot be "
            "computed; run LowerGatedDeltaNet or the preset stateful first"
        )


def refuse_dynamic(model: Model) -> None:
    """Raise a DeviceError that names a dynamic input, which no NPU takes."""
    for port in model.inputs:
        if port.get_partial_shape().is_dynamic:
            raise DeviceError(
                f"input {port.get_any_name()} {port.get_partial_shape()} is dynamic; an NPU takes static shapes "
                "only, run the preset static-prefill or static-decode"
            )


def refuse_absent(name: str, core: Core) -> None:
    """Raise a DeviceError that lists the devices which are there, when this one is not."""
    available = list(core.available_devices)
    known = {*available, *(a.split(".")[0] for a in available), "AUTO", "HETERO", "MULTI", "BATCH"}  # GPU is GPU.0
    if name not in known and name.split(":")[0] not in known:
        raise DeviceError(f"device {name} is not there, found {', '.join(available) or 'none'}; choose one of them")
