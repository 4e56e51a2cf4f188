"""What a bench found: a table for people, plain data for machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ovpasses.bench.check import Agreement
from ovpasses.bench.machine import Machine
from ovpasses.bench.samples import DECODE, PREFILL, Series
from ovpasses.bench.settings import Settings

OWN = "ovpasses"


@dataclass(frozen=True)
class ArmFacts:
    """What an arm is.

    Attributes:
        name: in the series.
        program: that runs it.
        what: passes and configuration.
        passes: how many rewrites each pass made.
        held: the types that its states are held in, or that were asked for.
        threads: that it runs with; None when not known.
        load_s: seconds to rewrite and compile.
    """

    name: str
    program: str
    what: str
    passes: dict[str, int] = field(default_factory=dict)
    held: str = ""
    threads: int | None = None
    load_s: float | None = None


@dataclass(frozen=True)
class BenchReport:
    """All that a bench found.

    Attributes:
        model: its file.
        architecture: "" when not known.
        machine: where.
        settings: what was run; depths are those that fit.
        arms: what they are, the one that the others are compared with first.
        agreement: how near their numbers are to those of the first session, by name.
        series: the samples.
        notes: what is not as asked, one line each.
        seconds: what the stages took.
    """

    model: str
    architecture: str
    machine: Machine
    settings: Settings
    arms: list[ArmFacts]
    agreement: dict[str, Agreement]
    series: list[Series]
    notes: list[str]
    seconds: dict[str, float]

    def of(self, arm: str, depth: int, measure: str) -> Series:
        """One series.

        Raises:
            KeyError: there is none.
        """
        for series in self.series:
            if (series.arm, series.depth, series.measure) == (arm, depth, measure):
                return series
        raise KeyError((arm, depth, measure))

    def times_as_fast(self, series: Series) -> float | None:
        """Against the first arm at the same depth, see :meth:`Series.times_as_fast`."""
        return series.times_as_fast(self.of(self.arms[0].name, series.depth, series.measure))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, every sample included."""
        return {
            "model": self.model,
            "architecture": self.architecture,
            "machine": self.machine.to_dict(),
            "settings": asdict(self.settings),
            "arms": [asdict(arm) for arm in self.arms],
            "agreement": {name: one.to_dict() for name, one in self.agreement.items()},
            "results": [{**one.to_dict(), "times_as_fast": self.times_as_fast(one)} for one in self.series],
            "notes": self.notes,
            "seconds": self.seconds,
        }

    def table(self) -> Group:
        """Arms, figures and notes, for ``rich``."""
        return Group(*self._parts())

    def _parts(self) -> Iterator[Table | Text]:
        settings, machine = self.settings, self.machine
        yield Text(f"{self.architecture} {self.model}".strip())
        yield Text(f"{machine.processor}, {machine.cores} cores, {machine.system}, openvino {machine.release}")
        yield self._arms()
        yield self._figures()
        yield Text(
            f"prefill of {settings.chunk} tokens, {settings.step} per inference; decode of {settings.tokens} tokens "
            f"per round, to at most {settings.rounds * (settings.tokens + 1)} past the depth. Medians, with the least "
            f"and the most; x: times as fast as {self.arms[0].name}, median over the rounds"
            f"{', ~ of medians of other rounds' if any(not one.paired for one in self.series) else ''}."
        )
        for note in self.notes:
            yield Text(f"note: {note}")
        longest = sorted(self.seconds.items(), key=lambda stage: -stage[1])[:4]
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in longest)
        yield Text(f"took {sum(self.seconds.values()):.0f} s, most of it: {stages}")

    def _arms(self) -> Table:
        table = Table("arm", "is", "rewritten", "KV in", "threads", "logits: NMSE, top token")
        for arm in self.arms:
            rewrites = ", ".join(f"{name} {count}" for name, count in arm.passes.items() if count)
            what = arm.what if arm.program == OWN else f"{arm.program}: {arm.what}"
            near = str(self.agreement.get(arm.name, "-"))
            threads = "-" if arm.threads is None else str(arm.threads)
            table.add_row(*(Text(cell) for cell in (arm.name, what, rewrites or "-", arm.held or "-", threads, near)))
        return table

    def _figures(self) -> Table:
        table = Table("depth", "arm")
        for column in ("prefill, tokens/s", "x", "decode, ms per token", "tokens/s", "x", "rounds"):
            table.add_column(column, justify="right")
        for depth in self.settings.depths:
            for arm in self.arms:
                prefill, decode = self.of(arm.name, depth, PREFILL), self.of(arm.name, depth, DECODE)
                table.add_row(
                    str(depth),
                    arm.name,
                    _spread([prefill.tokens / second for second in prefill.seconds], prefill.rate, 0),
                    self._ratio(prefill),
                    _spread([1e3 * second for second in decode.seconds], 1e3 * decode.median, 1),
                    f"{decode.rate:.1f}",
                    self._ratio(decode),
                    f"{len(prefill.rounds)}, {len(decode.rounds)}",
                    end_section=arm is self.arms[-1],
                )
        return table

    def _ratio(self, series: Series) -> str:
        ratio = self.times_as_fast(series)
        return "-" if ratio is None else f"{'' if series.paired else '~'}{ratio:.2f}"


def _spread(values: list[float], middle: float, digits: int) -> str:
    low, high = min(values), max(values)
    if len(values) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
