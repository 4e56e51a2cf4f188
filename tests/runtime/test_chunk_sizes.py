"""Every prompt length at several chunk sizes, GGUF and dump: a static pair gives what the dynamic session gives."""

from __future__ import annotations

import numpy as np
import pytest
from openvino import CompiledModel

import ovpasses as ovp
from tests.conftest import RECORDED, nmse
from tests.runtime.test_chunked_prefill import F32, TOKENS, caches_in_f32

SOURCES = [
    *(f"gguf/tiny-{name}.gguf" for name in ("llama-gqa", "gemma4-mixed", "qwen35")),
    *(
        f"{age}/{name}/stateless/model.xml"
        for age in ("before", "after")
        for name in ("llama-gqa", "gemma4-mixed", "qwen35")
    ),
]
NEXT = 8  # decode steps after every prompt


def compiled(source: str, preset: str, **options: int) -> tuple[CompiledModel, ovp.GraphInfo]:
    """A preset's model with f32 caches, where runs that are cut differently agree to f32 precision (dumps keep f16)."""
    window = ovp.read_model(RECORDED / "gguf/tiny-gemma4-mixed.gguf").info if "gemma4" in source else None
    imported = ovp.read_model(RECORDED / source, info=window)
    if source.startswith("gguf"):
        caches_in_f32(imported.model)
    ovp.Pipeline.preset(preset, **options).run(imported)
    config = F32 if source.startswith("gguf") else {"INFERENCE_PRECISION_HINT": "f32"}
    return ovp.compile_model(imported, "CPU", config), imported.info


def check(source: str, chunk: int, lengths: range | tuple[int, ...]) -> None:
    dynamic, info = compiled(source, "stateful")
    prefill, known = compiled(source, "static-prefill", chunk=chunk, context=64)
    decode, _ = compiled(source, "static-decode", context=64)
    pairs = [ovp.ChunkedSession(prefill, decode, known, pad_token=pad) for pad in (0, 319)]
    whole = ovp.Session(dynamic, info)
    tolerance = 1e-9 if source.startswith("gguf") else 1e-5
    for length in lengths:
        wanted = run(whole, length)
        found, other = (run(pair, length) for pair in pairs)
        assert nmse(found, wanted) <= tolerance, length
        assert np.array_equal(found, other), f"the pad token makes a difference at {length} tokens"


def run(session: ovp.Session | ovp.ChunkedSession, length: int) -> np.ndarray:
    session.reset()
    rows = [session.prefill(TOKENS[:length])]
    rows += [session.decode(int(token)) for token in TOKENS[length : length + NEXT]]
    return np.concatenate(rows)


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("source", [s for s in SOURCES if "before" not in s])
def test_some_lengths(source: str, chunk: int) -> None:
    check(source, chunk, (1, 6, 7, 8, 23, 40))


@pytest.mark.slow
@pytest.mark.needs_2026_4
@pytest.mark.parametrize("chunk", [7, 16, 64])
@pytest.mark.parametrize("source", SOURCES)
def test_every_length(source: str, chunk: int) -> None:
    check(source, chunk, range(1, 41))
