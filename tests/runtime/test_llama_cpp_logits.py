"""Imported, rewritten and run, every model gives llama.cpp's own CPU logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ovpasses as ovp
from tests.conftest import nmse

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
FAMILIES = sorted(path.stem for path in (Path(__file__).parents[2] / "models/recorded/families").glob("*.gguf"))


def logits_of(model: Path, tokens: np.ndarray, prefill: int, config: dict[str, str]) -> np.ndarray:
    """Logits of all tokens: the first ``prefill`` at once, the others one by one."""
    imported = ovp.read_model(model)
    report = ovp.Pipeline.preset("stateful").run(imported)
    assert report.rewritten
    session = ovp.Session(ovp.compile_model(imported, "CPU", config), imported.info)
    rows = [session.prefill(tokens[:prefill], all_logits=True)]
    rows += [session.decode(int(token)) for token in tokens[prefill:]]
    assert session.position == len(tokens)
    return np.concatenate(rows)


def same_top_token(found: np.ndarray, wanted: np.ndarray) -> float:
    return float((found.argmax(1) == wanted.argmax(1)).mean())


@pytest.mark.parametrize("cache", ["f32", "f16", "as declared"])
@pytest.mark.parametrize("name", ["llama-gqa", "gemma4-mixed", "qwen35"])
def test_tiny_models(recorded: Path, name: str, cache: str) -> None:
    reference = np.load(recorded / "logits" / f"{name}.npz")
    config = F32 if cache == "as declared" else {**F32, "KV_CACHE_PRECISION": cache}
    found = logits_of(recorded / "gguf" / f"tiny-{name}.gguf", reference["tokens"], 76, config)
    wanted = reference["logits"]
    assert found.shape == wanted.shape == (80, 320)
    assert nmse(found[:76], wanted[:76]) <= 1e-5
    assert nmse(found[76:], wanted[76:]) <= 1e-5
    assert same_top_token(found, wanted) >= 0.98


def test_smollm2(recorded: Path, smollm2: Path) -> None:
    reference = np.load(recorded / "logits/smollm2.npz")
    found = logits_of(smollm2, reference["tokens"], 12, F32)
    assert len(found) == 16
    assert nmse(found, reference["logits"]) <= 2e-3  # llama.cpp quantises activations of Q4_1 products
    assert same_top_token(found, reference["logits"]) == 1.0


@pytest.mark.parametrize("name", FAMILIES)
def test_families(recorded: Path, name: str) -> None:
    reference = np.load(recorded / "families" / f"{name}.npz")
    found = logits_of(recorded / "families" / f"{name}.gguf", reference["tokens"], 44, F32)
    assert nmse(found[:44], reference["logits"][:44]) <= 1e-4  # f16 weights and large attention scores
    assert nmse(found[44:], reference["logits"][44:]) <= 1e-4
    assert same_top_token(found, reference["logits"]) >= 0.95


def test_the_comparison_can_fail(recorded: Path) -> None:
    """A window that is off by one moves gemma4's logits past the tolerance."""
    reference = np.load(recorded / "logits/gemma4-mixed.npz")
    imported = ovp.read_model(recorded / "gguf/tiny-gemma4-mixed.gguf")
    ovp.Pipeline.preset("stateful").run(imported)
    off = ovp.GraphInfo.from_dict(
        {
            **imported.info.to_dict(),
            "layers": [{**layer, "window": layer["window"] and 63} for layer in imported.info.to_dict()["layers"]],
        }
    )
    session = ovp.Session(ovp.compile_model(imported, "CPU", F32), off)
    found = session.prefill(reference["tokens"], all_logits=True)
    assert nmse(found, reference["logits"]) > 1e-5
