"""The stages of a command: timed, and shown as progress on a terminal."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from ovpasses.cli._progress import TerminalProgress
from ovpasses.runtime import ChunkedSession, Session


class Stages:
    """Times the stages of a command and shows progress on a terminal's stderr."""

    def __init__(self, figures: dict[str, float], quiet: bool) -> None:
        self.figures = figures
        self._progress = TerminalProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            quiet=quiet,
        )

    def __enter__(self) -> Stages:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def timed(self, name: str, work: Any) -> Any:
        task = self._progress.add_task(name, total=1)
        started = perf_counter()
        result = work()
        self.figures[f"{name}_s"] = perf_counter() - started
        self._progress.update(task, completed=1)
        return result

    def generate(
        self, session: Session | ChunkedSession, ids: np.ndarray, count: int, end_token: int | None
    ) -> tuple[list[int], list[np.ndarray]]:
        """Greedy generation; fills prefill and decode figures."""
        task = self._progress.add_task("prefill", total=int(ids.size))
        started = perf_counter()
        rows = [session.prefill(ids, progress=lambda done: self._progress.update(task, completed=done))]
        self._figure("prefill", int(ids.size), perf_counter() - started)
        task = self._progress.add_task("decode", total=count)
        generated: list[int] = []
        seconds = 0.0
        while len(generated) < count:
            token = int(rows[-1][-1].argmax())
            generated.append(token)
            if token == end_token or len(generated) == count:
                break
            started = perf_counter()
            rows.append(session.decode(token))
            seconds += perf_counter() - started
            self._progress.update(task, completed=len(generated))
        self._figure("decode", len(rows) - 1, seconds)
        return generated, rows

    def _figure(self, name: str, tokens: int, seconds: float) -> None:
        self.figures[f"{name}_tokens"] = tokens
        self.figures[f"{name}_s"] = seconds
        self.figures[f"{name}_tokens_per_s"] = tokens / seconds if seconds else 0.0
