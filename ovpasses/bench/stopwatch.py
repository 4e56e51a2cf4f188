"""Where the time of a bench goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter


class Stopwatch(dict[str, float]):
    """Seconds by stage.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        super().__init__()
        self.clock = clock

    @contextmanager
    def on(self, stage: str) -> Iterator[Callable[[], float]]:
        """Add what is done inside to a stage; gives the seconds since it began."""
        started = self.clock()
        yield lambda: self.clock() - started
        self[stage] = self.get(stage, 0.0) + self.clock() - started
