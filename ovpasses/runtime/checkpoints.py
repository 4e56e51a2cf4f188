"""Copies of a session's states in memory, to go back to."""

from __future__ import annotations

from dataclasses import dataclass, field

from openvino import CompiledModel

from ovpasses.runtime.states import Values


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All states of a session at one position.

    Attributes:
        position: tokens that had been run.
        values: a copy of every state by name, in the shape and type that the device gives.
    """

    position: int
    values: Values = field(repr=False)
    compiled: CompiledModel = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Memory that it takes, in bytes."""
        return sum(value.nbytes for value in self.values.values())


class Checkpoints:
    """The newest checkpoints of what a session has run, oldest first; those of tokens since dropped are forgotten.

    Args:
        most: how many to keep.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[Checkpoint] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep one more; the oldest goes when there are too many."""
        self._kept = [*self._kept, checkpoint][-self._most :] if self._most else []

    def at_or_before(self, position: int) -> Checkpoint | None:
        """The latest one that is not past a position."""
        return max((c for c in self._kept if c.position <= position), key=lambda c: c.position, default=None)

    def went_back(self, position: int) -> None:
        """Forget those past a position: their tokens are no longer the session's."""
        self._kept = [c for c in self._kept if c.position <= position]

    def restored(self, checkpoint: Checkpoint) -> None:
        """Keep those that lead to one; all go when it is none of these, and so may be of other tokens."""
        own = any(c is checkpoint for c in self._kept)
        self._kept = [c for c in self._kept if own and c.position <= checkpoint.position] or [checkpoint]

    def clear(self) -> None:
        """Forget all."""
        self._kept = []
