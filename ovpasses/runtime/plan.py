"""What a run will do, before it does it: device, models with their shapes, configuration of each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openvino import Core

from ovpasses.errors import RewriteError
from ovpasses.importers import ImportedModel
from ovpasses.passes.static_tokens import DEFAULT_CONTEXT
from ovpasses.pipeline import Pipeline, PipelineReport
from ovpasses.runtime.chunked_prefill import ChunkedSession
from ovpasses.runtime.device_names import check_device_name, is_npu
from ovpasses.runtime.devices import compile_model, compile_properties, device_name, refuse_dynamic
from ovpasses.runtime.inputs import TOKEN_INPUTS
from ovpasses.runtime.ports import last_dim
from ovpasses.runtime.session import Session

FORCE_STATIC_VARIABLE = "GGML_OPENVINO_FORCE_STATIC"
CHUNK_VARIABLE = "GGML_OPENVINO_PREFILL_CHUNK_SIZE"
DEFAULT_CHUNK = 256


def flag(value: str | None) -> bool:
    """A boolean variable as llama.cpp's OpenVINO backend reads it: on for a positive integer, off for all else."""
    try:
        return int(value or "") > 0
    except ValueError:
        return False


def wants_static(device: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a device runs the static pair: an NPU always, others with ``GGML_OPENVINO_FORCE_STATIC``."""
    return is_npu(device) or flag(environ.get(FORCE_STATIC_VARIABLE))


def chunk_size(environ: Mapping[str, str] = os.environ) -> int:
    """Tokens of a prefill chunk: ``GGML_OPENVINO_PREFILL_CHUNK_SIZE`` when it is a positive integer, else 256."""
    value = environ.get(CHUNK_VARIABLE)
    return int(value or "") if flag(value) else DEFAULT_CHUNK


@dataclass
class RunPlan:
    """Rewritten models and how they are to be compiled.

    Attributes:
        device: OpenVINO device name.
        models: "model", or "prefill" and "decode".
        reports: what the pipelines did, by the same names.
        properties: OpenVINO properties that the models will be compiled with, by the same names.
    """

    device: str
    models: dict[str, ImportedModel]
    reports: dict[str, PipelineReport]
    properties: dict[str, dict[str, Any]]

    def session(self, core: Core | None = None) -> Session | ChunkedSession:
        """Compile and make the session.

        Raises:
            DeviceError: as :func:`ovpasses.compile_model`.
        """
        core = core or Core()
        compiled = {
            name: compile_model(model, self.device, self.properties[name], environ={}, core=core)
            for name, model in self.models.items()
        }
        info = next(iter(self.models.values())).info
        if "model" in compiled:
            return Session(compiled["model"], info)
        return ChunkedSession(compiled["prefill"], compiled["decode"], info)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: device, and per model shapes, configuration and report."""
        return {
            "device": self.device,
            "models": {
                name: {
                    "inputs": {p.get_any_name(): str(p.get_partial_shape()) for p in model.model.inputs},
                    "outputs": [str(p.get_partial_shape()) for p in model.model.outputs],
                    "properties": self.properties[name],
                    "report": self.reports[name].to_dict(),
                }
                for name, model in self.models.items()
            },
        }


def plan_run(
    imported: ImportedModel,
    device: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    pipeline: Pipeline | None = None,
    context: int | None = None,
    strict: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> RunPlan:
    """Rewrite a model for a device.

    Args:
        imported: the model; rewritten in place (as the prefill model, for a static pair).
        device: OpenVINO device name; else ``GGML_OPENVINO_DEVICE``, else CPU.
        config: OpenVINO properties; they win over those from the environment.
        pipeline: what to run; unless given the preset ``stateful``, or both static ones where the device or
            ``GGML_OPENVINO_FORCE_STATIC`` wants static shapes.
        context: cells of a static pair's caches, in tokens.
        strict: passes of presets raise when they must skip something.
        environ: where the variables are looked up.

    Raises:
        RewriteError: a pass refused, or the model is one half of a static pair.
        DeviceError: no device of such a name can be, or a pipeline left dynamic shapes for an NPU.
    """
    name = device_name(device, environ)
    check_device_name(name)
    if pipeline is None and wants_static(name, environ):
        cells = context or min(DEFAULT_CONTEXT, imported.info.context_length or DEFAULT_CONTEXT)
        chunk = min(chunk_size(environ), cells)
        decode = ImportedModel(imported.model.clone(), imported.info, imported.source)
        models = {"prefill": imported, "decode": decode}
        pipelines = {
            "prefill": Pipeline.preset("static-prefill", strict=strict, chunk=chunk, context=context),
            "decode": Pipeline.preset("static-decode", strict=strict, context=context),
        }
    else:
        models = {"model": imported}
        pipelines = {"model": pipeline or Pipeline.preset("stateful", strict=strict)}
    reports = {key: pipelines[key].run(model) for key, model in models.items()}
    if "decode" in models:
        _check_decode(models["decode"])
    for model in models.values() if is_npu(name) else ():
        refuse_dynamic(model.model)
    properties = {key: compile_properties(model.model, name, config, environ) for key, model in models.items()}
    return RunPlan(name, models, reports, properties)


def _check_decode(imported: ImportedModel) -> None:
    """A dump that is static already stays as it is, and llama.cpp writes two of them."""
    for port in imported.model.inputs:
        name = port.get_any_name()
        count = last_dim(port)
        if imported.info.roles.get(name, name) in TOKEN_INPUTS and count not in (None, 1):
            raise RewriteError(
                f"input {name} takes {count} tokens whatever is asked for: the model is the prefill half of a static "
                "pair; compile both halves and give them to ChunkedSession"
            )
