"""Every dump, made stateful by the preset, gives llama.cpp's logits at every step size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ovpasses as ovp
from tests.conftest import nmse

pytestmark = pytest.mark.needs_2026_4  # the window of gemma4's sliding layers is in its GGUF only

DUMPS = [
    (age, name, kind)
    for age in ("before", "after")
    for name in ("llama-gqa", "gemma4-mixed", "qwen35")
    for kind in ("stateless", "stateful-prerelayout", "stateful")
    if (Path(__file__).parents[2] / "models/recorded" / age / name / kind / "model.xml").is_file()
]


@pytest.mark.parametrize(("age", "name", "kind"), DUMPS)
def test_logits_at_every_step_size(recorded: Path, age: str, name: str, kind: str) -> None:
    info = ovp.read_model(recorded / "gguf" / f"tiny-{name}.gguf").info if name == "gemma4-mixed" else None
    imported = ovp.read_model(recorded / age / name / kind / "model.xml", info=info)
    ovp.Pipeline.preset("stateful").run(imported)
    states = len(imported.model.get_variables())
    assert states == {"llama-gqa": 6, "gemma4-mixed": 12, "qwen35": 8}[name]
    compiled = ovp.compile_model(imported, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    reference = np.load(recorded / "logits" / f"{name}.npz")
    for step in (1, 7, 16, 76):
        session = ovp.Session(compiled, imported.info, step=step)
        found = session.prefill(reference["tokens"], all_logits=True)
        assert nmse(found[:76], reference["logits"][:76]) <= 1e-5, step
        assert nmse(found[76:], reference["logits"][76:]) <= 1e-5, step
        assert (found.argmax(1) == reference["logits"].argmax(1)).mean() >= 0.98, step
