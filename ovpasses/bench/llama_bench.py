"""llama.cpp on the same GGUF: its own ``llama-bench`` is run, and what it prints is read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovpasses.bench.samples import DECODE, PREFILL, Series
from ovpasses.bench.settings import BenchError, Settings
from ovpasses.errors import one_line

NAME = "llama.cpp"

_ABOUT = {"backends": "backend", "build_commit": "build"}


@dataclass(frozen=True)
class LlamaBench:
    """What llama-bench found.

    Attributes:
        series: as those of the arms, but of its own rounds.
        about: backend and build, as it says.
        held: types of keys and values.
        threads: that it ran with; None when it does not say.
    """

    series: list[Series]
    about: str
    held: str
    threads: int | None


def run_llama_bench(binary: Path, model: Path, settings: Settings, threads: int | None) -> LlamaBench:
    """Run ``llama-bench`` with the same prompt length, tokens, depths and rounds.

    Args:
        binary: the program.
        model: the GGUF.
        settings: depths that fit into the context.
        threads: for ``-t``; None leaves it to the program.

    Raises:
        BenchError: it is not there, fails, or prints no JSON with what was asked for.
    """
    command = [str(binary), "-m", str(model), "-o", "json", "-p", str(settings.chunk), "-n", str(settings.tokens)]
    command += ["-d", ",".join(map(str, settings.depths)), "-r", str(settings.rounds)]
    command += [] if threads is None else ["-t", str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BenchError(f"{binary}: cannot be run as llama-bench ({error.strerror or one_line(error)})") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].strip() if said else "it says nothing"
        raise BenchError(f"{binary}: ended with exit code {done.returncode}, wanted 0: {reason}")
    return parse(done.stdout, settings, str(binary))


def parse(text: str, settings: Settings, where: str) -> LlamaBench:
    """Series from llama-bench's JSON: a list of tests, each with its samples in tokens per second.

    Raises:
        BenchError: it is no such list, or a test is missing.
    """
    try:
        tests = [(test, *_kind(test)) for test in json.loads(text)]
        series = [_series(test, measure, size) for test, measure, size in tests if measure]
        first = next(test for test, measure, _ in tests if measure)
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise BenchError(f"{where}: no JSON of llama-bench ({type(error).__name__}: {one_line(error)})") from error
    found = {(one.measure, one.depth) for one in series}
    for wanted in _wanted(settings):
        if wanted not in found:
            raise BenchError(f"{where}: no {wanted[0]} at depth {wanted[1]} among its {len(series)} tests")
    about = ", ".join(f"{word} {first[key]}" for key, word in _ABOUT.items() if key in first)
    held = ", ".join(sorted({str(first[key]) for key in ("type_k", "type_v") if key in first}))
    return LlamaBench(series, about, held, first.get("n_threads"))


def _wanted(settings: Settings) -> Iterator[tuple[str, int]]:
    for depth in settings.depths:
        yield from ((PREFILL, depth), (DECODE, depth))


def _kind(test: dict[str, Any]) -> tuple[str, int]:
    """Which measure a test is of and how many tokens; none of one that does both."""
    prompt, generated = int(test["n_prompt"]), int(test["n_gen"])
    if prompt and generated:
        return "", 0
    return (PREFILL, prompt) if prompt else (DECODE, generated)


def _series(test: dict[str, Any], measure: str, tokens: int) -> Series:
    """Its samples are of whole repetitions: of all tokens of one, so a decoded token takes one over the rate."""
    size = tokens if measure == PREFILL else 1
    rates = [float(rate) for rate in test["samples_ts"]] or [float(test["avg_ts"])]
    if not all(rate > 0 for rate in rates):
        raise ValueError(f"samples_ts {rates}")
    rounds = {number: [size / rate] for number, rate in enumerate(rates)}
    return Series(NAME, int(test["n_depth"]), measure, size, rounds, paired=False)
