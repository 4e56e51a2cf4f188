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


@dataclass(frozen=True, eq=False)
class KeptCheckpoint:
    """What a session keeps of a checkpoint to go back to it: of states that grow it has the first rows itself.

    Attributes:
        position: tokens that had been run.
        recurrent: the states without a sequence axis, by name; none at position 0.
    """

    position: int
    recurrent: Values = field(repr=False)


class Checkpoints:
    """The newest checkpoints of what a session has run, oldest first; those of tokens since dropped are forgotten.

    Args:
        most: how many to keep.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[KeptCheckpoint] = []

    def add(self, position: int, recurrent: Values) -> None:
        """Keep one more; the oldest goes when there are too many."""
        self._kept = [*self._kept, KeptCheckpoint(position, recurrent)][-self._most :] if self._most else []

    def at_or_before(self, position: int) -> KeptCheckpoint | None:
        """The latest one that is not past a position."""
        return max((c for c in self._kept if c.position <= position), key=lambda c: c.position, default=None)

    def by_position(self) -> dict[int, Values]:
        """The recurrent states of each; checkpoints of one position are equal."""
        return {kept.position: kept.recurrent for kept in self._kept}

    def went_back(self, position: int) -> None:
        """Forget those past a position: their tokens are no longer the session's."""
        self._kept = [c for c in self._kept if c.position <= position]

    def restored(self, position: int, recurrent: Values) -> None:
        """Keep those that lead to one; all go when it is none of these, and so may be of other tokens."""
        own = any(
            c.position == position and all(c.recurrent.get(name) is value for name, value in recurrent.items())
            for c in self._kept
        )
        if own:
            self.went_back(position)
        else:
            self.clear()
            self.add(position, recurrent)

    def clear(self) -> None:
        """Forget all."""
        self._kept = []
