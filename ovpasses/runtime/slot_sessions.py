"""SlotSessions: the sequences that a llama.cpp dump holds in its caches, a session for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from openvino import CompiledModel

from ovpasses.errors import StateError
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.session import Session


class SlotSessions:
    """Sequences of one context that share its caches, each in a slot of its own.

    A batch is run sequence by sequence, as llama.cpp splits it for a graph that was captured with one: the recurrent
    states of a sequence are read by the list of slots, its keys and values by the range of sequences.

    Args:
        compiled: a compiled llama.cpp dump as it is, whose caches are inputs and outputs.
        info: what :func:`ovpasses.read_model` found out about the model.
        step: most tokens of a sequence that one inference takes.
        cells: tokens of a sequence that the caches hold, where the graph leaves it open.

    Raises:
        StateError: as :class:`Session`.
    """

    def __init__(self, compiled: CompiledModel, info: GraphInfo, *, step: int = 512, cells: int | None = None) -> None:
        first = Session(compiled, info, step=step, cells=cells)
        others = [Session(compiled, info, step=step, slot=n, beside=first) for n in range(1, first.sequences)]
        self._sessions = [first, *others]

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    def __getitem__(self, slot: int) -> Session:
        if not 0 <= slot < len(self):
            raise StateError(f"slot is {slot}, but the caches hold {len(self)} sequence(s)")
        return self._sessions[slot]

    def prefill(
        self, tokens: Mapping[int, Sequence[int] | np.ndarray], all_logits: bool = False
    ) -> dict[int, np.ndarray]:
        """Run tokens of several sequences after those that each has run so far.

        Args:
            tokens: slot to token ids, at least one each.
            all_logits: return a row for every token instead of the last one only.

        Returns:
            Slot to logits f32 ``[T, vocab]`` or ``[1, vocab]``.

        Raises:
            StateError: there is no such slot (nothing has been run then), or as :meth:`Session.prefill`.
        """
        chosen = {slot: self[slot] for slot in tokens}
        return {slot: one.prefill(tokens[slot], all_logits) for slot, one in chosen.items()}

    def decode(self, tokens: Mapping[int, int]) -> dict[int, np.ndarray]:
        """Run one token of each of several sequences; slot to logits f32 ``[1, vocab]``."""
        return self.prefill({slot: [token] for slot, token in tokens.items()})
