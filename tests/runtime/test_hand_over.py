"""A prompt run by one kind of session, gone on with by another: a static pair, a dynamic model, llama.cpp's dumps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ovpasses as ovp
from models.tiny_gguf import write_llama
from ovpasses.runtime.fingerprint import weights_fingerprint
from tests.conftest import RECORDED, nmse
from tests.runtime.pair_helpers import AnySession, dynamic, gguf, held, make_pair, opened
from tests.runtime.state_helpers import NAMES, ONE_THREAD, OTHER, TOKENS, prepared

# Of one fingerprint: the constants of a qwen35 dump are not those of its GGUF.
DUMPED = [name for name in NAMES if name != "qwen35"]
PROMPT = TOKENS[:40]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def greedy(session: AnySession, logits: np.ndarray, count: int) -> tuple[list[int], np.ndarray]:
    """Tokens, and the logits after the last one."""
    found = []
    for _ in range(count):
        found.append(int(logits[-1].argmax()))
        logits = session.decode(found[-1])
    return found, logits


def handed(source: AnySession, target: AnySession, path: Path, *, convert: bool = False) -> AnySession:
    source.save(path)
    assert target.restore(path, convert=convert) == source.position
    return target


@pytest.mark.parametrize(
    ("first", "second"),
    [("pair", "dynamic"), ("f32 pair", "f32 dynamic"), ("pair", "f32 dynamic"), ("f32 pair", "dynamic")],
)
def test_prefill_in_one_decode_in_the_other_and_back(name: str, first: str, second: str, tmp_path: Path) -> None:
    """40 tokens, 16, back, 16 more: the tokens of a session that ran all of it."""
    convert = first.startswith("f32") != second.startswith("f32")
    for one, other in ((first, second), (second, first)):
        whole = opened(other, name)
        wanted, _ = greedy(whole, whole.prefill(PROMPT), 32)
        source = opened(one, name)
        logits = source.prefill(PROMPT)
        target = handed(source, opened(other, name), tmp_path / "s.safetensors", convert=convert)
        found, logits = greedy(target, logits, 16)
        source.reset()
        back, _ = greedy(handed(target, source, tmp_path / "s.safetensors", convert=convert), logits, 16)
        assert found + back == wanted


def test_rows_do_it_without_a_file(name: str) -> None:
    source, target, whole = (opened(kind, name) for kind in ("f32 pair", "f32 dynamic", "f32 dynamic"))
    wanted, _ = greedy(whole, whole.prefill(PROMPT), 16)
    logits = source.prefill(PROMPT)
    target.seed(source.rows())
    assert greedy(target, logits, 16)[0] == wanted


@pytest.mark.parametrize("name", DUMPED)
def test_states_are_the_same_bytes_in_every_layout(name: str, tmp_path: Path) -> None:
    source, path = opened("pair", name), tmp_path / "s.safetensors"
    source.prefill(PROMPT)
    for kind in ("dynamic", "dump", "dumped pair"):
        target = handed(source, opened(kind, name), path)
        assert {n: r.tobytes() for n, r in target.rows().items()} == {n: r.tobytes() for n, r in source.rows().items()}
        back = handed(target, opened("pair", name), path)
        assert held(back) == held(source)
    found, wanted = target.prefill(OTHER), source.prefill(OTHER)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.05)  # both round to f16, not at the same places


@pytest.mark.parametrize("form", ["stateful", "stateful-prerelayout", "stateless"])
@pytest.mark.parametrize("name", DUMPED)
def test_a_file_of_a_gguf_goes_into_its_dumps(name: str, form: str, tmp_path: Path) -> None:
    """gemma4's stateful dump holds the product of two constants that its GGUF and its other dumps hold."""
    source = opened("dynamic", name)
    source.prefill(TOKENS[:50])
    imported = ovp.read_model(RECORDED / f"after/{name}/{form}/model.xml", info=source.info)
    ovp.Pipeline.preset("stateful").run(imported)
    target = ovp.Session(ovp.compile_model(imported, "CPU", ONE_THREAD), imported.info)
    handed(source, target, tmp_path / "s.safetensors")
    assert nmse(target.prefill(OTHER), source.prefill(OTHER)) < 1e-6


def test_every_recorded_form_of_a_model_has_its_fingerprint() -> None:
    for name in DUMPED:
        dumps = sorted(RECORDED.glob(f"*/{name}/*/*.xml"))
        found = {weights_fingerprint(ovp.read_model(path).model) for path in [gguf(name), *dumps]}
        assert len(dumps) > 4
        assert len(found) == 1


def test_f16_and_f32_states_are_not_mixed_unless_asked(name: str, tmp_path: Path) -> None:
    path, narrow, wide = tmp_path / "s.safetensors", opened("pair", name), opened("f32 dynamic", name)
    narrow.prefill(PROMPT)
    narrow.save(path)
    wide.prefill(OTHER[:3])
    before = held(wide)
    with pytest.raises(ovp.StateError, match="has dtype f16, the session's has f32"):
        wide.restore(path)
    assert (wide.position, held(wide)) == (3, before)
    assert wide.restore(path, convert=True) == 40
    wide.save(path)
    narrow.reset()
    with pytest.raises(ovp.StateError, match="has dtype f32, the session's has f16"):
        narrow.restore(path)
    narrow.restore(path, convert=True)
    again = opened("pair", name)
    again.prefill(PROMPT)
    assert held(again) == held(narrow)  # there was nothing to round


def test_what_f16_cannot_hold_is_not_converted(tmp_path: Path) -> None:
    wide, narrow = opened("f32 dynamic", "llama-gqa"), opened("pair", "llama-gqa")
    wide.prefill(PROMPT)
    rows = wide.rows()
    rows["cache_v_l1"][3, 3] = 70000
    wide.reset()
    wide.seed(rows)
    wide.save(tmp_path / "s.safetensors")
    with pytest.raises(ovp.StateError, match="value of layer 1 holds values that f16 cannot hold"):
        narrow.restore(tmp_path / "s.safetensors", convert=True)
    assert narrow.position == 0


def test_other_weights_of_the_same_shapes_are_refused(tmp_path: Path) -> None:
    options = {"heads": 4, "heads_kv": 2, "size": 16, "layers": 2}
    files = [write_llama(tmp_path / f"{seed}.gguf", seed=seed, **options) for seed in (0, 1)]
    source, target = ovp.ChunkedSession(*make_pair(files[0], context=64)), ovp.Session(*prepared(files[1], config={}))
    source.prefill([1, 2, 3])
    source.save(tmp_path / "s.safetensors")
    with pytest.raises(ovp.StateError, match="is of a model with weights"):
        target.restore(tmp_path / "s.safetensors")
    target.prefill([1, 2, 3])
    target.save(tmp_path / "s.safetensors")
    with pytest.raises(ovp.StateError, match="is of a model with weights"):
        source.restore(tmp_path / "s.safetensors")
    assert source.position == 3


def test_a_checkpoint_stays_with_its_model(name: str) -> None:
    source, target = opened("pair", name), ovp.Session(*dynamic(name))
    source.prefill(PROMPT)
    with pytest.raises(ovp.StateError, match="of another compiled model; save the session that it is of to a file"):
        target.restore(source.checkpoint())
