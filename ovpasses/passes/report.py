"""What a pass saw and did: candidates, rewrites, and a reason for everything it left alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ovpasses._tables import alike, html_table

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

    def near_misses(self) -> list[tuple[Skip, int]]:
        """What ended the match of candidates that could have been rewritten: the first of each kind, and how many.

        Skips are of one kind when step and wording are the same but for numbers; the most frequent kind comes first.
        """
        return sorted(_kinds(self.unsettled), key=lambda kind: -kind[1])

    def settled(self) -> list[tuple[Skip, int]]:
        """The candidates that need nothing: the first of each kind, and how many."""
        return _kinds([skip for skip in self.skipped if skip.settled])

    def skip_lines(self) -> list[str]:
        """Skips grouped by step and wording: count, step, the first one in full."""
        kinds = sorted(_kinds(self.skipped), key=lambda kind: (kind[0].step, kind[0].reason))
        return [f"{count}x {first.step}: {first}" for first, count in kinds]

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

    def _repr_html_(self) -> str:
        rows = [["rewritten", site, ""] for site in self.sites]
        rows += [[skip.step, skip.node, skip.reason] for skip in self.skipped]
        caption = "\n".join([f"{self.name}: {self.summary()}", *self.notes])
        return html_table(caption, ("outcome or step", "candidate", "reason"), rows)


def _kinds(skips: list[Skip]) -> list[tuple[Skip, int]]:
    return [(group[0], len(group)) for group in alike(skips, lambda skip: f"{skip.step}: {skip.reason}")]
