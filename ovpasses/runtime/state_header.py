"""What a saved state says of the session it came from, and what a session must be to take it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ovpasses.errors import StateError
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.states import EXACT_TYPES, StateInfo
from ovpasses.runtime.tensor_table import are_sizes, shown, strict_json

_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class SavedStateInfo:
    """One state in a file.

    Attributes:
        name: the variable's id.
        kind: key, value, cache (these grow), conv, delta-net or recurrent.
        layer: layer number; None when the name tells none.
        layout: what each dim is: batch, heads, seq, size; "d0" and so on where that is not known.
        heads, size: of keys and values ``[.., heads, .., size]``; None when not known.
        dtype: "f16" or "f32".
        axis: the dim with a row per token, None of a recurrent state.
        shape: in elements, as saved.
        window: the layer's sliding window in tokens.
    """

    name: str
    kind: str
    layer: int | None
    layout: list[str]
    heads: int | None
    size: int | None
    dtype: str
    axis: int | None
    shape: list[int]
    window: int | None

    @property
    def key(self) -> tuple[str, int | None]:
        """What it is in any graph of the model: kind and layer, else its name."""
        return (self.kind, self.layer) if self.layer is not None else (self.name, None)

    @property
    def label(self) -> str:
        """For messages."""
        return f"{self.kind} of layer {self.layer}" if self.layer is not None else self.name

    def meaning(self) -> dict[str, Any]:
        """What must be the same in two layouts."""
        fixed = [n for d, n in enumerate(self.shape) if d != self.axis]
        grows = "a sequence axis" if self.axis is not None else "no sequence axis"
        named = {"heads": self.heads, "size": self.size, "dtype": self.dtype, "window": self.window}
        return {**named, "axes": grows, "fixed dims": fixed}

    @classmethod
    def from_json(cls, found: Any, position: int) -> SavedStateInfo:
        """A state as a file says it.

        Raises:
            ValueError: its fields are others, of another kind, or do not fit each other or the position.
        """
        if not isinstance(found, dict) or found.keys() != {f.name for f in fields(cls)}:
            raise ValueError(f"a state is {shown(found)}, wanted the fields {', '.join(f.name for f in fields(cls))}")
        layout, shape, axis = found["layout"], found["shape"], found["axis"]
        texts = [found["kind"], found["dtype"], *(layout if isinstance(layout, list) else [None])]
        printable = all(isinstance(text, str) and text.isprintable() for text in texts)
        if not printable or not isinstance(found["name"], str) or not are_sizes(shape):
            raise ValueError(f"a state is {shown(found)}")
        for field in ("layer", "heads", "size", "axis", "window"):
            if found[field] is not None and not are_sizes([found[field]]):
                raise ValueError(f"state {shown(found['name'])} has {field} {shown(found[field])}")
        where = f"state {shown(found['name'])} {shown(shape)}"
        if found["dtype"] not in EXACT_TYPES:
            raise ValueError(f"{where} has dtype {shown(found['dtype'])}, wanted one of {', '.join(EXACT_TYPES)}")
        if axis is not None and axis >= len(shape):
            raise ValueError(f"{where} has axis {axis}, a sequence axis that is none of the dims")
        if len(layout) != len(shape) or [d for d, dim in enumerate(layout) if dim == "seq"] != [*_given(axis)]:
            raise ValueError(f"{where} has the layout {shown(layout)}, and its sequence on axis {axis}")
        for field in ("heads", "size"):
            if [n for dim, n in zip(layout, shape, strict=True) if dim == field] != [*_given(found[field])]:
                raise ValueError(f"{where} has {field} {found[field]}")
        if axis is not None and shape[axis] != position:
            raise ValueError(f"{where} holds {shape[axis]} tokens, wanted the position {position}")
        return cls(**found)


def _given(value: int | None) -> tuple[int, ...]:
    return () if value is None else (value,)


def describe_state(info: StateInfo, axis: int | None, shape: Sequence[int], graph: GraphInfo) -> SavedStateInfo:
    """What a file says of a state.

    Args:
        info: the state.
        axis: its sequence axis, None when it is recurrent.
        shape: its shape now.
        graph: tells the layer's window.
    """
    split = len(shape) == 4 and axis in (1, 2)
    names = ["batch", "heads", "size"] if split else [f"d{d}" for d in range(len(shape) - (axis is not None))]
    layout = names if axis is None else [*names[:axis], "seq", *names[axis:]]
    windows = {layer.index: layer.window for layer in graph.layers}
    return SavedStateInfo(
        name=info.name,
        kind=info.kind,
        layer=info.layer,
        layout=layout,
        heads=shape[layout.index("heads")] if split else None,
        size=shape[layout.index("size")] if split else None,
        dtype=info.dtype,
        axis=axis,
        shape=list(shape),
        window=windows.get(info.layer) if info.layer is not None else None,
    )


@dataclass(frozen=True)
class StateHeader:
    """What all states of a file belong to.

    Attributes:
        fingerprint: of the model's weights, 32 hex digits.
        position: tokens that had been run.
        rotation: sizes of the Hadamard rotation of keys and of values, in elements; 0 for none.
        states: one by one.
        checkpoints: positions of the checkpoints that a session had kept, the oldest first.
    """

    fingerprint: str
    position: int
    rotation: tuple[int, int]
    states: tuple[SavedStateInfo, ...]
    checkpoints: tuple[int, ...] = ()

    @property
    def recurrent(self) -> list[SavedStateInfo]:
        """The states without a sequence axis, which checkpoints hold."""
        return [state for state in self.states if state.axis is None]

    def to_metadata(self) -> dict[str, str]:
        """As the text values of a .safetensors header."""
        return {
            "fingerprint": self.fingerprint,
            "position": str(self.position),
            "n_rot_k": str(self.rotation[0]),
            "n_rot_v": str(self.rotation[1]),
            "states": json.dumps([asdict(state) for state in self.states]),
            "checkpoints": json.dumps(self.checkpoints),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> StateHeader:
        """The inverse of :meth:`to_metadata`.

        Raises:
            ValueError: a field is missing, of another kind, or does not fit the others.
        """
        for field in ("fingerprint", "position", "n_rot_k", "n_rot_v", "states", "checkpoints"):
            if field not in metadata:
                raise ValueError(f"has no field {field}")
        if not _FINGERPRINT.fullmatch(metadata["fingerprint"]):
            raise ValueError(f"has the fingerprint {shown(metadata['fingerprint'])}, wanted 32 hex digits")
        position, *rotation = (_number(metadata, field) for field in ("position", "n_rot_k", "n_rot_v"))
        found = strict_json(metadata["states"])
        if not isinstance(found, list):
            raise ValueError(f"its states are {shown(found)}, wanted a list")
        states = tuple(SavedStateInfo.from_json(state, position) for state in found)
        if len({state.name for state in states}) < len(states):
            raise ValueError("two of its states have one name")
        at = strict_json(metadata["checkpoints"])
        if not are_sizes(at) or sorted({*at}) != at or any(n > position for n in at):
            raise ValueError(f"its checkpoints are at {shown(at)}, wanted rising positions up to {position}")
        return cls(metadata["fingerprint"], position, (rotation[0], rotation[1]), states, tuple(at))


def _number(metadata: Mapping[str, str], field: str) -> int:
    if not _NUMBER.fullmatch(metadata[field]):
        raise ValueError(f"has {field} {shown(metadata[field])}, wanted an integer, 0 or more")
    return int(metadata[field])


def check_rotation(saved: tuple[int, int], wanted: tuple[int, int], where: str) -> None:
    """Refuse a state whose rotation is not exactly the session's: it would be read as garbage, in silence.

    Raises:
        StateError: a size differs.
    """
    if tuple(saved) != tuple(wanted):
        raise StateError(
            f"{where}: was saved with rotation K {saved[0]}, V {saved[1]}, the session has K {wanted[0]}, "
            f"V {wanted[1]}; open the session with rotation=({saved[0]}, {saved[1]}) if its model rotates so"
        )


def check_fits(saved: StateHeader, wanted: StateHeader, where: str) -> None:
    """Refuse a file that is not of the same model, rotation and states; layouts may differ.

    Args:
        saved: of the file.
        wanted: of the session.
        where: the file, for the message.

    Raises:
        StateError: something does not fit; names it with both values.
    """
    check_rotation(saved.rotation, wanted.rotation, where)
    if saved.fingerprint != wanted.fingerprint:
        raise StateError(
            f"{where}: is of a model with weights {saved.fingerprint}, the session's are {wanted.fingerprint}; "
            "open it with the model it was saved from"
        )
    theirs, ours = ({state.key: state for state in header.states} for header in (saved, wanted))
    if len(theirs) < len(saved.states) or len(ours) < len(wanted.states):
        raise StateError(f"{where}: two states have one kind and layer, so they cannot be told apart")
    for key in sorted(theirs.keys() ^ ours.keys(), key=str):
        state = theirs.get(key) or ours[key]
        has, lacks = ("the file", "the session") if key in theirs else ("the session", "the file")
        raise StateError(f"{where}: {state.label} is a state of {has} and not of {lacks}")
    for key, state in ours.items():
        mine, other = state.meaning(), theirs[key].meaning()
        for what, value in mine.items():
            if other[what] != value:
                raise StateError(f"{where}: {state.label} has {what} {other[what]}, the session's has {value}")


def permuted(saved: SavedStateInfo, wanted: SavedStateInfo, value: np.ndarray) -> np.ndarray:
    """A saved state in the layout of a session's that it fits, as a view."""
    if saved.axis is None or wanted.axis is None:
        return value
    return np.moveaxis(value, saved.axis, wanted.axis)
