"""How far two arrays are from each other."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Distance:
    """Of one array from another, over all elements.

    Attributes:
        max_abs: largest absolute difference.
        max_rel: the same, relative to the largest value of the first.
        nmse: squared difference over the squared first, as llama.cpp's tests normalise it.
        cosine: of the angle between the two; 1 when both are zero.
        top1: share of rows whose largest element is at the same place; None of what is no logits.
        kl: mean Kullback-Leibler divergence of the rows' softmax, in nats; None of what is no logits.
        at: index of the largest difference.
        values: both values there.
    """

    max_abs: float
    max_rel: float
    nmse: float
    cosine: float
    top1: float | None
    kl: float | None
    at: tuple[int, ...]
    values: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def distance(a: np.ndarray, b: np.ndarray, logits: bool = False) -> Distance:
    """How far ``b`` is from ``a``; both of one shape, with at least one element, and finite.

    Args:
        a, b: any floats or integers; computed in f64.
        logits: rows ``[T, vocab]`` of logits: top-1 agreement and KL are given too.
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    off = np.abs(x - y)
    at = np.unravel_index(int(off.argmax()), off.shape)
    scale, square, error = float(np.abs(x).max()), float((x**2).sum()), float((off**2).sum())
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    return Distance(
        max_abs=float(off.max()),
        max_rel=_relative(float(off.max()), scale),
        nmse=_relative(error, square),
        cosine=float((x * y).sum()) / lengths if lengths else float(not off.any()),
        top1=float((x.argmax(-1) == y.argmax(-1)).mean()) if logits else None,
        kl=_divergence(x, y) if logits else None,
        at=tuple(int(n) for n in at),
        values=(float(x[at]), float(y[at])),
    )


def _relative(error: float, size: float) -> float:
    """Of what is all zero, any error is one of 1."""
    return error / size if size else float(error > 0)


def _divergence(x: np.ndarray, y: np.ndarray) -> float:
    p, q = _log_softmax(x), _log_softmax(y)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found
