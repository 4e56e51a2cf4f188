"""The type that a state is declared in made the one that a CPU holds it in, so that reading it back rounds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from openvino import Core, Model
from openvino import Type as ElementType

from ovpasses._openvino import VariableInfo, ops
from ovpasses.passes._states import State, give_initial_value, states
from ovpasses.runtime.device_names import may_be_cpu


def declared_as_held(model: Model, device: str, properties: Mapping[str, Any], core: Core) -> Model:
    """A model whose growing f16 states are declared f32 where the CPU plugin will hold them in f32.

    The plugin fuses the states behind a ``beam_idx`` Gather with attention and holds them in ``KV_CACHE_PRECISION``,
    all others in its inference precision; what is read from a state comes in the declared type in any case. Nothing
    that is computed changes: the plugin drops the conversions between f16 and f32 that this adds.

    Args:
        model: the model; it is not changed.
        device: OpenVINO device name.
        properties: what the model will be compiled with.
        core: asked for the inference precision that the plugin chooses on its own.

    Returns:
        The model itself when nothing is to be done, else a copy that shares its constants.
    """
    if not may_be_cpu(device) or not any(_widens(s, properties, core) for s in states(model)):
        return model
    copy = model.clone()
    for state in list(states(copy)):
        if _widens(state, properties, core):
            _widen(state)
    copy.validate_nodes_and_infer_types()
    return copy


def _widens(state: State, properties: Mapping[str, Any], core: Core) -> bool:
    info = state.variable.info
    if info.data_type != ElementType.f16 or info.data_shape.is_static:
        return False
    if state.beam_gather is not None:
        return type_name(properties.get("KV_CACHE_PRECISION")) == "f32"
    own = properties.get("INFERENCE_PRECISION_HINT")
    if own is None:
        with suppress(AttributeError):  # what stands in for a Core in a test may have no properties
            own = core.get_property("CPU", "INFERENCE_PRECISION_HINT")
    return type_name(own) == "f32"


def type_name(value: Any) -> str:
    """``f16`` of an element type or of the name of one."""
    return str(value.get_type_name() if hasattr(value, "get_type_name") else value).lower()


def _widen(state: State) -> None:
    give_initial_value(state)
    old, new = state.variable.info, VariableInfo()
    new.data_shape, new.variable_id, new.data_type = old.data_shape, old.variable_id, ElementType.f32
    state.variable.update(new)
    readers = list(state.read.output(0).get_target_inputs())
    state.read.set_arguments([ops.convert(state.read.input_value(0), "f32").output(0)])
    state.read.validate_and_infer_types()
    narrow = ops.convert(state.read.output(0), "f16")
    for reader in readers:
        reader.replace_source_output(narrow.output(0))
    state.assign.set_arguments([ops.convert(state.assign.input_value(0), "f32").output(0)])
