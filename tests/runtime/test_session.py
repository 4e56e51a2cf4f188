"""Session: one sequence of tokens, however it is cut, gives the same logits; refusals leave it as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from openvino import CompiledModel

import ovpasses as ovp
from models.tiny_gguf import write_llama
from tests.conftest import nmse

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
NAMES = ["llama-gqa", "gemma4-mixed", "qwen35"]
TOKENS = np.random.default_rng(7).integers(0, 320, 100)


def prepared(path: Path) -> tuple[CompiledModel, ovp.GraphInfo]:
    imported = ovp.read_model(path)
    ovp.Pipeline.preset("stateful").run(imported)
    return ovp.compile_model(imported, "CPU", F32), imported.info


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, recorded: Path) -> tuple[CompiledModel, ovp.GraphInfo]:
    return prepared(recorded / "gguf" / f"tiny-{request.param}.gguf")


@pytest.mark.parametrize("cuts", [(100,), (1, 99), (64, 1, 35), (50, 50), (7, 1, 1, 91), (98, 1, 1)])
def test_any_cut_of_the_prompt_gives_the_same_logits(
    model: tuple[CompiledModel, ovp.GraphInfo], cuts: tuple[int, ...]
) -> None:
    whole = ovp.Session(*model).prefill(TOKENS, all_logits=True)
    session = ovp.Session(*model)
    pieces = np.split(TOKENS, np.cumsum(cuts)[:-1])
    found = np.concatenate([session.prefill(piece, all_logits=True) for piece in pieces])
    assert nmse(found, whole) <= 1e-9


def test_step_bounds_what_one_inference_takes(model: tuple[CompiledModel, ovp.GraphInfo]) -> None:
    whole = ovp.Session(*model).prefill(TOKENS)
    done: list[int] = []
    found = ovp.Session(*model, step=32).prefill(TOKENS, progress=done.append)
    assert done == [32, 64, 96, 100]
    assert found.shape == (1, 320)
    assert nmse(found, whole) <= 1e-9


def test_reset_starts_over(model: tuple[CompiledModel, ovp.GraphInfo]) -> None:
    session = ovp.Session(*model)
    first = session.prefill(TOKENS[:20])
    session.decode(5)
    session.reset()
    assert session.position == 0
    assert np.array_equal(session.prefill(TOKENS[:20]), first)


def test_sessions_of_one_model_are_independent(model: tuple[CompiledModel, ovp.GraphInfo]) -> None:
    alone = ovp.Session(*model)
    wanted = [alone.prefill(TOKENS[:9]), *(alone.decode(int(t)) for t in TOKENS[9:12])]
    one, other = ovp.Session(*model), ovp.Session(*model)
    found = [one.prefill(TOKENS[:9])]
    other.prefill(TOKENS[50:90])
    for token in TOKENS[9:12]:
        found.append(one.decode(int(token)))
        other.decode(1)
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_refusal_leaves_the_session_as_it_was(model: tuple[CompiledModel, ovp.GraphInfo]) -> None:
    session, control = ovp.Session(*model), ovp.Session(*model)
    session.prefill(TOKENS[:10])
    control.prefill(TOKENS[:10])
    for bad in ([], [320], [-1], [1.5], list(range(2048)), [[1, 2], [3]], ["a"], [None]):
        with pytest.raises(ovp.StateError):
            session.prefill(bad)  # type: ignore[arg-type]
    for wrong in ([3, 4], [], 1.5, None, "a"):
        with pytest.raises(ovp.StateError):
            session.decode(wrong)  # type: ignore[arg-type]
    for tokens in ([1.5] * 10, ["a"] * 10, [[1], [2, 3]], [1] * 9):
        with pytest.raises(ovp.StateError, match=r"token ids are|9 tokens are given"):
            session.save("never.safetensors", tokens=tokens)  # type: ignore[arg-type]
    assert session.position == 10
    assert np.array_equal(session.decode(3), control.decode(3))


def test_one_kv_head_under_llamas_rotary_order(tmp_path: Path) -> None:
    """With one KV head the frontend forgets the head axis; the twin with that head twice says what is right."""
    single = write_llama(tmp_path / "one.gguf", heads=4, heads_kv=1, size=16, layers=2)
    double = _with_kv_head_twice(single, tmp_path / "two.gguf")
    tokens = np.arange(40) % 64
    found, wanted = (ovp.Session(*prepared(p)).prefill(tokens, all_logits=True) for p in (single, double))
    assert nmse(found, wanted) <= 1e-9


def _with_kv_head_twice(source: Path, target: Path) -> Path:
    import gguf

    weights = {t.name: np.array(t.data) for t in gguf.GGUFReader(source).tensors}

    class Doubled(gguf.GGUFWriter):
        def add_head_count_kv(self, count: int) -> None:
            super().add_head_count_kv(2 * count)

        def add_tensor(self, name: str, tensor: np.ndarray) -> None:
            kept = weights[name]
            twice = name.endswith(("attn_k.weight", "attn_v.weight"))
            super().add_tensor(name, np.concatenate([kept, kept]) if twice else kept)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", Doubled)
        return write_llama(target, heads=4, heads_kv=1, size=16, layers=2)


def test_a_model_with_its_caches_outside_is_refused(recorded: Path) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf")
    compiled = ovp.compile_model(imported, "CPU")
    with pytest.raises(ovp.StateError, match="is a cache outside the model; run the preset stateful"):
        ovp.Session(compiled, imported.info)


def test_step_must_be_positive(model: tuple[CompiledModel, ovp.GraphInfo]) -> None:
    with pytest.raises(ovp.StateError, match="step is 0"):
        ovp.Session(*model, step=0)
