"""Saved states: restored, the next token costs one step and gives the same bytes; what does not fit is refused."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from safetensors import safe_open

import ovpasses as ovp
from ovpasses._openvino import ops
from ovpasses.export import save_ir
from ovpasses.runtime.fingerprint import weights_fingerprint
from ovpasses.runtime.state_file import read_state_file, write_state_file
from ovpasses.runtime.state_header import check_rotation
from tests.runtime.state_helpers import (
    LAYOUTS,
    NAMES,
    ONE_THREAD,
    OTHER,
    TOKENS,
    Prepared,
    assert_refused,
    content,
    prepared,
)

ROOT = Path(__file__).parents[2]
SIZES = (0, 32, 64, 128)

OTHER_PROCESS = """
import sys
import numpy as np
from pathlib import Path
from tests.runtime.state_helpers import ONE_THREAD, prepared
import ovpasses as ovp
name, path, out = sys.argv[1:]
session = ovp.Session(*prepared(Path.cwd() / f"models/recorded/gguf/tiny-{name}.gguf", config=ONE_THREAD))
ran = []
run, count = session._run, lambda feed: ran.append(feed["inp_tokens"].size) or run(feed)
session._run = count
assert session.restore(path) == session.position == 40
logits = [session.decode(t) for t in (1, 2, 3, 4)]
assert ran == [1, 1, 1, 1], ran
np.save(out, np.concatenate(logits))
"""


@pytest.mark.parametrize("name", NAMES)
def test_another_process_goes_on_where_this_one_stopped(models: dict[str, Prepared], tmp_path: Path, name: str) -> None:
    session = ovp.Session(*models[name])
    session.prefill(TOKENS[:40])
    session.save(tmp_path / "s.safetensors")
    wanted = np.concatenate([session.decode(t) for t in (1, 2, 3, 4)])
    command = [sys.executable, "-c", OTHER_PROCESS, name, str(tmp_path / "s.safetensors"), str(tmp_path / "out.npy")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    assert np.load(tmp_path / "out.npy").tobytes() == wanted.tobytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.npy", "s.safetensors"]


@pytest.mark.parametrize("name", NAMES)
def test_position_0(models: dict[str, Prepared], tmp_path: Path, name: str) -> None:
    path = tmp_path / "empty.safetensors"
    fresh, session = ovp.Session(*models[name]), ovp.Session(*models[name])
    fresh.save(path)
    session.prefill(TOKENS[:9])
    assert session.restore(path) == session.position == 0
    assert content(session) == content(fresh)
    assert np.array_equal(session.prefill(TOKENS[:5]), fresh.prefill(TOKENS[:5]))


def test_what_a_file_says(saved: Path) -> None:
    found = read_state_file(saved)
    assert (found.header.position, found.header.rotation) == (20, (0, 0))
    assert found.tokens is not None
    assert np.array_equal(found.tokens, TOKENS[:20])
    first = min(found.header.states, key=lambda state: state.name)
    assert asdict(first) == {
        "name": "cache_k_l0cache_k_l0",
        "kind": "key",
        "layer": 0,
        "layout": ["batch", "heads", "seq", "size"],
        "heads": 3,
        "size": 16,
        "dtype": "f16",
        "axis": 2,
        "shape": [1, 3, 20, 16],
        "window": None,
    }
    with safe_open(saved, "np") as file:
        assert {
            *("format", "version", "checksum", "digests", "fingerprint"),
            *("position", "n_rot_k", "n_rot_v", "states", "checkpoints"),
        } == set(file.metadata())


def test_only_the_same_rotation_is_taken(models: dict[str, Prepared], tmp_path: Path) -> None:
    path, model = tmp_path / "rotated.safetensors", models["llama-gqa"]
    session = ovp.Session(*model, rotation=(64, 64))
    session.prefill(TOKENS[:20])
    session.save(path)
    wanted = session.decode(5)
    for declared in ((0, 0), (64, 0), (0, 64), (32, 32), (128, 128)):
        other = ovp.Session(*model, rotation=declared)
        other.prefill(OTHER[:4])
        control = ovp.Session(*model)
        control.prefill(OTHER[:4])
        message = rf"saved with rotation K 64, V 64, the session has K {declared[0]}, V {declared[1]}"
        assert_refused(other, control, path, message)
        assert np.array_equal(other.decode(1), control.decode(1))
    same = ovp.Session(*model, rotation=(64, 64))
    assert same.restore(path) == 20
    assert np.array_equal(same.decode(5), wanted)


def test_every_pair_of_rotations() -> None:
    pairs = list(itertools.product(SIZES, SIZES))
    for one, other in itertools.product(pairs, pairs):
        if one == other:
            check_rotation(one, other, "file")
            continue
        with pytest.raises(ovp.StateError) as refusal:
            check_rotation(one, other, "file")
        values = f"K {one[0]}, V {one[1]}, the session has K {other[0]}, V {other[1]};"
        assert values in str(refusal.value)


@pytest.mark.parametrize("rotation", [(64,), (1, -1), 64, (0.5, 0), (True, 0), "64"])
def test_a_rotation_is_two_sizes(models: dict[str, Prepared], rotation: Any) -> None:
    with pytest.raises(ovp.StateError, match=r"rotation is .*, wanted two sizes"):
        ovp.Session(*models["llama-gqa"], rotation=rotation)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_goes_from_one_layout_to_another(recorded: Path, tmp_path: Path, name: str) -> None:
    path = recorded / f"gguf/tiny-{name}.gguf"
    made = {layout: prepared(path, passes) for layout, passes in LAYOUTS.items()}
    for one, other in (("made stateful", "axis moved, beam"), ("axis moved, beam", "made stateful")):
        source, target = ovp.Session(*made[one]), ovp.Session(*made[other])
        source.prefill(TOKENS[:70])
        source.save(tmp_path / "s.safetensors")
        assert target.restore(tmp_path / "s.safetensors") == 70
        back = ovp.Session(*made[one])
        target.save(tmp_path / "back.safetensors")
        back.restore(tmp_path / "back.safetensors")
        assert content(back) == content(source)
        np.testing.assert_allclose(target.prefill(OTHER), source.prefill(OTHER), rtol=0, atol=1e-4)


def test_the_fingerprint_does_not_depend_on_passes_or_path(recorded: Path, tmp_path: Path) -> None:
    for name in NAMES:
        found = set()
        for preset, options in (("stateful", {"portable": True}), ("static-prefill", {"chunk": 16, "context": 64})):
            imported = ovp.read_model(recorded / f"gguf/tiny-{name}.gguf")
            found.add(weights_fingerprint(imported.model))
            ovp.Pipeline.preset(preset, **options).run(imported)
            found.add(weights_fingerprint(imported.model))
            save_ir(imported, tmp_path / f"{preset}.xml")
            found.add(weights_fingerprint(ovp.read_model(tmp_path / f"{preset}.xml").model))
        assert len(found) == 1


@pytest.mark.parametrize("at", [0, 1 << 19, -1])
def test_a_single_weight_changes_the_fingerprint(at: int) -> None:
    found = []
    for nudge in (0, 1):
        table = np.arange(1 << 20, dtype=np.float32)
        table[at] += nudge
        given = ops.parameter([1], np.float32)
        found.append(weights_fingerprint(openvino.Model([ops.add(given, ops.constant(table))], [given])))
    assert found[0] != found[1]


@pytest.mark.parametrize("kind", ["bf16", "f16", "u4", "i4", "nf4", "f8e4m3"])
def test_weights_of_types_that_numpy_lacks_count(kind: str) -> None:
    found = []
    for weight in (1, 2):
        table = openvino.Tensor(getattr(openvino.Type, kind), openvino.Shape([8]))
        table.data.view(np.uint8)[:] = weight
        given = ops.parameter([8], np.float32)
        read = ops.convert(ops.constant(table), "f32")
        found.append(weights_fingerprint(openvino.Model([ops.add(given, read)], [given])))
    assert found[0] != found[1]


def test_constants_of_no_elements_or_of_text_are_no_weights(recorded: Path) -> None:
    """A GatherMatmul without a bias reads a constant of type dynamic, of which there is no data to ask for."""
    moe = ovp.read_model(recorded / "families/llama-moe.gguf").model
    assert "dynamic" in {n.get_output_element_type(0).get_type_name() for n in moe.get_ops() if n.get_output_size()}
    assert len(weights_fingerprint(moe)) == 32
    text = ops.constant(openvino.Tensor(["a", "b"]))
    assert weights_fingerprint(openvino.Model([text], [])) == weights_fingerprint(openvino.Model([], []))


def test_a_model_compiled_elsewhere_is_named(recorded: Path, tmp_path: Path) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf")
    ovp.Pipeline.preset("stateful").run(imported)
    compiled = openvino.Core().compile_model(imported.model, "CPU", {"KV_CACHE_PRECISION": "f16"})
    with pytest.raises(ovp.StateError, match="the weights of the compiled model are not known"):
        ovp.Session(compiled, imported.info).save(tmp_path / "s.safetensors")
    session = ovp.Session(compiled, imported.info, model=imported)
    session.prefill(TOKENS[:3])
    session.save(tmp_path / "s.safetensors")
    other = ovp.Session(*prepared(recorded / "gguf/tiny-llama-gqa.gguf", config=ONE_THREAD))
    assert other.restore(tmp_path / "s.safetensors") == 3


def test_a_file_is_replaced_whole_or_not_at_all(
    models: dict[str, Prepared], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.safetensors"
    path.write_bytes(saved.read_bytes())
    session = ovp.Session(*models["llama-gqa"])
    session.prefill(TOKENS[:8])
    with pytest.raises(ovp.StateError, match="cannot be written"):
        session.save(tmp_path / "no folder" / "s.safetensors")
    with pytest.raises(ovp.StateError, match="3 tokens are given to save with the state, wanted the 8 run"):
        session.save(path, [1, 2, 3])

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(ovp.StateError, match=r"cannot be written: .*No space left"):
            session.save(path)
    assert path.read_bytes() == saved.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["s.safetensors"]
    session.save(path)
    assert read_state_file(path).header.position == 8


def test_a_header_is_what_it_was_written_from(saved: Path, tmp_path: Path) -> None:
    found = read_state_file(saved)
    write_state_file(tmp_path / "s.safetensors", replace(found, tokens=None))
    again = read_state_file(tmp_path / "s.safetensors")
    assert (again.header, again.tokens) == (found.header, None)


def test_weights_in_a_body_count() -> None:
    assert weights_fingerprint(branched(1.0)) == weights_fingerprint(branched(1.0))
    assert weights_fingerprint(branched(1.0)) != weights_fingerprint(branched(2.0))


def branched(weight: float) -> openvino.Model:
    flag, x = ops.parameter([], bool), ops.parameter([2, 2], np.float32)
    node = ops.if_op(flag.output(0))
    made = []
    for factor in (weight, -weight):
        inner = ops.parameter([2, 2], np.float32)
        end = ops.result(ops.multiply(inner, ops.constant(np.float32([[factor, 3], [4, 5]]))))
        made.append((inner, end))
    node.set_then_body(openvino.Model([made[0][1]], [made[0][0]]))
    node.set_else_body(openvino.Model([made[1][1]], [made[1][0]]))
    node.set_input(x.output(0), made[0][0], made[1][0])
    return openvino.Model([node.set_output(made[0][1], made[1][1])], [flag, x])


@pytest.mark.parametrize("name", ["a\tb", "a\xa0b", "x\n", "a b/c.d"])
def test_a_state_of_any_name_goes_into_a_file_and_back(recorded: Path, name: str, tmp_path: Path) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf")
    ovp.Pipeline.preset("stateful").run(imported)
    for number, variable in enumerate(imported.model.get_variables()):
        info = variable.info
        info.variable_id = f"{name}{number}"
        variable.update(info)
    compiled = ovp.compile_model(imported, "CPU", ONE_THREAD)
    session, other = ovp.Session(compiled, imported.info), ovp.Session(compiled, imported.info)
    session.prefill([1, 2, 3])
    session.save(tmp_path / "s.safetensors")
    assert other.restore(tmp_path / "s.safetensors") == 3
    assert np.array_equal(other.decode(4), session.decode(4))
    with pytest.raises(ovp.StateError) as refusal:
        session.trim(9)
    assert "\n" not in str(refusal.value)
