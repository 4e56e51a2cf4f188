"""Saved states of one float type made those of another, for who asks for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ovpasses.errors import StateError
from ovpasses.runtime.state_header import StateHeader
from ovpasses.runtime.states import Values

_TYPES = {"f16": np.float16, "f32": np.float32}


def converted(saved: StateHeader, wanted: StateHeader, values: Values, where: str) -> tuple[StateHeader, Values]:
    """The states of a file in the types of a session's; f16 to f32 is exact, f32 to f16 rounds.

    Args:
        saved: of the file.
        wanted: of the session.
        values: the file's states by the file's names.
        where: the file, for the message.

    Raises:
        StateError: a value is too large for f16.
    """
    kinds = {state.key: state.dtype for state in wanted.states}
    found, states = dict(values), []
    for state in saved.states:
        kind = kinds.get(state.key, state.dtype)
        if kind != state.dtype and kind in _TYPES and state.name in found:
            with np.errstate(over="ignore"):
                value = found[state.name].astype(_TYPES[kind])
            if np.isfinite(found[state.name]).all() and not np.isfinite(value).all():
                raise StateError(f"{where}: {state.label} holds values that {kind} cannot hold")
            found[state.name] = value
            state = replace(state, dtype=kind)
        states.append(state)
    return replace(saved, states=tuple(states)), found
