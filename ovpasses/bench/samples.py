"""What was timed, and what comes of it: medians, spread, ratios of the same rounds."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True)
class Series:
    """All samples of one measure of one arm at one depth.

    Attributes:
        arm: name.
        depth: tokens in the cache before.
        measure: "prefill" or "decode".
        tokens: that one sample is of.
        rounds: seconds of each sample, by number of the round.
        paired: whether round n of other arms was run right before or after round n of this one.
    """

    arm: str
    depth: int
    measure: str
    tokens: int
    rounds: dict[int, list[float]]
    paired: bool = True

    @property
    def seconds(self) -> list[float]:
        """All samples."""
        return [second for round_ in self.rounds.values() for second in round_]

    @property
    def median(self) -> float:
        """Of all samples, in seconds."""
        return median(self.seconds)

    @property
    def rate(self) -> float:
        """Tokens per second, of the median."""
        return self.tokens / self.median

    def times_as_fast(self, base: Series) -> float | None:
        """Median over the rounds that both have of the ratio of their medians; over all samples when not paired.

        Args:
            base: of the same measure and depth.

        Returns:
            Above 1 when this is faster; None when they have no round in common.
        """
        if not (self.paired and base.paired):
            return self.rate / base.rate
        both = self.rounds.keys() & base.rounds.keys()
        ratios = [self.tokens / median(self.rounds[n]) / (base.tokens / median(base.rounds[n])) for n in both]
        return median(ratios) if ratios else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; times are seconds per sample, rates tokens per second."""
        seconds = self.seconds
        return {
            "arm": self.arm,
            "depth": self.depth,
            "measure": self.measure,
            "tokens": self.tokens,
            "paired": self.paired,
            "rounds": [{"round": number, "seconds": samples} for number, samples in self.rounds.items()],
            "median_s": self.median,
            "min_s": min(seconds),
            "max_s": max(seconds),
            "tokens_per_s": self.rate,
        }
