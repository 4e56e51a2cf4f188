"""Positions and masks, against llama.cpp's definitions written out by hand."""

from __future__ import annotations

import numpy as np

from ovpasses.runtime.inputs import Step, causal_mask, positions

NO = -np.inf


def step(count: int, start: int, planes: int = 1, window: int | None = None) -> Step:
    return Step(np.zeros(count, dtype=np.int64), start, np.array([count - 1]), planes, window)


def test_mask_of_a_first_prompt() -> None:
    assert causal_mask(step(3, 0)).tolist() == [[0, NO, NO], [0, 0, NO], [0, 0, 0]]


def test_mask_over_a_past() -> None:
    assert causal_mask(step(2, 2)).tolist() == [[0, 0, 0, NO], [0, 0, 0, 0]]


def test_window_counts_the_token_itself() -> None:
    assert causal_mask(step(3, 1), window=2).tolist() == [[0, 0, NO, NO], [NO, 0, 0, NO], [NO, NO, 0, 0]]


def test_every_token_sees_itself_and_window_minus_one_before() -> None:
    mask = causal_mask(step(200, 0), window=64)
    assert [(row == 0).sum() for row in mask] == [min(i + 1, 64) for i in range(200)]


def test_positions_of_text_under_mrope() -> None:
    assert positions(step(2, 5)).tolist() == [5, 6]
    assert positions(step(2, 5, planes=4)).tolist() == [5, 6, 5, 6, 5, 6, 0, 0]


def test_no_row_of_a_mask_is_empty() -> None:
    """Of padding past the last cell, too: a row of -inf alone is NaN after the Softmax."""
    padded = Step(np.zeros(4, np.int64), 14, np.zeros(1, np.int64), window=2, real=1, cells=16)
    for mask in (causal_mask(padded), causal_mask(padded, 2)):
        assert (mask == 0).any(axis=1).all()
    assert causal_mask(padded, 2)[0].tolist() == [NO] * 13 + [0, 0, NO]
