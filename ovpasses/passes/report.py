"""What a pass saw and did: candidates, rewrites, and a reason for everything it left alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

# Steps that say "nothing to do here", not "something is in the way".
SETTLED_STEPS = ("already", "kind")


@dataclass(frozen=True)
class Skip:
    """One candidate that was left as it is.

    Attributes:
        node: friendly name of the candidate (for a state, the tensor name its model calls it by).
        step: which condition of the pass's *Applies when* list ended the match; "already" when the
            candidate has the wanted form, "kind" when it is not the kind of thing the pass is about.
        reason: one line with what was found and what was wanted.
    """

    node: str
    step: str
    reason: str

    @property
    def settled(self) -> bool:
        """True when nothing is left to do for this candidate."""
        return self.step in SETTLED_STEPS

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}"


@dataclass
class PassReport:
    """The outcome of one run of one pass. ``candidates == rewritten + len(skipped)`` always holds.

    Attributes:
        name: class name of the pass.
        looked_for: what a candidate is, in words.
        rewritten: how many candidates were rewritten.
        sites: names of the rewritten candidates.
        skipped: the candidates left alone, each with its reason.
        notes: what else the pass did (inputs added or removed).
        seconds: wall time of the run.
        ops_before: number of operations in the model before the run.
        ops_after: number of operations in the model after it.
    """

    name: str
    looked_for: str = ""
    sites: list[str] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    ops_before: int = 0
    ops_after: int = 0

    @property
    def rewritten(self) -> int:
        return len(self.sites)

    @property
    def candidates(self) -> int:
        return len(self.sites) + len(self.skipped)

    @property
    def unsettled(self) -> list[Skip]:
        """Skips that leave the pass's goal unmet; what ``strict=True`` raises for."""
        return [skip for skip in self.skipped if not skip.settled]

    def skip(self, node: str, step: str, reason: str) -> None:
        """Record a candidate that is left alone."""
        self.skipped.append(Skip(node, step, reason))

    def done(self, node: str) -> None:
        """Record a candidate that was rewritten."""
        self.sites.append(node)

    def summary(self) -> str:
        """One line: what came of the run."""
        if not self.candidates:
            return f"nothing matched: no {self.looked_for} among {self.ops_before} ops"
        return f"{self.rewritten} of {self.candidates} rewritten"

    def skip_lines(self) -> list[str]:
        """Skips grouped by step and wording: count, step, the first one in full."""

        def key(skip: Skip) -> tuple[str, str]:
            return skip.step, "".join("#" if c.isdigit() else c for c in skip.reason)

        lines = []
        for (step, _), group in groupby(sorted(self.skipped, key=key), key=key):
            members = list(group)
            first = min(members, key=lambda skip: self.skipped.index(skip))
            lines.append(f"{len(members)}x {step}: {first}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "candidates": self.candidates,
            "rewritten": self.rewritten,
            "sites": list(self.sites),
            "skipped": [asdict(skip) for skip in self.skipped],
            "notes": list(self.notes),
            "summary": self.summary(),
            "seconds": self.seconds,
            "ops_before": self.ops_before,
            "ops_after": self.ops_after,
        }
