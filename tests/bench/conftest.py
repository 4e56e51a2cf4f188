"""What the tests of a bench share: a small recorded model, and its arms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from openvino import Core

import ovpasses as ovp
from ovpasses.bench.arms import parse_arm
from ovpasses.bench.session_runner import SessionRunner, open_session
from ovpasses.bench.settings import Settings

SETTINGS = Settings(depths=(0, 24), chunk=8, tokens=2, rounds=2)

Opened = Callable[[str], SessionRunner]


@pytest.fixture(scope="session")
def dump(recorded: Path) -> Path:
    """A stateful dump of llama.cpp, which every lane can open."""
    return recorded / "after/llama-gqa/stateful-prerelayout/model.xml"


@pytest.fixture
def opened(dump: Path) -> Opened:
    imported = ovp.read_model(dump)
    return lambda text: open_session(parse_arm(text), imported, SETTINGS, Core())
