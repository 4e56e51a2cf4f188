"""A static model of as many tokens as heads is right, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ovpasses as ovp
from tests.conftest import RECORDED, nmse

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def static(path: Path, preset: str, **options: int) -> ovp.ImportedModel:
    imported = ovp.read_model(path)
    ovp.Pipeline.preset(preset, context=64, **options).run(imported)
    return imported


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("name", ["llama-gqa", "gemma4-mixed", "qwen35"])
def test_every_small_chunk_is_right_or_refused(name: str) -> None:
    path = RECORDED / f"gguf/tiny-{name}.gguf"
    imported = ovp.read_model(path)
    ovp.Pipeline.preset("stateful").run(imported)
    tokens = np.arange(9) * 31 % 320
    wanted = ovp.Session(ovp.compile_model(imported, "CPU", F32), imported.info).prefill(tokens, all_logits=True)
    decode = ovp.compile_model(static(path, "static-decode"), "CPU", F32)
    for chunk in range(2, 9):
        model = static(path, "static-prefill", chunk=chunk)
        if (name, chunk) == ("gemma4-mixed", 4):
            with pytest.raises(ovp.DeviceError, match="as many tokens as heads"):
                ovp.compile_model(model, "CPU", F32)
            continue
        prefill = ovp.compile_model(model, "CPU", F32)
        found = ovp.ChunkedSession(prefill, decode, imported.info).prefill(tokens, all_logits=True)
        assert nmse(found, wanted) < 1e-5, chunk
