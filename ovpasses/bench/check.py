"""Whether all arms compute the same, before any of them is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ovpasses.bench.genai import GenAIRunner
from ovpasses.bench.session_runner import SessionRunner
from ovpasses.bench.settings import BenchError
from ovpasses.equivalence._metrics import distance

# Normalised mean squared error of logits. SmolLM2 Q4_1: 4e-7 with other passes, 5e-4 with keys and values in u8.
BOUND, NARROW_BOUND = 1e-2, 1e-1

# GenAI gives no logits, and reads the weights of a GGUF with its own rounding: its next token must be among the first
# arm's best 1%, or 10 where that is more. SmolLM2 Q4_1, random prompts: no. 3 to 16 of 49152.
BEST_SHARE, BEST = 0.01, 10

_ADVICE = "its speed would mean nothing, choose arms without it"


@dataclass(frozen=True)
class Agreement:
    """How far an arm is from the first one that gives logits.

    Attributes:
        rows: how many rows of logits were compared.
        nmse: of all of them; None of GenAI.
        bound: what it must not exceed.
        top1: share of rows whose best token is the same.
        rank: place of GenAI's next token among the first arm's, 1 the best; None of a session.
    """

    rows: int
    nmse: float | None = None
    bound: float | None = None
    top1: float | None = None
    rank: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.rank is not None:
            return f"its token is no. {self.rank} there"
        return f"{self.nmse:.0e}, {round((self.top1 or 0) * self.rows)} of {self.rows}"


def check_numbers(
    runners: Sequence[SessionRunner | GenAIRunner], prompt: np.ndarray, tokens: np.ndarray
) -> dict[str, Agreement]:
    """Run a prompt and some tokens after it on every arm; this warms them up too.

    Args:
        runners: at depth 0.
        prompt: token ids ``[T]``.
        tokens: token ids to decode after it.

    Returns:
        By name of the arm, all but the first; nothing when none gives logits.

    Raises:
        BenchError: an arm's numbers are others, so that its speed would mean nothing.
    """
    sessions = [runner for runner in runners if isinstance(runner, SessionRunner)]
    rows = [_finite(runner, runner.logits(prompt, tokens)) for runner in sessions]
    found = {
        runner.name: _agreement(sessions[0], rows[0], runner, own)
        for runner, own in zip(sessions[1:], rows[1:], strict=True)
    }
    for runner in runners:
        if isinstance(runner, GenAIRunner):
            token = runner.next_token(prompt)
            if sessions:
                found[runner.name] = _ranked(sessions[0], rows[0][0], runner, token)
    return found


def _finite(runner: SessionRunner, rows: np.ndarray) -> np.ndarray:
    if not np.isfinite(rows).all():
        raise BenchError(f"arm {runner.name}: its logits are not finite; {_ADVICE}")
    return rows


def _agreement(first: SessionRunner, wanted: np.ndarray, runner: SessionRunner, rows: np.ndarray) -> Agreement:
    if rows.shape != wanted.shape:
        raise BenchError(
            f"arm {runner.name}: logits {list(rows.shape)}, those of {first.name} are {list(wanted.shape)}; {_ADVICE}"
        )
    narrow = any(kind in runner.held for kind in ("u8", "i8", "u4", "i4"))
    bound = NARROW_BOUND if narrow else BOUND
    off = distance(wanted, rows, logits=True)
    if not off.nmse <= bound:
        where = f" with states in {runner.held}" if narrow else ""
        raise BenchError(
            f"arm {runner.name} ({runner.arm}): its logits are {off.nmse:.1e} NMSE from those of {first.name}, "
            f"wanted at most {bound:g}{where}; {_ADVICE}"
        )
    return Agreement(len(rows), off.nmse, bound, off.top1)


def _ranked(first: SessionRunner, wanted: np.ndarray, runner: GenAIRunner, token: int) -> Agreement:
    rank, best = 1 + int((wanted > wanted[token]).sum()), max(BEST, int(BEST_SHARE * wanted.size))
    if rank > best:
        raise BenchError(
            f"arm {runner.name}: goes on with token {token}, which is no. {rank} of {wanted.size} of {first.name}, "
            f"wanted one of the first {best}; {_ADVICE}"
        )
    return Agreement(1, rank=rank)
