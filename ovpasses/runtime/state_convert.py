"""Saved states of one float type made those of another, for who asks for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ovpasses.errors import StateError
from ovpasses.runtime.state_header import StateHeader
from ovpasses.runtime.states import EXACT_TYPES, Values


def converted_header(saved: StateHeader, wanted: StateHeader) -> StateHeader:
    """What a file's header says once its states have the types of a session's."""
    kinds = {state.key: state.dtype for state in wanted.states}
    return replace(saved, states=tuple(replace(s, dtype=kinds.get(s.key, s.dtype)) for s in saved.states))


def convert_values(header: StateHeader, values: Values, where: str) -> None:
    """Give states the types of a header, one after the other in place; f16 to f32 is exact, f32 to f16 rounds.

    Args:
        header: of what they are to be.
        values: some or all of its states by name.
        where: the file, for the message.

    Raises:
        StateError: a value is too large for f16.
    """
    for state in header.states:
        value = values.get(state.name)
        if value is None or value.dtype == EXACT_TYPES[state.dtype]:
            continue
        with np.errstate(over="ignore"):
            made = value.astype(EXACT_TYPES[state.dtype])
        if np.isfinite(value).all() and not np.isfinite(made).all():
            raise StateError(f"{where}: {state.label} holds values that {state.dtype} cannot hold")
        values[state.name] = made
