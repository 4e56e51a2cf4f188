"""The timing itself: at every depth all arms take turns, so that what drifts on a machine drifts for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ovpasses.bench.runner import Runner
from ovpasses.bench.samples import DECODE, PREFILL, Series
from ovpasses.bench.settings import FEWEST_ROUNDS, Settings
from ovpasses.bench.stopwatch import Stopwatch

Progress = Callable[[str], None]

# Of a runner and the number of the round: seconds of each sample, None when the runner has none to give.
Sample = Callable[[Runner, int], list[float] | None]


class Tokens:
    """Seeded token ids: one prefix for all depths, and a prompt of its own for every round.

    Args:
        settings: lengths and seed.
        vocabulary: number of ids.
    """

    def __init__(self, settings: Settings, vocabulary: int) -> None:
        self._settings, self._vocabulary = settings, vocabulary
        self.prefix = self._ids(max(settings.depths), 0)
        self.warm_up = self._ids(settings.chunk, 3)

    def prompt(self, depth: int, number: int) -> np.ndarray:
        """The prompt that all arms prefill in one round, int64 ``[chunk]``: GenAI would know one that it has seen."""
        return self._ids(self._settings.chunk, 1, depth, number)

    def steps(self, number: int) -> np.ndarray:
        """The tokens that all arms decode in one round, the one that goes untimed first."""
        return self._ids(self._settings.tokens + 1, 2, number)

    def _ids(self, count: int, *what: int) -> np.ndarray:
        random = np.random.default_rng((self._settings.seed, *what))
        return random.integers(0, self._vocabulary, count, dtype=np.int64)


def measure(
    runners: Sequence[Runner],
    settings: Settings,
    tokens: Tokens,
    spent: Stopwatch,
    progress: Progress = lambda text: None,
) -> list[Series]:
    """Time prefill and decode of all arms at all depths.

    Args:
        runners: at depth 0, warmed up.
        settings: depths that fit into the context.
        tokens: what is run.
        spent: what the stages of each depth take is added to it.
        progress: told what is being done.

    Returns:
        A series for each arm, depth and measure.
    """
    found: list[Series] = []
    order = list(runners)
    for index, depth in enumerate(settings.depths):
        where = f"depth {depth} ({index + 1} of {len(settings.depths)})"
        there: list[Runner] = []
        with spent.on(f"depth {depth} reach"):
            for runner in order:
                progress(f"{where}: {runner.name} gets there")
                runner.reach(tokens.prefix[:depth], there)
                there.append(runner)
        for name, (size, sample) in _samplers(settings, tokens, depth).items():
            told = partial(_told, progress, f"{where}: {name}")
            with spent.on(f"depth {depth} {name}") as took:
                rounds = _rounds(runners, settings, sample, told, took)
            found += [Series(arm, depth, name, size, samples) for arm, samples in rounds.items()]
        # Whoever prefills fastest gets to the next depth first, where others can take its states.
        prefills = {series.arm: series.median for series in found if series.measure == PREFILL}
        order.sort(key=lambda runner: prefills[runner.name])
    return found


def _told(progress: Progress, where: str, text: str) -> None:
    progress(f"{where}, {text}")


def _samplers(settings: Settings, tokens: Tokens, depth: int) -> dict[str, tuple[int, Sample]]:
    """By measure: of how many tokens a sample is, and what takes the samples of a round."""
    return {
        DECODE: (1, lambda runner, number: runner.decode(tokens.steps(number))),
        PREFILL: (settings.chunk, lambda runner, number: _prefill(runner, tokens.prompt(depth, number), number)),
    }


def _rounds(
    runners: Sequence[Runner],
    settings: Settings,
    sample: Sample,
    progress: Progress,
    took: Callable[[], float],
) -> dict[str, dict[int, list[float]]]:
    """Samples by arm and round; every other round in the reverse order, so that nobody always follows the same one."""
    found: dict[str, dict[int, list[float]]] = {runner.name: {} for runner in runners}
    for number in range(settings.rounds):
        if number >= FEWEST_ROUNDS and took() >= settings.seconds:
            break
        for runner in runners if number % 2 == 0 else reversed(runners):
            progress(f"round {number + 1} of {settings.rounds}, {runner.name}")
            samples = sample(runner, number)
            if samples is not None:
                found[runner.name][number] = samples
    return found


def _prefill(runner: Runner, ids: np.ndarray, number: int) -> list[float] | None:
    """A sample; of an arm that cannot go back only the first, where decoding has left it."""
    if not runner.back() and number:
        return None
    return [runner.prefill(ids)]
