"""The outcome of a numeric comparison."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field
from math import sqrt
from typing import Any

from rich.console import Console
from rich.table import Table

from ovpasses._tables import html_table
from ovpasses.equivalence._metrics import Distance

COLUMNS = ("step", "what", "NMSE", "max abs", "max rel", "cosine", "top-1", "KL", "same")

# States per step in a table: all that differ, and of the others the furthest.
MOST_WRONG, MOST_RIGHT = 8, 1

# How many times the tolerated root mean square error a single element may be off, relative to the largest one. Rounding
# errors of a million elements reach 5 times their root mean square; an element that is wrong is off by its own size.
ELEMENT = 8


@dataclass(frozen=True)
class Tolerance:
    """Normalised mean squared errors up to which two arrays pass for the same.

    Attributes:
        output, state: of outputs, and of states and caches.
        reason: what they follow from.
    """

    output: float
    state: float
    reason: str

    def allows(self, kind: str, found: Distance) -> bool:
        """Whether an output or state is close enough, as a whole and in every element."""
        limit = self.output if kind == "output" else self.state
        return found.nmse <= limit and found.max_rel <= ELEMENT * sqrt(limit)

    def __str__(self) -> str:
        if self.output == self.state:
            return f"tolerance: NMSE {self.output:.1e} ({self.reason})"
        return f"tolerance: NMSE {self.output:.1e} for outputs, {self.state:.1e} for states ({self.reason})"


@dataclass(frozen=True)
class Comparison:
    """One output or state after one step.

    Attributes:
        step: number of the step, from 1.
        kind: "output" or "state".
        name: of the output; of a state what it is, as "key of layer 0".
        distance: all figures; of a state ``distance.at`` is [token, element].
        same: within the tolerance.
    """

    step: int
    name: str
    kind: str
    distance: Distance
    same: bool

    def __str__(self) -> str:
        d = self.distance
        return (
            f"{self.kind} {self.name} after step {self.step}: NMSE {d.nmse:.1e}, largest difference {d.max_abs:.3g} "
            f"at {list(d.at)} ({d.values[0]:.6g} against {d.values[1]:.6g})"
        )

    def cells(self) -> list[str]:
        """A row of the table."""
        d = self.distance
        top, kl = ("-" if v is None else f"{v:.3g}" for v in (d.top1, d.kl))
        figures = (f"{d.nmse:.1e}", f"{d.max_abs:.2e}", f"{d.max_rel:.1e}", f"{d.cosine:.6f}", top, kl)
        return [str(self.step), f"{self.kind} {self.name}", *figures, "yes" if self.same else "NO"]


@dataclass
class EquivalenceReport:
    """The outcome of a numeric comparison; true when every output and state agrees at every step.

    Attributes:
        a, b: what was compared.
        tolerance: up to where arrays pass for the same.
        comparisons: every output and state after every step.
        differences: what could not be compared, such as a state that only one has.
        notes: what the comparison could not show, such as a sliding window that no step has passed.
    """

    a: str
    b: str
    tolerance: Tolerance
    comparisons: list[Comparison] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """All there is to say but for the table, the summary last."""
        return [*self.differences[1:], *(f"note: {note}" for note in self.notes), self.summary]

    @property
    def equivalent(self) -> bool:
        """Whether the two models gave the same."""
        return not self.differences and all(c.same for c in self.comparisons)

    def __bool__(self) -> bool:
        return self.equivalent

    @property
    def nmse(self) -> float:
        """The tolerance for outputs."""
        return self.tolerance.output

    @property
    def first(self) -> Comparison | None:
        """The first that differs: of the earliest step, outputs before states; None when none does."""
        return next((c for c in self.comparisons if not c.same), None)

    @property
    def summary(self) -> str:
        """One line: the first difference, else the largest error."""
        if self.differences:
            return f"{self.a} and {self.b} differ: {self.differences[0]}"
        if self.first is not None:
            return f"{self.a} and {self.b} differ in {self.first}; {self.tolerance}"
        worst = max(self.comparisons, key=lambda c: c.distance.nmse)
        return f"{self.a} and {self.b} are equivalent; worst is {worst}; {self.tolerance}"

    def table(self) -> Table:
        """Per step its outputs, and the states that differ or are furthest off."""
        table = Table(*COLUMNS)
        for row in self._rows():
            table.add_row(*row)
        return table

    def _rows(self) -> list[list[str]]:
        rows = []
        for step in sorted({c.step for c in self.comparisons}):
            mine = [c for c in self.comparisons if c.step == step]
            states = sorted((c for c in mine if c.kind == "state"), key=lambda c: -c.distance.nmse)
            shown = [c for c in mine if c.kind == "output"]
            shown += [c for c in states if not c.same][:MOST_WRONG] + [c for c in states if c.same][:MOST_RIGHT]
            rows += [c.cells() for c in shown]
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "equivalent": self.equivalent,
            "a": self.a,
            "b": self.b,
            "tolerance": asdict(self.tolerance),
            "summary": self.summary,
            "differences": list(self.differences),
            "notes": list(self.notes),
            "comparisons": [
                {"step": c.step, "kind": c.kind, "name": c.name, "same": c.same, **c.distance.to_dict()}
                for c in self.comparisons
            ],
        }

    def __str__(self) -> str:
        out = io.StringIO()
        if self.comparisons:
            Console(file=out, width=120, color_system=None).print(self.table())
        return "\n".join([*out.getvalue().splitlines(), *self.lines])

    def _repr_html_(self) -> str:
        return html_table("\n".join([self.summary, *self.lines[:-1]]), COLUMNS, self._rows())
