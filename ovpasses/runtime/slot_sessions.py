"""SlotSessions: the sequences that a llama.cpp dump holds in its caches, a session for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from openvino import CompiledModel, Model

from ovpasses.errors import StateError
from ovpasses.importers import ImportedModel
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.cell_states import CellStates
from ovpasses.runtime.fingerprint import pair_fingerprint
from ovpasses.runtime.ports import one_id
from ovpasses.runtime.resumable import Resumable
from ovpasses.runtime.session import Session
from ovpasses.runtime.slot_batches import SlotBatches
from ovpasses.runtime.slot_stage import takes_batches


class Slot(Resumable):
    """One of the sequences that run in batches, on its own: a batch of one; its states are cut and saved alone.

    Args:
        batches: all of them.
        number: which one.
        compiled: the model that checkpoints are of.
        rotation, fingerprint, checkpoints: as :class:`~ovpasses.runtime.resumable.Resumable` takes them.
    """

    def __init__(
        self,
        batches: SlotBatches,
        number: int,
        compiled: CompiledModel,
        rotation: tuple[int, int],
        fingerprint: str | None,
        checkpoints: int,
    ) -> None:
        self._batches = batches
        self._number = number
        caches, info = batches.caches, batches.info
        states = CellStates(compiled, lambda: caches.views(number), caches.cells, info)
        super().__init__(states, info, caches.cells, rotation, fingerprint, checkpoints)

    # Kept with the batches, which run several sequences in one inference.
    @property
    def _position(self) -> int:
        return self._batches.positions[self._number]

    @_position.setter
    def _position(self, value: int) -> None:
        self._batches.positions[self._number] = value

    @property
    def _failed(self) -> bool:
        return self._batches.failed[self._number]

    @_failed.setter
    def _failed(self, value: bool) -> None:
        self._batches.failed[self._number] = value

    def state(self, name: str) -> np.ndarray:
        """A copy of what the sequence has in a cache, by its input name; ``position`` cells of keys and values count.

        Raises:
            StateError: there is none of that name.
        """
        return self._batches.caches.value(name, self._number)

    def prefill(self, tokens: Sequence[int] | np.ndarray, all_logits: bool = False) -> np.ndarray:
        """Run tokens after those run so far; logits as :meth:`SlotSessions.prefill`."""
        return self._batches.run({self._number: tokens}, all_logits, decode=False)[self._number]

    def decode(self, token: int) -> np.ndarray:
        """Run one token; logits f32 ``[1, vocab]``."""
        return self._batches.run({self._number: one_id(token)}, False, decode=True)[self._number]


class SlotSessions:
    """Sequences of one context that share its caches, each in a slot of its own.

    A model of :class:`~ovpasses.BatchSequences` runs those of a call in one inference, whichever slots they are in. A
    dump as it is runs them one after another, as llama.cpp splits a batch for a graph that was captured with one: the
    recurrent states of a sequence are read by the list of slots, its keys and values by the range of sequences.

    Args:
        compiled: a compiled llama.cpp dump, as it is or after BatchSequences, whose caches are inputs and outputs; or
            one of preset ``static-prefill`` with ``sequences``.
        info: what :func:`ovpasses.read_model` found out about the model.
        decode: beside a model of ``static-prefill``, the one of ``static-decode``.
        step: most tokens of a sequence that one inference takes, where the model leaves it open.
        cells: tokens of a sequence that the caches hold, where the graph leaves it open.
        pad_token: id that shorter sequences and chunks are padded with; what it is makes no difference to any result.
        rotation, checkpoints, model: of every sequence, as :class:`Session` takes them.

    Raises:
        StateError: as :class:`Session`, or the two models do not fit each other.
    """

    def __init__(
        self,
        compiled: CompiledModel,
        info: GraphInfo,
        *,
        decode: CompiledModel | None = None,
        step: int = 512,
        cells: int | None = None,
        pad_token: int = 0,
        rotation: tuple[int, int] = (0, 0),
        checkpoints: int = 4,
        model: ImportedModel | Model | None = None,
    ) -> None:
        if step < 1 or (cells is not None and cells < 1):
            raise StateError(f"step is {step} and cells {cells}, wanted at least 1")
        self._batches: SlotBatches | None = None
        self._sessions: list[Session | Slot] = []
        if takes_batches(compiled):
            self._batches = SlotBatches(compiled, info, decode=decode, step=step, cells=cells, pad_token=pad_token)
            weights = pair_fingerprint(compiled, decode or compiled, model)
            numbers = range(self._batches.caches.sequences)
            self._sessions += [Slot(self._batches, n, compiled, rotation, weights, checkpoints) for n in numbers]
            return
        if decode is not None:
            raise StateError("the prefill model takes no list of sequences; give the preset the option sequences")
        kept: dict[str, Any] = {"rotation": rotation, "checkpoints": checkpoints, "model": model}
        first = Session(compiled, info, step=step, cells=cells, **kept)
        others = range(1, first.sequences)
        self._sessions = [first, *(Session(compiled, info, step=step, slot=n, beside=first, **kept) for n in others)]

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session | Slot]:
        return iter(self._sessions)

    def __getitem__(self, slot: int) -> Session | Slot:
        if not 0 <= slot < len(self):
            raise StateError(f"slot is {slot}, but the caches hold {len(self)} sequence(s)")
        return self._sessions[slot]

    def prefill(
        self, tokens: Mapping[int, Sequence[int] | np.ndarray], all_logits: bool = False
    ) -> dict[int, np.ndarray]:
        """Run tokens of several sequences after those that each has run so far.

        Args:
            tokens: slot to token ids, at least one each; the numbers of tokens may differ.
            all_logits: return a row for every token instead of the last one only.

        Returns:
            Slot to logits f32 ``[T, vocab]`` or ``[1, vocab]``.

        Raises:
            StateError: there is no such slot (nothing has been run then), or as :meth:`Session.prefill`.
            DeviceError: the device failed.
        """
        return self._run(tokens, all_logits, decode=False)

    def decode(self, tokens: Mapping[int, int]) -> dict[int, np.ndarray]:
        """Run one token of each of several sequences; slot to logits f32 ``[1, vocab]``."""
        return self._run({slot: one_id(token) for slot, token in tokens.items()}, False, decode=True)

    def _run(
        self, tokens: Mapping[int, Sequence[int] | np.ndarray], all_logits: bool, *, decode: bool
    ) -> dict[int, np.ndarray]:
        chosen = {slot: self[slot] for slot in tokens}
        if self._batches is not None:
            return self._batches.run(tokens, all_logits, decode)
        for slot, one in chosen.items():
            if isinstance(one, Session):
                one.checked(tokens[slot])  # of all, before the first of them runs
        return {slot: one.prefill(tokens[slot], all_logits) for slot, one in chosen.items()}
