"""llama-bench: a script in its place prints what it prints."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ovpasses.bench import BenchError, Settings
from ovpasses.bench.llama_bench import parse, run_llama_bench
from ovpasses.bench.samples import DECODE, PREFILL

SETTINGS = Settings(depths=(0, 64), chunk=32, tokens=4, rounds=2)


def test_of(prompt: int, generated: int, depth: int, rates: list[float]) -> dict[str, Any]:
    return {
        "build_commit": "abc1234",
        "backends": "CPU",
        "n_threads": 2,
        "type_k": "f16",
        "type_v": "f16",
        "n_prompt": prompt,
        "n_gen": generated,
        "n_depth": depth,
        "avg_ts": sum(rates) / len(rates),
        "stddev_ts": 0.0,
        "samples_ts": rates,
    }


test_of.__test__ = False  # type: ignore[attr-defined]

TESTS = [
    test_of(32, 0, 0, [200.0, 400.0]),
    test_of(0, 4, 0, [100.0, 50.0]),
    test_of(32, 0, 64, [160.0, 160.0]),
    test_of(0, 4, 64, [40.0, 40.0]),
    test_of(32, 4, 0, [1.0, 1.0]),  # both at once: not asked for
]


def program(folder: Path, body: str) -> Path:
    path = folder / "llama-bench"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_its_samples_become_series(tmp_path: Path) -> None:
    (tmp_path / "tests.json").write_text(json.dumps(TESTS))
    binary = program(tmp_path, f'echo "$@" > {tmp_path}/asked\necho loading >&2\ncat {tmp_path}/tests.json')
    found = run_llama_bench(binary, Path("model.gguf"), SETTINGS, 3)
    asked = (tmp_path / "asked").read_text().strip()
    assert asked == "-m model.gguf -o json -p 32 -n 4 -d 0,64 -r 2 -t 3"
    by = {(one.measure, one.depth): one for one in found.series}
    assert set(by) == {(PREFILL, 0), (DECODE, 0), (PREFILL, 64), (DECODE, 64)}
    assert by[PREFILL, 0].rounds == {0: [32 / 200], 1: [32 / 400]}
    assert by[DECODE, 0].rounds == {0: [1 / 100], 1: [1 / 50]}
    assert by[DECODE, 64].rate == pytest.approx(40.0)
    assert {(one.arm, one.paired) for one in found.series} == {("llama.cpp", False)}
    assert (found.about, found.held, found.threads) == ("backend CPU, build abc1234", "f16", 2)


def test_threads_are_its_own_choice_unless_known(tmp_path: Path) -> None:
    (tmp_path / "tests.json").write_text(json.dumps(TESTS))
    binary = program(tmp_path, f'echo "$@" > {tmp_path}/asked\ncat {tmp_path}/tests.json')
    run_llama_bench(binary, Path("model.gguf"), SETTINGS, None)
    assert " -t" not in (tmp_path / "asked").read_text()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"llama-bench: cannot be run as llama-bench \(No such file or directory\)"):
        run_llama_bench(tmp_path / "llama-bench", Path("m.gguf"), SETTINGS, None)


@pytest.mark.skipif(os.name == "nt", reason="no executable bit")
def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(BenchError, match="Permission denied"):
        run_llama_bench(tmp_path / "notes.txt", Path("m.gguf"), SETTINGS, None)


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    binary = program(tmp_path, "echo first >&2; echo 'error: invalid parameter for argument: -d' >&2; echo >&2; exit 3")
    with pytest.raises(BenchError, match=r"ended with exit code 3, wanted 0: error: invalid parameter for .*: -d$"):
        run_llama_bench(binary, Path("m.gguf"), SETTINGS, None)
    with pytest.raises(BenchError, match="exit code 1, wanted 0: it says nothing"):
        run_llama_bench(program(tmp_path, "exit 1"), Path("m.gguf"), SETTINGS, None)


@pytest.mark.parametrize("text", ["", "no JSON", "{}", "[]", "[1]", '[{"n_prompt": 32}]', "null", '[{"n_gen": null}]'])
def test_what_is_no_list_of_tests_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match=r"^x: no JSON of llama-bench") as raised:
        parse(text, SETTINGS, "x")
    assert len(str(raised.value).splitlines()) == 1


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(BenchError, match="no JSON of llama-bench"):
        parse(json.dumps([*TESTS[:3], test_of(0, 4, 64, [0.0])]), SETTINGS, "x")


def test_a_test_that_is_missing_is_named() -> None:
    with pytest.raises(BenchError, match=re.escape("x: no decode at depth 64 among its 3 tests")):
        parse(json.dumps(TESTS[:3]), SETTINGS, "x")
