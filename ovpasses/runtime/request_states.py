"""The states inside a model, as an infer request gives and takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from openvino import CompiledModel, InferRequest, Tensor
from openvino import Type as ElementType

from ovpasses.errors import StateError, one_line
from ovpasses.runtime.state_types import type_name
from ovpasses.runtime.states import StateInfo, StateStore


class RequestStates(StateStore):
    """All states of an infer request, which has run nothing yet.

    A state without tokens is empty along its sequence axis and nowhere else, whatever its number of heads: so that
    axis is read off it once, at position 0, where it cannot be taken for another.

    Args:
        compiled: the compiled model.
        request: a new infer request of it.

    Attributes:
        request: the one whose states these are; another one when they have been set.
    """

    def __init__(self, compiled: CompiledModel, request: InferRequest) -> None:
        self.compiled = compiled
        self.request = request
        self._copies_values = _copies_values(compiled)
        self.infos: dict[str, StateInfo] = {}
        self._handles: dict[str, Any] = {}
        self._empty: dict[str, tuple[int, ...]] = {}
        self._unknown = ""
        self._held: Counter[str] | None = None
        try:
            for state in request.query_state():
                tensor = state.state
                self._handles[state.name], self._empty[state.name] = state, tuple(tensor.shape)
                empty = tuple(d for d, size in enumerate(tensor.shape) if size == 0)
                self.infos[state.name] = StateInfo(state.name, tensor.element_type.get_type_name(), empty)
        except RuntimeError as error:
            self._unknown = one_line(error)

    def _view(self, name: str, position: int) -> np.ndarray:
        try:
            value: np.ndarray = self._handles[name].state.data
        except RuntimeError as error:
            raise StateError(f"the device does not give its states: {one_line(error)}") from error
        return value

    def _shape(self, name: str, position: int) -> tuple[int, ...]:
        empty, info = self._empty[name], self.infos[name]
        if empty.count(0) != 1 or not info.grows:
            return super()._shape(name, position)
        return tuple(position if d == info.axes[0] else n for d, n in enumerate(empty))  # costs no copy

    def write(self, values: Iterable[tuple[str, np.ndarray]]) -> None:
        """As :meth:`StateStore.write`: into a new request, which then takes the place of the one that there is."""
        try:
            request = self.compiled.create_infer_request()
            handles = {state.name: state for state in request.query_state()}
            for name, value in values:
                self._set(handles[name], value)
        except (RuntimeError, MemoryError) as error:
            raise StateError(f"the device refuses to set its states: {one_line(error)}") from error
        self.changes += 1
        self.request, self._handles = request, handles

    def _set(self, handle: Any, value: np.ndarray) -> None:
        """A CPU copies the value, but keeps its tensor (intel_cpu/src/memory_state.cpp) and never reads that again.

        So there it is lent one, or all states would take twice their memory.
        """
        whole = np.ascontiguousarray(value)
        if self._copies_values and whole.size:
            handle.state = Tensor(whole, shared_memory=True)
            return
        tensor = Tensor(ElementType(whole.dtype), whole.shape)
        tensor.data[...] = whole
        handle.state = tensor

    def cut(self, n: int, position: int, recurrent: Mapping[str, np.ndarray]) -> None:
        def kept(info: StateInfo) -> np.ndarray:
            if not info.grows:
                return recurrent[info.name]
            value = self.view(info.name, position)
            return value[(slice(None),) * self.axis(info, value.shape, position) + (slice(n),)]

        self.check_exact()
        self.write((name, kept(info)) for name, info in self.infos.items())

    def clear(self) -> None:
        self.changes += 1
        self.request.reset_state()

    def check_exact(self) -> None:
        super().check_exact()
        if self._unknown:
            raise StateError(f"the device does not give its states: {self._unknown}")
        if self._held is None:
            self._held = held_types(self.compiled)
        declared = Counter(info.dtype for info in self.infos.values())
        wrong, rounded = self._held - declared, declared - self._held
        if wrong and rounded:
            first = min((i for i in self.infos.values() if i.dtype in rounded), key=lambda i: (not i.grows, i.label))
            raise StateError(
                f"state {first.label} is held in {min(wrong)} and read as {first.dtype}, which is not exact; "
                "compile with ovpasses.compile_model and config KV_CACHE_PRECISION f16 or f32"
            )


def _copies_values(compiled: CompiledModel) -> bool:
    """Whether a state that is set holds a copy, so that the memory of the value may go; known of CPUs only."""
    with suppress(RuntimeError):  # not every device tells
        return list(compiled.get_property("EXECUTION_DEVICES")) == ["CPU"]
    return False


def held_types(compiled: CompiledModel) -> Counter[str]:
    """How many states a CPU holds in which type; nothing of a device that does not tell.

    A state that is fused with attention is held in ``KV_CACHE_PRECISION``, whatever its layer says.
    """
    held: Counter[str] = Counter()
    for node in compiled.get_runtime_model().get_ops():
        if _note(node, "layerType") != "MemoryInput":
            continue
        readers = [_note(port.get_node(), "layerType") for port in node.output(0).get_target_inputs()]
        kind = _note(node, "outputPrecisions")
        if "ScaledDotProductAttention" in readers:
            kind = _kv_precision(compiled) or kind
        held[type_name(kind)] += 1
    return held


def _kv_precision(compiled: CompiledModel) -> Any:
    """``KV_CACHE_PRECISION`` of the CPU; None of a device without it, which keeps states as they are declared."""
    with suppress(RuntimeError):
        return compiled.get_property("KV_CACHE_PRECISION")
    with suppress(RuntimeError, KeyError):  # AUTO, HETERO and MULTI tell it per device
        return compiled.get_property("DEVICE_PROPERTIES")["CPU"]["KV_CACHE_PRECISION"]
    return None


def _note(node: Any, key: str) -> str:
    """A note of the runtime model on a layer, "" when there is none."""
    notes = node.get_rt_info()
    return str(getattr(notes[key], "value", notes[key])) if key in notes else ""
