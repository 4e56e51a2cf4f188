"""Sequences that run together: which of them, and how many tokens of each, go into one inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from openvino import CompiledModel

from ovpasses.errors import DeviceError, StateError, one_line
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.external_cache import default_cells
from ovpasses.runtime.inputs import Step
from ovpasses.runtime.ports import checked_ids
from ovpasses.runtime.slot_caches import SlotCaches
from ovpasses.runtime.slot_stage import Batch, SlotStage


class SlotBatches:
    """Sequences of one context, a slot each, that run in batches.

    Sequences of a batch may have different numbers of tokens: the shorter ones are padded, which leaves no trace where
    the model knows the length of each (ChunkValidLen); where it does not, they go on together as long as all have
    tokens, and the longer ones without the others. A model for a fixed number of sequences that gets fewer has its
    places filled with others, which stay as they are.

    Attributes:
        info: of the model.
        caches: of all sequences.
        positions: tokens that each sequence has run.
        failed: of each sequence, whether its position may not be that of its caches.

    Args:
        compiled: a model of BatchSequences, of any number of sequences and tokens or of a fixed one (static-prefill).
        info: what :func:`ovpasses.read_model` found out about it.
        decode: for a model of a fixed number of tokens, the one for a single token (static-decode).
        step: most tokens of a sequence that one inference takes, where the model leaves it open.
        cells: tokens of a sequence that the caches hold, where the graph leaves it open.
        pad_token: id to pad with; what it is makes no difference to any result.

    Raises:
        StateError: a model lacks inputs or has others than a session can make, or the two do not fit each other.
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
    ) -> None:
        self.info = info
        self._step = step
        self._pad = int(checked_ids([pad_token], info.n_vocab)[0])
        self._prefill = SlotStage(compiled, info)
        self._decode = self._prefill if decode is None else SlotStage(decode, info)
        self.caches = SlotCaches(self._prefill.carried, cells or default_cells(info))
        self.caches.check(self._decode.carried)
        _check_pair(self._prefill, self._decode)
        self.positions = [0] * self.caches.sequences
        self.failed = [False] * self.caches.sequences

    @property
    def capacity(self) -> int:
        """Positions of a sequence, in tokens: cells of the caches, or the model's context when that is less."""
        return min(self.caches.cells, self.info.context_length or self.caches.cells)

    def run(
        self, tokens: Mapping[int, Sequence[int] | np.ndarray], all_logits: bool, decode: bool
    ) -> dict[int, np.ndarray]:
        """Run tokens of several sequences after those that each has run so far; logits by slot.

        Args:
            tokens: slot to token ids, at least one each.
            all_logits: return a row for every token instead of the last one only.
            decode: it is one token each.

        Raises:
            StateError: no tokens, an id outside the vocabulary, more tokens than fit, or a sequence that must be reset;
                nothing has been run then.
            DeviceError: the device failed; every sequence stands at its position, as the inference before left it.
        """
        left = {slot: self._checked(slot, ids) for slot, ids in tokens.items()}
        stage = self._decode if decode else self._prefill
        self._check_spare(stage, left)
        found: dict[int, list[np.ndarray]] = {slot: [] for slot in left}
        while left:
            several = list(left)[: stage.sequences]
            pieces = self._pieces(stage, {slot: left[slot].size for slot in several})
            wanted = {slot: all_logits or n == left[slot].size for slot, n in pieces.items()}
            logits = self._infer(stage, {slot: left[slot][:n] for slot, n in pieces.items()}, wanted, all_logits)
            for slot, rows in logits.items():
                found[slot].append(rows)
            rest = {slot: left[slot][n:] for slot, n in pieces.items()}
            # Those that had to wait come first, so that the sequences of a longer list keep pace.
            left = {slot: ids for slot, ids in left.items() if slot not in rest} | rest
            left = {slot: ids for slot, ids in left.items() if ids.size}
        return {slot: np.concatenate(rows) for slot, rows in found.items()}

    def _checked(self, slot: int, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        if self.failed[slot]:
            raise StateError(f"an earlier inference or change of slot {slot} was interrupted; reset it")
        ids = checked_ids(tokens, self.info.n_vocab)
        if self.positions[slot] + ids.size > self.capacity:
            raise StateError(
                f"{ids.size} tokens at position {self.positions[slot]} of slot {slot} go past its {self.capacity} "
                "cells; reset it, or open the sessions with more cells"
            )
        return ids

    def _check_spare(self, stage: SlotStage, left: dict[int, np.ndarray]) -> None:
        """A model of fixed sizes pads, and padding needs one cell to go to."""
        if stage.sequences is None or self._spare({slot: ids.size for slot, ids in left.items()}) is not None:
            return
        raise StateError(
            f"with these tokens all {self.caches.cells} cells of all {self.caches.sequences} sequences are taken, and "
            "padding needs one; reset a sequence first"
        )

    def _spare(self, added: dict[int, int]) -> int | None:
        """A cell that holds nothing once so many tokens are added, the last of a sequence; None when all are taken."""
        cells = self.caches.cells
        after = [position + added.get(slot, 0) for slot, position in enumerate(self.positions)]
        return next(((slot + 1) * cells - 1 for slot, used in enumerate(after) if used < cells), None)

    def _pieces(self, stage: SlotStage, counts: dict[int, int]) -> dict[int, int]:
        """How many tokens of each sequence the next inference takes."""
        most = stage.tokens or self._step
        pieces = {slot: min(count, most) for slot, count in counts.items()}
        if stage.tokens is None and not (stage.knows_padding and self._spare(pieces) is not None):
            return dict.fromkeys(pieces, min(pieces.values()))
        return pieces

    def _infer(
        self, stage: SlotStage, pieces: dict[int, np.ndarray], wanted: dict[int, bool], all_logits: bool
    ) -> dict[int, np.ndarray]:
        """One batch, in as many inferences as its rows of logits take; the logits of the sequences that are wanted."""
        count = stage.tokens or max(ids.size for ids in pieces.values())
        others = [slot for slot in range(self.caches.sequences) if slot not in pieces]
        batch = self._batch(pieces, others[: (stage.sequences or 0) - len(pieces)] if stage.sequences else [], count)
        rows = {
            slot: number * count + (np.arange(ids.size) if all_logits else np.array([ids.size - 1]))
            for number, (slot, ids) in enumerate(pieces.items())
            if wanted[slot]
        }
        together = np.concatenate(list(rows.values())) if rows else np.zeros(1, np.int64)
        groups = (
            np.array_split(together, np.arange(stage.rows, together.size, stage.rows)) if stage.rows else [together]
        )
        self.caches.bind(stage.request, stage.carried)
        try:
            # Until the caches advance, an inference may be repeated: it reads what the one before it has read.
            logits = np.concatenate([stage.infer(batch, group) for group in groups])
        except RuntimeError as error:
            stands = ", ".join(f"{self.positions[slot]} of slot {slot}" for slot in pieces)
            raise DeviceError(f"inference failed at position {stands}: {one_line(error)}") from error
        for slot in pieces:
            self.failed[slot] = True  # until its position goes with the caches again, whatever interrupts it
        self.caches.advance()
        for slot, ids in pieces.items():
            self.positions[slot] += ids.size
            self.failed[slot] = False
        starts = np.cumsum([0, *(one.size for one in rows.values())])
        return {
            slot: logits[begin : begin + one.size] for begin, (slot, one) in zip(starts, rows.items(), strict=False)
        }

    def _batch(self, pieces: dict[int, np.ndarray], fillers: list[int], count: int) -> Batch:
        added = {slot: ids.size for slot, ids in pieces.items()}
        cells = max(self.positions[slot] + n for slot, n in added.items())
        cells = self.caches.cells if self._prefill.tokens is not None else cells
        window = self.info.windows[0] if self.info.windows else None
        none = np.zeros(0, np.int64)
        steps = []
        for slot, ids in [*pieces.items(), *((slot, none) for slot in fillers)]:
            padded = np.concatenate([ids, np.full(count - ids.size, self._pad)])
            steps.append(
                Step(
                    padded,
                    self.positions[slot],
                    none,
                    self.info.position_planes,
                    window,
                    real=ids.size,
                    cells=cells,
                    slot=slot,
                    first_cell=slot * self.caches.cells,
                )
            )
        spare = self._spare(added)
        return Batch(steps, cells, 0 if spare is None else spare, self.caches.sequences)


def _check_pair(prefill: SlotStage, decode: SlotStage) -> None:
    if (prefill.tokens is None) != (decode.tokens is None) or prefill.sequences != decode.sequences:
        raise StateError(
            f"one model takes {prefill.sequences or 'any number of'} sequences and the other "
            f"{decode.sequences or 'any number of'}, or only one has a fixed number of tokens; rewrite both alike"
        )
    if decode.tokens is not None and decode.tokens != 1:
        raise StateError(f"the decode model takes {decode.tokens} tokens of a sequence, wanted 1")
    if prefill.tokens is not None and not (prefill.knows_padding and decode.knows_padding):
        raise StateError(
            "the model has recurrent layers and no input chunk_valid_len, so padding would reach their states; run "
            "ChunkValidLen"
        )
