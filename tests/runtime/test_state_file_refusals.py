"""A saved state that does not fit, or is damaged, is refused in one line, at once, and leaves the session as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import ovpasses as ovp
from models.tiny_gguf import write_llama
from ovpasses.runtime.state_file import VERSION
from tests.runtime.state_bytes import Change, edited
from tests.runtime.state_helpers import OTHER, TOKENS, Prepared, assert_refused, prepared


def _without(field: str) -> Change:
    return lambda metadata, tensors: metadata.pop(field) and None


def _with(field: str, value: str) -> Change:
    return lambda metadata, tensors: metadata.update({field: value})


def _state(**changes: Any) -> Change:
    def change(metadata: dict[str, str], tensors: dict[str, np.ndarray]) -> None:
        first, *others = json.loads(metadata["states"])
        metadata["states"] = json.dumps([{**first, **changes}, *others])

    return change


def _tensor(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def changed(metadata: dict[str, str], tensors: dict[str, np.ndarray]) -> None:
        name = min(n for n in tensors if n.startswith("state."))
        tensors[name] = change(tensors[name])

    return changed


def _drop(metadata: dict[str, str], tensors: dict[str, np.ndarray]) -> None:
    states = json.loads(metadata["states"])
    metadata["states"] = json.dumps(states[1:])
    del tensors[f"state.{states[0]['name']}"]


def _add(metadata: dict[str, str], tensors: dict[str, np.ndarray]) -> None:
    first, *others = json.loads(metadata["states"])
    more = {**first, "name": "cache_k_l9cache_k_l9", "layer": 9}
    metadata["states"] = json.dumps([first, *others, more])
    tensors[f"state.{more['name']}"] = tensors[f"state.{first['name']}"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("n_rot_k"), "has no field n_rot_k"),
        (_without("n_rot_v"), "has no field n_rot_v"),
        (_without("fingerprint"), "has no field fingerprint"),
        (_with("n_rot_k", "64"), "saved with rotation K 64, V 0, the session has K 0, V 0"),
        (_without("checkpoints"), "has no field checkpoints"),
        (_with("n_rot_k", "x"), "has n_rot_k x, wanted an integer, 0 or more"),
        (_with("n_rot_k", "-1"), "has n_rot_k -1, wanted an integer, 0 or more"),
        (_with("position", "9" * 5000), r"has position 9+\.\.\., wanted an integer"),
        (_with("fingerprint", "\n"), r"has the fingerprint '\\n', wanted 32 hex digits"),
        (_with("checkpoints", "[4, 2]"), r"its checkpoints are at \[4, 2\], wanted rising positions up to 20"),
        (_with("checkpoints", "[21]"), r"its checkpoints are at \[21\], wanted rising positions up to 20"),
        (_with("checkpoints", "[-1]"), r"its checkpoints are at \[-1\], wanted"),
        (_with("fingerprint", "0" * 32), "is of a model with weights 00000000000000000000000000000000, the session's"),
        (_with("position", "19"), r"holds 20 tokens, wanted the position 19"),
        (_with("states", "[]"), "is there and not described"),
        (_with("states", "{"), "cannot be used: Expecting"),
        (_with("states", "[NaN]"), "the number NaN, wanted an integer"),
        (_with("states", "[1.5]"), "the number 1.5, wanted an integer"),
        (_with("states", "[1" + "0" * 30 + "]"), "a number of 31 digits"),
        (_with("states", '[{"name": 1, "name": 1}]'), "a JSON text with a key twice"),
        (_with("states", "[" * 100_000), "too deep a JSON text"),
        (_with("states", '["\\ud800"]'), "surrogates not allowed"),
        (_state(heads=6), "has heads 6"),
        (_state(size=32), "has size 32"),
        (_state(window=64), "of layer . has window 64, the session's has None"),
        (_state(axis=7), "a sequence axis that is none of the dims"),
        (_state(axis=1), r"has the layout .*, and its sequence on axis 1"),
        (_state(axis=-1), "has axis -1"),
        (_state(layer=True), "has layer True"),
        (_state(kind=None), "a state is {'name'"),
        (_state(axis=None, layout=["d0", "d1", "d2", "d3"], heads=None, size=None), "has heads None, the session's"),
        (_state(shape=[1, -3, 20, 16]), "a state is {'name'"),
        (_state(layout=["batch", "seq", "heads", "size"], axis=1, shape=[1, 20, 3, 16]), "described as float16"),
        (_state(name="other"), "cannot be used: state.cache_k_l2cache_k_l2 is there and not described"),
        (_state(dtype="f32"), r"is float16 \[1, 3, 20, 16\], described as float32"),
        (_state(unknown=1), "wanted the fields name, kind"),
        (_tensor(lambda v: v.astype(np.float32)), "is float32 .*, described as float16"),
        (_tensor(lambda v: v[:, :, :-1].copy()), r"is float16 \[1, 3, 19, 16\], described as float16 \[1, 3, 20, 16\]"),
        (_drop, "is a state of the session and not of the file"),
        (_add, "key of layer 9 is a state of the file and not of the session"),
    ],
)
def test_a_file_that_does_not_fit(
    models: dict[str, Prepared],
    saved: Path,
    tmp_path: Path,
    change: Change,
    message: str,
) -> None:
    session, control = ovp.Session(*models["llama-gqa"]), ovp.Session(*models["llama-gqa"])
    for one in (session, control):
        one.prefill(OTHER[:6])
    assert_refused(session, control, edited(saved, tmp_path / "edited.safetensors", change), message)
    assert np.array_equal(session.decode(1), control.decode(1))


def test_another_format(models: dict[str, Prepared], saved: Path, tmp_path: Path) -> None:
    session, control = ovp.Session(*models["llama-gqa"]), ovp.Session(*models["llama-gqa"])
    path = tmp_path / "other.safetensors"
    with safe_open(saved, "np") as file:
        metadata = dict(file.metadata())
    for version, said in (("1", "1"), ("2", "2"), ("4", "4"), ("1\n", r"'1.n'"), (None, r"\(none\)")):
        changed = {k: v for k, v in metadata.items() if k != "version"} | ({"version": version} if version else {})
        save_file(load_file(saved), path, changed)
        assert_refused(session, control, path, f"has format version {said}, wanted {VERSION}; save the state anew")
    save_file(load_file(saved), path)
    assert_refused(session, control, path, "is no .safetensors file with metadata")
    save_file(load_file(saved), path, {"format": "pt"})
    assert_refused(session, control, path, "no state that ovpasses saved")
    save_file(load_file(saved), path, {k: v for k, v in metadata.items() if k != "checksum"})
    assert_refused(session, control, path, "has no checksum")
    assert_refused(session, control, tmp_path / "missing.safetensors", "cannot be read: No such file")
    assert_refused(session, control, tmp_path, "cannot be read: Is a directory")


def _damaged(
    models: dict[str, Prepared], path: Path, target: Path, cuts: list[int], flips: list[tuple[int, int]]
) -> None:
    session, control = ovp.Session(*models["llama-gqa"]), ovp.Session(*models["llama-gqa"])
    for one in (session, control):
        one.prefill(OTHER[:6])
    data = path.read_bytes()
    for cut in cuts:
        target.write_bytes(data[:cut])
        assert_refused(session, control, target, "(damaged|version|checksum|no state that|no field|cannot be read)")
    for at, bits in flips:
        target.write_bytes(data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :])
        assert_refused(session, control, target, "(damaged|version|checksum|no state that|no field|cannot be read)")
    target.write_bytes(data + b"\0")
    assert_refused(session, control, target, "(damaged|version|checksum|no state that|no field|cannot be read)")
    assert np.array_equal(session.decode(1), control.decode(1))
    assert session.restore(path) == 20


def _flips(size: int, count: int, seed: int) -> list[tuple[int, int]]:
    random = np.random.default_rng(seed)
    header = random.integers(0, 3000, count // 2)  # where a flip may be a change of meaning
    places = np.concatenate([header, random.integers(0, size, count - count // 2)])
    return [(int(at), int(random.integers(1, 256))) for at in places]


def test_damage_is_found(models: dict[str, Prepared], saved: Path, tmp_path: Path) -> None:
    size = saved.stat().st_size
    cuts = [*range(20), *np.random.default_rng(2).integers(20, size, 200).tolist()]
    _damaged(models, saved, tmp_path / "damaged.safetensors", cuts, _flips(size, 2000, 0))


@pytest.mark.slow
def test_more_damage_is_found(models: dict[str, Prepared], saved: Path, tmp_path: Path) -> None:
    size = saved.stat().st_size
    every = [(at, 1 << at % 8) for at in range(3000)]
    _damaged(models, saved, tmp_path / "d.safetensors", list(range(0, size, 37)), [*every, *_flips(size, 3000, 1)])


def test_types_are_not_mixed(models: dict[str, Prepared], saved: Path, recorded: Path, tmp_path: Path) -> None:
    path = recorded / "gguf/tiny-llama-gqa.gguf"
    session, control = (ovp.Session(*prepared(path)) for _ in range(2))
    assert_refused(session, control, saved, "has dtype f16, the session's has f32")
    rounded = ovp.Session(*prepared(path, config={"KV_CACHE_PRECISION": "u8"}))
    rounded.prefill(TOKENS[:4])
    for refused in (rounded.save, rounded.restore):
        with pytest.raises(ovp.StateError, match="is held in u8 and read as f16, which is not exact"):
            refused(tmp_path / "u8.safetensors" if refused == rounded.save else saved)
    assert not any(tmp_path.iterdir())


def test_the_same_shapes_with_other_weights_are_refused(tmp_path: Path) -> None:
    made = []
    for seed in (0, 1):
        options = {"heads": 4, "heads_kv": 2, "size": 16, "layers": 2, "seed": seed}
        made.append(prepared(write_llama(tmp_path / f"{seed}.gguf", **options)))
    source, target = ovp.Session(*made[0]), ovp.Session(*made[1])
    source.prefill([1, 2, 3])
    source.save(tmp_path / "s.safetensors")
    assert_refused(target, ovp.Session(*made[1]), tmp_path / "s.safetensors", "is of a model with weights")
