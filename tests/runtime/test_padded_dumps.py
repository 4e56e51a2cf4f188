"""Padded chunks over dumps of a hybrid model: recurrent states in slots, or inside, are those of the real tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino import CompiledModel

import ovpasses as ovp
from ovpasses import ChunkValidLen, LowerGatedDeltaNet, Pipeline, StaticSlotCopy
from ovpasses.cli import main
from ovpasses.equivalence import structure_digest
from ovpasses.passes._static_check import not_static
from ovpasses.runtime import chunked_prefill
from ovpasses.runtime.external_cache import ExternalCache
from ovpasses.runtime.inputs import MAKERS, Step
from ovpasses.runtime.ports import input_tensor
from tests.conftest import RECORDED, nmse
from tests.runtime.test_chunked_prefill import LOAD

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
AGES = ("before", "after")
PHASES = ("prefill", "decode")
CHUNK, PLANES = 16, 4
REFERENCE = np.load(RECORDED / "logits" / "qwen35.npz")
TOKENS = REFERENCE["tokens"]
STATES = sorted(f"cache_{kind}_l{layer}" for kind in "rs" for layer in range(3))

Pair = tuple[CompiledModel, CompiledModel, ovp.GraphInfo]


def read(age: str, form: str) -> ovp.ImportedModel:
    return ovp.read_model(RECORDED / age / "qwen35" / f"{form}.xml")


def static(age: str, phase: str) -> ovp.ImportedModel:
    imported = read(age, f"static/model_{phase}")
    Pipeline.preset(f"static-{phase}", strict=True).run(imported)
    return imported


def compiled_pair(prefill: ovp.ImportedModel, decode: ovp.ImportedModel) -> Pair:
    return ovp.compile_model(prefill, "CPU", F32), ovp.compile_model(decode, "CPU", F32), prefill.info


@pytest.fixture(scope="module")
def repaired() -> Pair:
    """The older dump, which is neither static nor told of padding, as the presets leave it."""
    return compiled_pair(*(static("before", phase) for phase in PHASES))


class Padded:
    """Chunks of real tokens, each followed by made-up ones, over a dynamic dump with its caches outside or inside."""

    def __init__(self, imported: ovp.ImportedModel) -> None:
        self.compiled = ovp.compile_model(imported, "CPU", F32)
        self.roles = imported.info.roles
        self.request = self.compiled.create_infer_request()
        self.ports = {p.get_any_name(): p for p in self.compiled.inputs}
        self.outside = {n: p for n, p in self.ports.items() if n.startswith("cache_") and n not in self.roles}

    def run(self, chunks: list[int], pad: int = 0, *, made_up: int = 9, honest: bool = True) -> dict[str, np.ndarray]:
        """The recurrent states afterwards, by the name of their cache."""
        cache = ExternalCache(self.compiled, self.outside, 128)
        self.request.reset_state()
        start = held = 0
        for real in chunks:
            ids = np.concatenate([TOKENS[start : start + real], np.full(pad, made_up)])
            held += ids.size
            # States keep the rows of padding too. What attention makes of them no recurrent layer here gets to see.
            cells = None if self.outside else held
            step = Step(ids, start, np.array([real - 1]), PLANES, real=real if honest else None, cells=cells)
            made = {n: p for n, p in self.ports.items() if n not in self.outside}
            feed: dict[str, Any] = {n: input_tensor(n, MAKERS[self.roles.get(n, n)](step), p) for n, p in made.items()}
            self.request.infer({**feed, **cache.feed()})
            cache.take(self.request)
            start += real
        inside = {s.name: np.array(s.state.data) for s in self.request.query_state()}
        values = {**inside, **{name: cache.value(name) for name in self.outside}}
        return {n[: len("cache_r_l0")]: v.ravel() for n, v in values.items() if n.startswith(("cache_r", "cache_s"))}


def dynamic(age: str, form: str, gated: bool = True) -> ovp.ImportedModel:
    """A dynamic dump, with its states inside for form "stateful"."""
    imported = read(age, "stateless/model" if form == "stateful" else form)
    if form == "stateful":
        Pipeline.preset("stateful", strict=True).run(imported)
    Pipeline([*([ChunkValidLen(strict=True)] if gated else []), LowerGatedDeltaNet(strict=True)]).run(imported)
    return imported


@pytest.fixture(scope="module")
def unpadded() -> Padded:
    return Padded(dynamic("before", "stateless/model", gated=False))


# The static pair -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("phase", PHASES)
def test_presets_leave_nothing_dynamic_or_empty(age: str, phase: str) -> None:
    plain = read(age, f"static/model_{phase}")
    assert not_static(plain.model)
    with pytest.raises(ovp.RewriteError, match="not all is static"):  # without StaticSlotCopy
        ovp.StaticTokens().run_on_model(plain.model)
    imported = static(age, phase)
    assert not_static(imported.model) == []
    names = {p.get_any_name() for p in imported.model.inputs}
    assert ("chunk_valid_len" in names) == (phase == "prefill" or age == "after")
    slots = next(p for p in imported.model.inputs if imported.info.roles.get(p.get_any_name()) == "rs_s_copy")
    assert list(slots.get_shape()) == [1, 1, 1, 1]


@pytest.mark.parametrize("age", AGES)
def test_logits_are_those_of_llama_cpp(age: str) -> None:
    """The fifth chunk has twelve real tokens. A second run starts over states that the first has left."""
    session = ovp.ChunkedSession(*compiled_pair(*(static(age, phase) for phase in PHASES)))
    for _ in range(2):
        found = session.prefill(TOKENS[:76], all_logits=True)
        decoded = np.concatenate([session.decode(int(token)) for token in TOKENS[76:]])
        assert nmse(found, REFERENCE["logits"][:76]) <= 1e-5
        assert nmse(decoded, REFERENCE["logits"][76:]) <= 1e-5
        session.reset()


def check_lengths(pair: Pair, whole: Padded, lengths: range) -> None:
    session = ovp.ChunkedSession(*pair)
    names = {n.split("#")[0]: n for n in (p.get_any_name() for p in pair[0].inputs)}
    for length in lengths:
        session.reset()
        logits = session.prefill(TOKENS[:length])
        assert nmse(logits, REFERENCE["logits"][length - 1 : length]) <= 1e-5, f"{length} tokens"
        wanted = whole.run([length])
        assert sorted(wanted) == STATES
        for name in STATES:
            found, message = session.state(names[name]).ravel(), f"{name}, {length} tokens"
            np.testing.assert_allclose(found, wanted[name], rtol=1e-5, atol=1e-5, err_msg=message)


def test_padding_leaves_recurrent_states_alone_at_every_length(repaired: Pair, unpadded: Padded) -> None:
    check_lengths(repaired, unpadded, range(4, 41))


def test_without_the_gate_padding_reaches_the_states(
    repaired: Pair, unpadded: Padded, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = read("before", "static/model_prefill")
    Pipeline([StaticSlotCopy(strict=True), LowerGatedDeltaNet(strict=True)]).run(imported)
    ungated = (ovp.compile_model(imported, "CPU", F32), *repaired[1:])
    with pytest.raises(ovp.StateError, match="the prefill model has no input chunk_valid_len"):
        ovp.ChunkedSession(*ungated)
    monkeypatch.setattr(chunked_prefill, "RECURRENT", "")  # not asked, it would be wrong
    with pytest.raises(AssertionError, match="5 tokens"):
        check_lengths(ungated, unpadded, range(5, 6))
    check_lengths(ungated, unpadded, range(16, 17))  # nothing to pad


def test_what_a_chunk_is_padded_with_makes_no_difference(repaired: Pair) -> None:
    names = [n for n in (p.get_any_name() for p in repaired[0].inputs) if n.startswith(("cache_r_l", "cache_s_l"))]
    assert len(names) == len(STATES)
    found = []
    for pad in (0, 5, 319):
        session = ovp.ChunkedSession(*repaired, pad_token=pad)
        logits = [session.prefill(TOKENS[:length], all_logits=True).tobytes() for length in (4, 18, 21)]
        found.append([*logits, session.decode(3).tobytes(), *(session.state(name).tobytes() for name in names)])
    assert found[1] == found[0]
    assert found[2] == found[0]


# Dynamic dumps made static -------------------------------------------------------------------------------------------


def made_static(age: str, name: str, phase: str) -> ovp.ImportedModel:
    # A dump of a model with sliding layers holds neither window nor which layers slide: the GGUF says it.
    info = ovp.read_model(RECORDED / f"gguf/tiny-{name}.gguf").info if name == "gemma4-mixed" else None
    imported = ovp.read_model(RECORDED / f"{age}/{name}/stateless/model.xml", info=info)
    chunk = {"chunk": CHUNK} if phase == "prefill" else {}
    Pipeline.preset(f"static-{phase}", strict=True, context=128, **chunk).run(imported)
    assert not_static(imported.model) == []
    return imported


@pytest.mark.parametrize("name", ["llama-gqa", "gemma4-mixed", "qwen35"])
@pytest.mark.parametrize("age", AGES)
def test_a_dynamic_dump_as_a_static_pair(age: str, name: str) -> None:
    session = ovp.ChunkedSession(*compiled_pair(*(made_static(age, name, phase) for phase in PHASES)))
    reference = np.load(RECORDED / "logits" / f"{name}.npz")
    tokens, wanted = reference["tokens"], reference["logits"]
    for _ in range(2):
        found = session.prefill(tokens[:76], all_logits=True)
        decoded = np.concatenate([session.decode(int(token)) for token in tokens[76:]])
        assert nmse(found, wanted[:76]) <= 1e-5
        assert nmse(decoded, wanted[76:]) <= 1e-5
        session.reset()


@pytest.mark.parametrize("phase", PHASES)
def test_a_second_run_of_the_presets_changes_nothing(phase: str) -> None:
    for imported in (static("before", phase), made_static("before", "qwen35", phase)):
        digest = structure_digest(imported.model)
        assert Pipeline.preset(f"static-{phase}", strict=True).run(imported).rewritten == 0
        assert structure_digest(imported.model) == digest


@pytest.mark.parametrize("age", AGES)
def test_states_of_a_dynamic_dump_as_a_static_pair(age: str, unpadded: Padded) -> None:
    pair = compiled_pair(*(made_static(age, "qwen35", phase) for phase in PHASES))
    check_lengths(pair, unpadded, range(4, 41, 3))


@pytest.mark.parametrize("age", AGES)
def test_a_dump_of_several_sequences_is_no_static_pair(age: str) -> None:
    imported = read(age, "stateless-slots-2-of-4/model")
    with pytest.raises(ovp.RewriteError, match=r"OneSequence: n_seq_active: input .* chooses among several sequences"):
        Pipeline.preset("static-prefill", strict=True, chunk=CHUNK, context=128).run(imported)
    with pytest.raises(ovp.RewriteError, match=r"StaticTokens: input seq_active_end chooses among several.*sequences"):
        Pipeline.preset("static-prefill", chunk=CHUNK, context=128).run(imported)


# Dynamic dumps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["stateless/model", "stateful", "stateless-slots-2-of-4/model"])
@pytest.mark.parametrize("age", AGES)
def test_padding_leaves_the_states_of_a_dynamic_dump_alone(age: str, form: str) -> None:
    """Two real tokens are fewer than the window of three columns."""
    one = Padded(dynamic(age, form))
    wanted = Padded(dynamic(age, form, gated=False)).run([11, 2, 4])
    assert sorted(wanted) == STATES
    for found, tolerance in ((one.run([11, 2, 4]), 0.0), (one.run([11, 2, 4], pad=5), 1e-5)):
        for name in STATES:
            np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)
    padded, other = (one.run([11, 2, 4], pad=5, made_up=token) for token in (0, 319))
    assert all(np.array_equal(padded[name], other[name]) for name in STATES)
    told_nothing = one.run([11, 2, 4], pad=5, honest=False)
    assert max(np.abs(told_nothing[name] - wanted[name]).max() for name in STATES) > 1e-2


# Saved pairs ---------------------------------------------------------------------------------------------------------


@pytest.mark.needs_2026_4
@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        pytest.param("gguf/tiny-qwen35.gguf", ("--context", "128"), marks=pytest.mark.needs_2026_4),
        ("before/qwen35/static/model_{phase}.xml", ()),
    ],
)
def test_a_converted_pair_needs_nothing_but_openvino(model: str, sizes: tuple[str, ...], tmp_path: Path) -> None:
    paths = [tmp_path / f"{phase}.xml" for phase in PHASES]
    for phase, path in zip(PHASES, paths, strict=True):
        chunk = ("--chunk", str(CHUNK)) if phase == "prefill" else ()
        source = str(RECORDED / model.format(phase=phase))
        options = ["--preset", f"static-{phase}", "--strict", *sizes, *chunk]
        with pytest.raises(SystemExit) as ended:
            main(["convert", source, "-o", str(path), *options])
        assert not ended.value.code
    subprocess.run([sys.executable, "-c", LOAD, *map(str, paths)], check=True, cwd=tmp_path)
    session = ovp.ChunkedSession(*compiled_pair(*(ovp.read_model(path) for path in paths)))
    assert nmse(session.prefill(TOKENS[:76]), REFERENCE["logits"][75:76]) <= 1e-5
    assert nmse(session.decode(int(TOKENS[76])), REFERENCE["logits"][76:77]) <= 1e-5
