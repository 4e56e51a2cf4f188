"""What is known of a session's states, which axis of each is the sequence, and how they are read and written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from openvino import CompiledModel

from ovpasses.errors import StateError
from ovpasses.ggml_names import CACHE_NAME, PAST_NAME
from ovpasses.runtime.tensor_table import shown

# Types whose bytes go out of a state and back in as they are.
EXACT_TYPES: dict[str, np.dtype[Any]] = {"f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}

KINDS = {
    "cache_k": "key",
    "cache_v": "value",
    "cache_r": "conv",
    "conv_state": "conv",
    "cache_s": "delta-net",
    "ssm_state": "delta-net",
}

Values = dict[str, np.ndarray]


def rows_first(value: np.ndarray, axis: int | None) -> np.ndarray:
    """``[tokens, the rest]`` of a state with its sequence on ``axis``; flat when it has none."""
    if axis is None:
        return value.reshape(-1)
    moved = np.moveaxis(value, axis, 0)
    return moved.reshape(moved.shape[0], prod(moved.shape[1:]))


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
        return found.group(0).lstrip(".") if found else shown(self.name)

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


class StateStore(ABC):
    """All states of one session, wherever they are kept.

    Attributes:
        compiled: the compiled model that they are of.
        infos: what is known of each, by name.
        changes: counts up when states begin to change, so that whoever interrupts that can tell.
    """

    compiled: CompiledModel
    infos: dict[str, StateInfo]
    changes: int = 0

    @property
    def recurrent(self) -> list[StateInfo]:
        """The states of a fixed size."""
        return [info for info in self.infos.values() if not info.grows]

    def read(self, position: int) -> Values:
        """A copy of every state by name; of those that grow the rows of all tokens and no others.

        Args:
            position: how many tokens have been run.

        Raises:
            StateError: the device does not give its states, or not exactly, or one does not hold ``position`` tokens.
        """
        self.check_exact()
        return self._copies(position)

    def views(self, position: int) -> Mapping[str, np.ndarray]:
        """What :meth:`read` gives, each state when it is asked for, and copied only where the device must.

        Raises:
            StateError: as :meth:`read`; when a state is asked for, too.
        """
        self.check_exact()
        return _Views(self, position)

    def view(self, name: str, position: int) -> np.ndarray:
        """One state as :meth:`views` gives it, to be read before the next inference.

        Raises:
            StateError: the device does not give it, or it does not hold ``position`` tokens.
        """
        value = self._view(name, position)
        info = self.infos[name]
        if position and info.grows:
            self.axis(info, value.shape, position)
        return value

    def shapes(self, position: int) -> dict[str, tuple[int, ...]]:
        """The shape of every state that :meth:`read` gives.

        Raises:
            StateError: as :meth:`read`.
        """
        self.check_exact()
        return {name: self._shape(name, position) for name in self.infos}

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

    def check_exact(self) -> None:
        """Make sure that what is read from states and set is what they hold.

        Raises:
            StateError: it is not, or that cannot be told.
        """
        for info in self.infos.values():
            if info.dtype not in EXACT_TYPES:
                raise StateError(f"state {info.label} is {info.dtype}, wanted one of {', '.join(EXACT_TYPES)}")

    def _copies(self, position: int) -> Values:
        """A copy of every state by name."""
        return {name: np.array(self.view(name, position)) for name in self.infos}

    def _shape(self, name: str, position: int) -> tuple[int, ...]:
        return self.view(name, position).shape

    @abstractmethod
    def _view(self, name: str, position: int) -> np.ndarray:
        """A state, of one that grows the rows of ``position`` tokens, without a copy where that can be."""

    @abstractmethod
    def write(self, values: Iterable[tuple[str, np.ndarray]]) -> None:
        """Set all states, or none: they change when ``values`` has ended, and not at all when it raises.

        Args:
            values: name and value of every state, each in its own shape and type. Values may be made, or read from a
                file, as they are asked for; none is needed after the next one has been asked for.

        Raises:
            StateError: the device refused; all states are as before.
        """

    @abstractmethod
    def cut(self, n: int, position: int, recurrent: Mapping[str, np.ndarray]) -> None:
        """Keep the first ``n`` of ``position`` tokens, 1 or more.

        Args:
            n, position: in tokens.
            recurrent: the states without a sequence axis as they were after ``n`` tokens, by name.

        Raises:
            StateError: as :meth:`read` and :meth:`write`.
        """

    @abstractmethod
    def clear(self) -> None:
        """Make all states what they are before the first token."""


class _Views(Mapping[str, np.ndarray]):
    def __init__(self, states: StateStore, position: int) -> None:
        self._states = states
        self._position = position

    def __getitem__(self, name: str) -> np.ndarray:
        return self._states.view(name, self._position)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states.infos)

    def __len__(self) -> int:
        return len(self._states.infos)
