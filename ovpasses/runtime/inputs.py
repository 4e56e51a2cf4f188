"""The inputs of ggml-exported graphs, made from tokens and positions: one function per input name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Roles, in ggml's names and in those of optimum exports.
TOKEN_INPUTS = ("inp_tokens", "input_ids")
POSITION_INPUTS = ("inp_pos", "position_ids")
MASK_INPUTS = ("self_kq_mask", "self_kq_mask_swa")
VALID_INPUT = "chunk_valid_len"
ROW_INPUTS = ("inp_out_ids", "out_ids")


@dataclass(frozen=True)
class Step:
    """One inference: ``tokens`` at positions ``start ..``, over a past of ``start`` tokens.

    Attributes:
        tokens: token ids, int64 ``[T]``.
        start: position of the first of them, in tokens.
        rows: which of the T tokens get logits, int64 ``[R]``.
        planes: position planes of the model.
        window: sliding window in tokens, for the inputs that need it.
        real: how many of the T tokens are real; those after them pad a chunk. None: all; 0: the sequence only fills a
            place in a batch.
        cells: cells of caches of a fixed size, which the masks then cover; None: the past and the T tokens.
        given: positions of the real tokens by plane, int64 ``[planes, real]``; None: those of text.
        slot: where the sequence is among those that the caches hold.
        first_cell: the sequence's first cell, where the cells of all sequences are counted as one row.
        hidden: further cells that masks cover and nobody sees, as llama.cpp pads its masks; for graphs that cut them.
    """

    tokens: np.ndarray
    start: int
    rows: np.ndarray
    planes: int = 1
    window: int | None = None
    real: int | None = None
    cells: int | None = None
    given: np.ndarray | None = None
    slot: int = 0
    first_cell: int = 0
    hidden: int = 0

    @property
    def count(self) -> int:
        return int(self.tokens.size)

    @property
    def positions(self) -> np.ndarray:
        return np.arange(self.start, self.start + self.count, dtype=np.int64)


def causal_mask(step: Step, window: int | None = None) -> np.ndarray:
    """Additive mask f32 ``[T, start + T + hidden]`` or ``[T, cells]``: 0 where a token may look, -inf elsewhere.

    No real token sees padding, as that comes after it; padding sees what comes before it, or before the last cell when
    it is past that, so no row is all -inf.
    A token at position p sees positions q <= p; with a window also p - q < window (llama.cpp's standard
    sliding window, ``LLAMA_SWA_TYPE_STANDARD``).
    """
    key = np.arange(step.cells or step.start + step.count)[None, :]
    query = np.minimum(step.positions, key.size - 1)[:, None]
    seen = key <= query
    if window is not None:
        seen &= query - key < window
    mask = np.where(seen, np.float32(0), np.float32(-np.inf))
    return np.pad(mask, ((0, 0), (0, step.hidden)), constant_values=-np.inf)


def positions(step: Step) -> np.ndarray:
    """``[planes * T]``, plane by plane. For text under M-RoPE: t, h, w hold the position, the fourth 0.

    Positions of padding go on after the last real one, in each plane on its own.
    """
    if step.given is not None:
        return np.concatenate([_padded(plane, step.count) for plane in step.given])
    if step.planes == 1:
        return step.positions
    spatial = [step.positions] * (step.planes - 1)
    return np.concatenate([*spatial, np.zeros_like(step.positions)])


def _padded(plane: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([plane, plane[-1] + np.arange(1, count - plane.size + 1)])


def _full_mask(step: Step) -> np.ndarray:
    return causal_mask(step)


def _sliding_mask(step: Step) -> np.ndarray:
    return causal_mask(step, step.window)


# Every input a session can make, by role: its tensor name, or what ``input_roles`` finds. The session
# gives it the port's rank and element type.
MAKERS: dict[str, Callable[[Step], np.ndarray]] = {
    "inp_tokens": lambda step: step.tokens,
    "input_ids": lambda step: step.tokens,
    "inp_pos": positions,
    "position_ids": positions,
    "inp_out_ids": lambda step: step.rows,
    "out_ids": lambda step: step.rows,
    "self_kq_mask": _full_mask,
    "self_kq_mask_swa": _sliding_mask,
    "attention_mask": lambda step: np.ones(step.start + step.count, dtype=np.int64),
    "token_len_per_seq": lambda step: np.array([step.count]),
    "beam_idx": lambda step: np.array([0]),
    "chunk_valid_len": lambda step: np.array([step.count if step.real is None else step.real]),
    # Caches outside the model: cell i holds position i, and attention sees all cells that hold something.
    "kv_write_idx": lambda step: step.first_cell + step.positions,
    "inp_kv_idx": lambda step: step.positions,
    "attention_size": lambda step: np.array([step.start + step.count]),
    "n_seq_active": lambda step: np.array([1]),
    "seq_active": lambda step: np.array([step.slot]),
    "seq_active_start": lambda step: np.array([step.slot]),
    "seq_active_end": lambda step: np.array([step.slot + 1]),
    # Recurrent states outside the model: a sequence reads and writes one slot, and clears it when it starts.
    "rs_s_copy": lambda step: np.array([step.slot]),
    "s_copy_active_slot_len": lambda step: np.array([1]),
    "cache_rs_reset_idx": lambda step: np.array([step.slot]),
    "cache_rs_reset_len": lambda step: np.array([int(step.start == 0)]),
    "rs_slot_begin": lambda step: np.array([step.slot]),
    "rs_remainder_begin": lambda step: np.array([step.slot + 1]),
    "rs_src_begin": lambda step: np.array([step.count]),
}
