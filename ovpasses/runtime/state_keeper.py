"""What a session does with its states: cut them, write them to a file, and check those it is to take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ovpasses.errors import StateError
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.checkpoints import Checkpoint
from ovpasses.runtime.state_header import StateHeader, check_fits, describe_state
from ovpasses.runtime.states import StateStore, Values

if TYPE_CHECKING:
    from ovpasses.runtime.fitting_file import FittingFile


def checked_rotation(rotation: Any) -> tuple[int, int]:
    """The sizes of the rotation of keys and of values.

    Raises:
        StateError: they are not two integers, 0 or more.
    """
    sizes = tuple(rotation) if isinstance(rotation, tuple | list) else ()
    if len(sizes) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in sizes):
        raise StateError(f"rotation is {rotation!r}, wanted two sizes (keys, values), 0 for none")
    return sizes[0], sizes[1]


class StateKeeper:
    """The operations on all states of a session together.

    Args:
        states: all of its states.
        info: of the model.
        rotation: sizes of the rotation of keys and values.
        fingerprint: of the weights, None when not known.
    """

    def __init__(self, states: StateStore, info: GraphInfo, rotation: tuple[int, int], fingerprint: str | None) -> None:
        self.states = states
        self._info = info
        self._rotation = rotation
        self._fingerprint = fingerprint

    def check_count(self, n: Any, position: int) -> None:
        """Make sure that the first ``n`` tokens can be meant.

        Raises:
            StateError: ``n`` is no integer, negative, or past ``position``.
        """
        whole = isinstance(n, int | np.integer) and not isinstance(n, bool)
        if whole and 0 <= n <= position:
            return
        ordered = sorted(self.states.infos.values(), key=lambda info: (not info.grows, info.label))
        holds = [f"state {i.label} {'holds' if i.grows else 'has run'} {position} tokens" for i in ordered[:1]]
        raise StateError(
            f"cannot trim to {n!r}: {''.join(f'{h}, ' for h in holds)}position is {position}; "
            f"give an integer from 0 to {position}"
        )

    def check_cut(self, n: int, position: int) -> None:
        """Make sure that every state can be cut to its first ``n`` of ``position`` tokens.

        Raises:
            StateError: one is recurrent.
        """
        for info in self.states.recurrent:
            raise StateError(
                f"cannot trim to {n}: {info.label} is a recurrent state ({info.kind}) at position {position}, which "
                f"cannot go back to {n}; restore a checkpoint taken there, or reset and run the tokens again"
            )

    def of_checkpoint(self, checkpoint: Checkpoint) -> Values:
        """The states of a checkpoint, if it is one of this compiled model.

        Raises:
            StateError: it is of another.
        """
        if checkpoint.compiled is not self.states.compiled:
            raise StateError(
                f"the checkpoint at position {checkpoint.position} is of another compiled model; "
                "save the session that it is of to a file and restore that"
            )
        return checkpoint.values

    def save(
        self,
        path: str | os.PathLike[str],
        position: int,
        tokens: np.ndarray | None,
        checkpoints: Mapping[int, Mapping[str, np.ndarray]],
    ) -> None:
        """Write all states, and the recurrent ones of checkpoints by their positions, the oldest first.

        Raises:
            StateError: as :meth:`Session.save`.
        """
        from ovpasses.runtime.state_file import SavedState, write_state_file

        header = replace(self._header(position), checkpoints=tuple(checkpoints))
        check_fits(header, header, str(path))
        write_state_file(path, SavedState(header, self.states.views(position), tokens, checkpoints))

    def opened(
        self, path: str | os.PathLike[str], position: int, *, convert: bool = False
    ) -> AbstractContextManager[FittingFile]:
        """A file whose states fit; nothing but its header is read before that is known.

        Args:
            path: the file.
            position: where this session stands.
            convert: take float states of another width.

        Raises:
            StateError: as :meth:`Session.restore`.
        """
        from ovpasses.runtime.fitting_file import open_fitting

        return open_fitting(path, self._header(position), convert=convert)

    def _header(self, position: int) -> StateHeader:
        if self._fingerprint is None:
            raise StateError(
                "the weights of the compiled model are not known; compile it with ovpasses.compile_model, or open the "
                "session with model=..."
            )
        states = []
        for name, shape in self.states.shapes(position).items():
            info = self.states.infos[name]
            axis = self.states.axis(info, shape, position) if info.grows else None
            states.append(describe_state(info, axis, shape, self._info))
        return StateHeader(self._fingerprint, position, self._rotation, tuple(states))
