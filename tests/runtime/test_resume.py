"""Saved, ended and gone on with in a new process: the bytes of a run without a break, at the cost of a step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.pair_helpers import AnySession, gguf, opened, opened_file
from tests.runtime.resume_process import digests
from tests.runtime.state_helpers import NAMES, TOKENS

KINDS = ["dynamic", "f32 dynamic", "pair", "f32 pair"]
STEPS = 16


def in_a_new_process(jobs: list[list[Any]]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.runtime.resume_process", json.dumps(jobs)]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    found: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return found


def assert_resumes(model: Path, sessions: dict[str, AnySession], positions: list[int], folder: Path) -> None:
    jobs, wanted = [], []
    for kind, session in sessions.items():
        for position in positions:
            tokens = [int(token) for token in TOKENS[position : position + STEPS]]
            session.reset()
            session.prefill(TOKENS[:position])
            path = folder / f"{kind} {position}.safetensors"
            session.save(path)
            session.reset()
            session.prefill(TOKENS[:position])  # a run that never stopped to save
            wanted.append({"position": position, "logits": digests(session, tokens), "counts": [1] * STEPS})
            jobs.append([kind, str(model), str(path), tokens])
    assert in_a_new_process(jobs) == wanted


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("name", NAMES)
def test_resumed_in_a_new_process(name: str, tmp_path: Path) -> None:
    """Of gemma4-mixed before its window of 64 tokens, past it, and past twice that."""
    positions = [40, 100, 130] if name == "gemma4-mixed" else [40]
    assert_resumes(gguf(name), {kind: opened(kind, name) for kind in KINDS}, positions, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_real_model_resumed_in_a_new_process(kind: str, smollm2: Path, tmp_path: Path) -> None:
    assert_resumes(smollm2, {kind: opened_file(kind, smollm2)}, [40], tmp_path)
