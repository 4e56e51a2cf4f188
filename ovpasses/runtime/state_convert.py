"""Saved states of one float type made those of another, for who asks for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ovpasses.errors import StateError
from ovpasses.runtime.state_header import SavedStateInfo, StateHeader
from ovpasses.runtime.states import EXACT_TYPES


def converted_header(saved: StateHeader, wanted: StateHeader) -> StateHeader:
    """What a file's header says once its states have the types of a session's."""
    kinds = {state.key: state.dtype for state in wanted.states}
    return replace(saved, states=tuple(replace(s, dtype=kinds.get(s.key, s.dtype)) for s in saved.states))


def converted(state: SavedStateInfo, value: np.ndarray, where: str) -> np.ndarray:
    """A state in the type of a header; f16 to f32 is exact, f32 to f16 rounds.

    Args:
        state: what it is to be.
        value: as it was saved.
        where: the file, for the message.

    Raises:
        StateError: a value is too large for f16.
    """
    if value.dtype == EXACT_TYPES[state.dtype]:
        return value
    with np.errstate(over="ignore"):
        made = value.astype(EXACT_TYPES[state.dtype])
    if np.isfinite(value).all() and not np.isfinite(made).all():
        raise StateError(f"{where}: {state.label} holds values that {state.dtype} cannot hold")
    return made
