"""A writer killed at any moment leaves the old state or the new one, whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks its writers")
def test_fifty_kills(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.runtime.killed_writer_process", str(tmp_path), "50"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    versions = [kill["version"] for kill in found["kills"]]
    assert len(versions) == 50
    assert set(versions) == {0, 1}  # both, so the kills came at different moments
    left = [kill["left"] for kill in found["kills"]]
    assert sum(n > 0 for n in left) >= 10  # kills that hit a writer at work
    assert max(left) == 1  # the next writer removes what a killed one left
    assert (found["last"], found["files"]) == (1, ["state.safetensors"])
