"""A saved state on its way into a session that may lay its states out otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ovpasses.runtime.state_convert import converted, converted_header
from ovpasses.runtime.state_file import TOKENS, StateFile, open_state_file, state_of
from ovpasses.runtime.state_header import StateHeader, check_fits, permuted
from ovpasses.runtime.states import Values


@contextmanager
def open_fitting(path: str | os.PathLike[str], wanted: StateHeader, *, convert: bool = False) -> Iterator[FittingFile]:
    """Open a state file that a session can take.

    Args:
        path: the file.
        wanted: what the session is.
        convert: take float states of another width.

    Raises:
        StateError: as :meth:`Session.restore`; nothing but its header has been read then.
    """
    with open_state_file(path) as file:
        header = converted_header(file.header, wanted) if convert else file.header
        check_fits(header, wanted, str(path))
        yield FittingFile(file, header, wanted, str(path))


class FittingFile:
    """A state file, in the names, types and layout of the session that is to take it.

    Attributes:
        position: of its states, in tokens.
        checkpoints: by position the recurrent states of each, the oldest first; whole once :meth:`values` has ended.
    """

    def __init__(self, file: StateFile, header: StateHeader, wanted: StateHeader, where: str) -> None:
        ours = {state.key: state for state in wanted.states}
        self._file = file
        self._where = where
        self._states = {state.name: (state, ours[state.key]) for state in header.states}
        self.position = header.position
        self.checkpoints: dict[int, Values] = {at: {} for at in header.checkpoints}

    def values(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and value of every state, as they are read; none at position 0. All are right when it has ended.

        Raises:
            StateError: the file is damaged, or holds what the session's type cannot hold.
        """
        for name, value in self._file.tensors():
            if name == TOKENS:
                continue
            at, state = state_of(name)
            saved, wanted = self._states[state]
            where = self._where if at is None else f"{self._where}: checkpoint at {at}"
            fitting = permuted(saved, wanted, converted(saved, value, where))
            if at is None:
                yield wanted.name, fitting
            else:
                self.checkpoints[at][wanted.name] = fitting
