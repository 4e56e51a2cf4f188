"""Models and a saved state for the tests of states."""

from __future__ import annotations

from pathlib import Path

import pytest

import ovpasses as ovp
from tests.runtime.state_helpers import NAMES, ONE_THREAD, TOKENS, Prepared, prepared


@pytest.fixture(scope="session")
def models(recorded: Path) -> dict[str, Prepared]:
    return {name: prepared(recorded / f"gguf/tiny-{name}.gguf", config=ONE_THREAD) for name in NAMES}


@pytest.fixture(scope="session")
def saved(models: dict[str, Prepared], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama at position 20."""
    path = tmp_path_factory.mktemp("saved") / "state.safetensors"
    session = ovp.Session(*models["llama-gqa"])
    session.prefill(TOKENS[:20])
    session.save(path, TOKENS[:20])
    return path
