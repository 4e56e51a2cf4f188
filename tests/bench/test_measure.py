"""Who is timed when: runners that only write down what they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ovpasses.bench.measure import Tokens, measure
from ovpasses.bench.runner import Runner
from ovpasses.bench.samples import DECODE, PREFILL, Series
from ovpasses.bench.settings import Settings
from ovpasses.bench.stopwatch import Stopwatch

Call = tuple[object, ...]


@dataclass
class Recorder:
    """Takes ``cost`` seconds of a clock of its own for everything."""

    name: str
    log: list[Call]
    clock: list[float]
    cost: float = 1.0
    stuck: str = ""
    ids: list[bytes] = field(default_factory=list)

    def reach(self, prefix: np.ndarray, there: Sequence[Runner]) -> None:
        self.log.append((self.name, "reach", prefix.size, [runner.name for runner in there]))
        self.ids.append(prefix.tobytes())

    def back(self) -> bool:
        return not self.stuck

    def prefill(self, ids: np.ndarray) -> float:
        self.log.append((self.name, "prefill", ids.size))
        return self._spend(ids)

    def decode(self, ids: np.ndarray) -> list[float]:
        self.log.append((self.name, "decode", ids.size))
        return [self._spend(ids) / 8 for _ in ids[1:]]

    def _spend(self, ids: np.ndarray) -> float:
        self.ids.append(ids.tobytes())
        self.clock[0] += self.cost
        return self.cost


def run(settings: Settings, **stuck: str) -> tuple[list[Series], list[Call], dict[str, Recorder]]:
    log: list[Call] = []
    clock = [0.0]
    costs = {"a": 3.0, "b": 1.0, "c": 2.0}
    runners = {name: Recorder(name, log, clock, cost, stuck.get(name, "")) for name, cost in costs.items()}
    found = measure(list(runners.values()), settings, Tokens(settings, 100), Stopwatch(lambda: clock[0]))
    return found, log, runners


def names(log: list[Call], what: str) -> str:
    return "".join(str(call[0]) for call in log if call[1] == what)


def of(found: list[Series], arm: str, depth: int, kind: str) -> Series:
    return next(one for one in found if (one.arm, one.depth, one.measure) == (arm, depth, kind))


SMALL = Settings(depths=(0, 6), chunk=4, tokens=2, rounds=3, seconds=1e9)


def test_arms_take_turns_in_an_order_that_is_turned_round() -> None:
    _, log, _ = run(SMALL)
    assert names(log, "decode") == "abccbaabc" * 2
    assert names(log, "prefill") == "abccbaabc" * 2
    kinds = [str(call[1]) for call in log]
    assert kinds == (["reach"] * 3 + ["decode"] * 9 + ["prefill"] * 9) * 2
    assert {call[2] for call in log if call[1] == "decode"} == {3}  # one more than is timed


def test_the_fastest_gets_to_the_next_depth_first() -> None:
    _, log, _ = run(SMALL)
    assert [call for call in log if call[1] == "reach"] == [
        ("a", "reach", 0, []),
        ("b", "reach", 0, ["a"]),
        ("c", "reach", 0, ["a", "b"]),
        ("b", "reach", 6, []),
        ("c", "reach", 6, ["b"]),
        ("a", "reach", 6, ["b", "c"]),
    ]


def test_all_arms_run_the_same_tokens_and_every_prompt_is_new() -> None:
    _, _, runners = run(SMALL)
    assert runners["a"].ids == runners["b"].ids == runners["c"].ids
    prompts = [ids for ids in runners["a"].ids if len(ids) == 4 * 8]
    assert len(prompts) == len(set(prompts)) == 6


def test_series_hold_every_sample() -> None:
    found, _, _ = run(SMALL)
    assert len(found) == 3 * 2 * 2
    prefill, decode = of(found, "c", 6, PREFILL), of(found, "c", 6, DECODE)
    assert (prefill.tokens, prefill.rounds) == (4, {0: [2.0], 1: [2.0], 2: [2.0]})
    assert (decode.tokens, decode.rounds) == (1, {0: [0.25] * 2, 1: [0.25] * 2, 2: [0.25] * 2})


def test_no_round_begins_when_the_time_is_up_but_two_always_run() -> None:
    def rounds(seconds: float) -> int:
        found, _, _ = run(Settings(depths=(0,), chunk=4, tokens=2, rounds=5, seconds=seconds))
        return len(of(found, "a", 0, PREFILL).rounds)

    assert [rounds(seconds) for seconds in (0, 12, 13, 1e9)] == [2, 2, 3, 5]  # a round of prefills takes 6 s


def test_who_cannot_go_back_prefills_once() -> None:
    found, log, _ = run(SMALL, b="its states are u8")
    assert names(log, "prefill") == "abccaac" * 2
    assert of(found, "b", 6, PREFILL).rounds == {0: [1.0]}
    assert len(of(found, "b", 6, DECODE).rounds) == 3


def test_progress_says_where_it_is() -> None:
    lines: list[str] = []
    say: Callable[[str], None] = lines.append
    log: list[Call] = []
    runner = Recorder("a", log, [0.0])
    measure([runner], SMALL, Tokens(SMALL, 9), Stopwatch(), say)
    assert lines[0] == "depth 0 (1 of 2): a gets there"
    assert "depth 6 (2 of 2): prefill, round 3 of 3, a" in lines


def test_where_the_time_goes_is_added_up() -> None:
    clock = [0.0]
    runner = Recorder("a", [], clock, cost=2.0)
    spent = Stopwatch(lambda: clock[0])
    measure([runner], SMALL, Tokens(SMALL, 9), spent)
    stages = [
        "depth 0 reach",
        "depth 0 decode",
        "depth 0 prefill",
        "depth 6 reach",
        "depth 6 decode",
        "depth 6 prefill",
    ]
    assert dict(spent) == dict(zip(stages, [0.0, 12.0, 6.0] * 2, strict=True))
