"""What the tests of trimming, checkpoints and saved states share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino import CompiledModel

import ovpasses as ovp

NAMES = ["llama-gqa", "gemma4-mixed", "qwen35"]
ONE_THREAD = {"INFERENCE_NUM_THREADS": 1}
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}
STATEFUL = (ovp.KVHeadSplit, ovp.MakeKVStateful)
LAYOUTS: dict[str, tuple[Any, ...]] = {
    "made stateful": STATEFUL,
    "axis moved": (*STATEFUL, ovp.KVStateSeqAxis),
    "beam": (*STATEFUL, ovp.BeamReorder),
    "axis moved, beam": (*STATEFUL, ovp.KVStateSeqAxis, ovp.BeamReorder),
}
TOKENS = np.random.default_rng(7).integers(0, 320, 300)
OTHER = np.random.default_rng(8).integers(0, 320, 16)

Prepared = tuple[CompiledModel, ovp.GraphInfo]


def prepared(path: Path, passes: tuple[Any, ...] | None = None, config: dict[str, Any] | None = None) -> Prepared:
    imported = ovp.read_model(path)
    pipeline = ovp.Pipeline([kind() for kind in passes]) if passes else ovp.Pipeline.preset("stateful")
    pipeline.run(imported)
    return ovp.compile_model(imported, "CPU", F32 if config is None else config), imported.info


def shapes(session: ovp.Session) -> dict[str, list[int]]:
    return {state.name: list(state.state.shape) for state in session._request.query_state()}


def content(session: ovp.Session) -> dict[str, bytes]:
    return {state.name: np.array(state.state.data).tobytes() for state in session._request.query_state()}


def assert_refused(session: ovp.Session, control: ovp.Session, path: Path, message: str) -> None:
    began, position = time.perf_counter(), session.position
    with pytest.raises(ovp.StateError, match=message) as refusal:
        session.restore(path)
    assert time.perf_counter() - began < 1
    assert "\n" not in str(refusal.value)
    assert session.position == position
    assert content(session) == content(control)
