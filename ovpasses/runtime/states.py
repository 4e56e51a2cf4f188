"""The states of an infer request: which axis of each is the sequence, and reading and writing all of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from openvino import CompiledModel, InferRequest, Tensor

from ovpasses.errors import DeviceError, StateError, one_line
from ovpasses.ggml_names import CACHE_NAME, PAST_NAME
from ovpasses.runtime.state_types import type_name

# Types whose bytes go out of a state and back in as they are.
EXACT_TYPES = ("f16", "f32")

KINDS = {
    "cache_k": "key",
    "cache_v": "value",
    "cache_r": "conv",
    "conv_state": "conv",
    "cache_s": "delta-net",
    "ssm_state": "delta-net",
}

Values = dict[str, np.ndarray]


@dataclass
class StateInfo:
    """What is known of one state.

    Attributes:
        name: the variable's id.
        dtype: element type in which it is read and written, as ``f16``.
        axes: dims that may be the sequence: those that were empty while no token had been run. None of a
            recurrent state, which has a fixed size; of several, those that grow otherwise are dropped later.
    """

    name: str
    dtype: str
    axes: tuple[int, ...] = field(default=())

    @property
    def label(self) -> str:
        """The name for messages: ``cache_k_l0`` of the id ``cache_k_l0cache_k_l0``."""
        found = CACHE_NAME.search(self.name)
        return found.group(0).lstrip(".") if found else self.name

    @property
    def kind(self) -> str:
        """key, value, conv or delta-net by its name, else "cache" (grows) or "recurrent" (does not)."""
        ggml, onnx = CACHE_NAME.search(self.name), PAST_NAME.match(self.name)
        if ggml:
            return KINDS[ggml["kind"]]
        return onnx["kind"] if onnx else "cache" if self.grows else "recurrent"

    @property
    def layer(self) -> int | None:
        """The layer that its name tells."""
        found = CACHE_NAME.search(self.name) or PAST_NAME.match(self.name)
        return int(found["layer"]) if found else None

    @property
    def grows(self) -> bool:
        """Whether it gets a row per token; else it is recurrent."""
        return bool(self.axes)


class States:
    """All states of one infer request, which has run nothing yet.

    A state without tokens is empty along its sequence axis and nowhere else, whatever its number of heads: so that
    axis is read off it once, at position 0, where it cannot be taken for another.

    Args:
        compiled: the compiled model.
        request: a new infer request of it.
    """

    def __init__(self, compiled: CompiledModel, request: InferRequest) -> None:
        self.compiled = compiled
        self._request = request
        self.infos: dict[str, StateInfo] = {}
        self._unknown = ""
        self._held: Counter[str] | None = None
        try:
            for state in request.query_state():
                tensor = state.state
                empty = tuple(d for d, size in enumerate(tensor.shape) if size == 0)
                self.infos[state.name] = StateInfo(state.name, tensor.element_type.get_type_name(), empty)
        except RuntimeError as error:
            self._unknown = one_line(error)

    @property
    def recurrent(self) -> list[StateInfo]:
        """The states of a fixed size."""
        return [info for info in self.infos.values() if not info.grows]

    def read(self, position: int) -> Values:
        """A copy of every state by name.

        Args:
            position: how many tokens have been run.

        Raises:
            StateError: the device does not give its states, or not exactly, or one does not hold ``position`` tokens.
        """
        self.check_exact()
        try:
            values = {state.name: np.array(state.state.data) for state in self._request.query_state()}
        except RuntimeError as error:
            raise StateError(f"the device does not give its states: {one_line(error)}") from error
        for info in self.infos.values() if position else ():
            if info.grows:
                self.axis(info, values[info.name].shape, position)
        return values

    def axis(self, info: StateInfo, shape: tuple[int, ...], position: int) -> int:
        """The sequence axis of a state that grows and has this shape after ``position`` tokens.

        Raises:
            StateError: no dim, or more than one, can be it.
        """
        if position:
            left = tuple(d for d in info.axes if shape[d] == position)
            if not left:
                lengths = ", ".join(str(shape[d]) for d in info.axes)
                raise StateError(f"state {info.label} holds {lengths} tokens, wanted the session's {position}")
            info.axes = left
        if len(info.axes) > 1:
            raise StateError(
                f"state {info.label} {list(shape)} at position {position} may have its sequence on any of the axes "
                f"{list(info.axes)}; declare its other dims static"
            )
        return info.axes[0]

    def write(self, values: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]) -> None:
        """Set all states, or none.

        Args:
            values: every state by name, in its own shape and type; nothing for a reset.
            before: what they hold now, to go back to; nothing when that is what they are after a reset.

        Raises:
            StateError: the device refused; all states are as before.
            DeviceError: and it refused that too: the states are not known.
        """
        try:
            self._set(values)
        except RuntimeError as error:
            reason = one_line(error)
            try:
                self._set(before)
            except RuntimeError:
                raise DeviceError(f"the device took some states and not others: {reason}; reset the session") from error
            raise StateError(f"the device refuses to set its states: {reason}") from error

    def _set(self, values: Mapping[str, np.ndarray]) -> None:
        if not values:
            self._request.reset_state()
            return
        for state in self._request.query_state():
            state.state = Tensor(np.ascontiguousarray(values[state.name]))

    def check_exact(self) -> None:
        """Make sure that what is read from states and set is what they hold.

        Raises:
            StateError: it is not, or the device does not tell.
        """
        if self._unknown:
            raise StateError(f"the device does not give its states: {self._unknown}")
        if self._held is None:
            self._held = held_types(self.compiled)
        for info in self.infos.values():
            if info.dtype not in EXACT_TYPES:
                raise StateError(f"state {info.label} is {info.dtype}, wanted one of {', '.join(EXACT_TYPES)}")
        declared = Counter(info.dtype for info in self.infos.values())
        wrong, rounded = self._held - declared, declared - self._held
        if wrong and rounded:
            first = min((i for i in self.infos.values() if i.dtype in rounded), key=lambda i: (not i.grows, i.label))
            raise StateError(
                f"state {first.label} is held in {min(wrong)} and read as {first.dtype}, which is not exact; "
                "compile with ovpasses.compile_model and config KV_CACHE_PRECISION f16 or f32"
            )


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
            with suppress(RuntimeError):  # a device without that property keeps states as they are declared
                kind = compiled.get_property("KV_CACHE_PRECISION")
        held[type_name(kind)] += 1
    return held


def _note(node: Any, key: str) -> str:
    """A note of the runtime model on a layer, "" when there is none."""
    notes = node.get_rt_info()
    return str(getattr(notes[key], "value", notes[key])) if key in notes else ""
