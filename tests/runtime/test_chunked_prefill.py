"""ChunkedSession: a static pair gives what the dynamic model gives, whatever the chunks are padded with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import CompiledModel, Model, Type

import ovpasses as ovp
from ovpasses._openvino import ops
from ovpasses.export import save_ir
from ovpasses.passes._static_check import not_static
from ovpasses.runtime import chunked_prefill
from ovpasses.runtime.inputs import MAKERS, Step
from ovpasses.runtime.ports import input_tensor
from tests.conftest import RECORDED, nmse

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
NAMES = ["llama-gqa", "gemma4-mixed", "qwen35"]
TOKENS = np.random.default_rng(7).integers(0, 320, 128)
CHUNK = 16
LENGTHS = (15, 16, 17, 31, 32, 33, 40)


def gguf(name: str) -> Path:
    return RECORDED / "gguf" / f"tiny-{name}.gguf"


def caches_in_f32(model: Model) -> None:
    """Let nothing be rounded to f16, so that runs that are cut differently agree to f32 precision."""
    for op in model.get_ops():
        if op.get_output_size() != 1 or op.get_output_element_type(0) != Type.f16:
            continue
        if op.get_type_name() == "Parameter":
            op.set_element_type(Type.f32)
        elif op.get_type_name() == "Convert" and op.get_input_element_type(0) == Type.f32:
            op.output(0).replace(op.input_value(0))
        elif op.get_type_name() == "Constant" and not op.get_output_shape(0):  # others are scales of packed weights
            op.output(0).replace(ops.constant(op.get_data().astype(np.float32)).output(0))
    model.validate_nodes_and_infer_types()


def rewritten(name: str, preset: str, *, f32: bool = False, **options: Any) -> ovp.ImportedModel:
    imported = ovp.read_model(gguf(name))
    if f32:
        caches_in_f32(imported.model)
    ovp.Pipeline.preset(preset, strict=preset != "stateful", **options).run(imported)
    return imported


Pair = tuple[CompiledModel, CompiledModel, ovp.GraphInfo]


def static_pair(name: str, *, f32: bool = False, context: int = 128, rows: int = CHUNK) -> Pair:
    prefill = rewritten(name, "static-prefill", f32=f32, chunk=CHUNK, context=context, rows=rows)
    decode = rewritten(name, "static-decode", f32=f32, context=context)
    assert not_static(prefill.model) == not_static(decode.model) == []
    return ovp.compile_model(prefill, "CPU", F32), ovp.compile_model(decode, "CPU", F32), prefill.info


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def exact(name: str) -> tuple[Pair, CompiledModel]:
    """The static pair and the dynamic model, both without rounding to f16."""
    dynamic = rewritten(name, "stateful", f32=True)
    return static_pair(name, f32=True), ovp.compile_model(dynamic, "CPU", F32)


@pytest.fixture(scope="module")
def hybrid() -> tuple[Pair, CompiledModel]:
    dynamic = rewritten("qwen35", "stateful", f32=True)
    return static_pair("qwen35", f32=True), ovp.compile_model(dynamic, "CPU", F32)


def recurrent_states(compiled: CompiledModel, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Conv and delta-net states of one unpadded run of the dynamic model, by their input's name."""
    request = run_once(compiled, tokens, None)
    found = {}
    for state in request.query_state():
        half = state.name.removesuffix("_out")
        key = half[: len(half) // 2]
        if key.startswith(("conv_state", "ssm_state")):
            found[key] = np.array(state.state.data)
    assert len(found) == 6
    return found


def run_once(compiled: CompiledModel, tokens: np.ndarray, given: np.ndarray | None) -> openvino.InferRequest:
    planes = 4 if given is None else len(given)
    step = Step(tokens, 0, np.array([tokens.size - 1]), planes=planes, given=given)
    request = compiled.create_infer_request()
    request.infer({p.get_any_name(): input_tensor("", MAKERS[p.get_any_name()](step), p) for p in compiled.inputs})
    return request


@pytest.mark.parametrize("rows", [CHUNK, pytest.param(1, marks=pytest.mark.slow)])
def test_logits_of_llama_cpp(name: str, rows: int) -> None:
    """gemma4 leaves its window of 64 tokens on the way; one row per inference gives all rows too."""
    reference = np.load(RECORDED / "logits" / f"{name}.npz")
    session = ovp.ChunkedSession(*static_pair(name, rows=rows))
    found = session.prefill(reference["tokens"][:76], all_logits=True)
    decoded = np.concatenate([session.decode(int(token)) for token in reference["tokens"][76:]])
    assert session.position == 80
    assert found.shape == (76, 320)
    assert decoded.shape == (4, 320)
    assert nmse(found, reference["logits"][:76]) <= 1e-5
    assert nmse(decoded, reference["logits"][76:]) <= 1e-5
    top = np.concatenate([found, decoded]).argmax(1) == reference["logits"].argmax(1)
    assert top.mean() >= 0.98
    session.reset()
    assert np.array_equal(session.prefill(reference["tokens"][:76]), found[-1:])


def test_any_length_equals_the_dynamic_model(exact: tuple[Pair, CompiledModel]) -> None:
    pair, dynamic = exact
    session, whole = ovp.ChunkedSession(*pair), ovp.Session(dynamic, pair[2])
    for length in (*LENGTHS, 100, 127):
        session.reset()
        whole.reset()
        for got, wanted in (
            (session.prefill(TOKENS[:length]), whole.prefill(TOKENS[:length])),
            (session.decode(5), whole.decode(5)),
        ):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=f"{length} tokens")


@pytest.mark.parametrize("cuts", [(5, 60, 40, 23), (1, 1, 126), (100, 28), (17, 17, 17, 77)])
def test_any_cut_of_the_prompt(exact: tuple[Pair, CompiledModel], cuts: tuple[int, ...]) -> None:
    """Chunks then start anywhere, and the last ones have no cells left for their padding."""
    pair, _ = exact
    wanted = ovp.ChunkedSession(*pair).prefill(TOKENS, all_logits=True)
    session = ovp.ChunkedSession(*pair)
    pieces = np.split(TOKENS, np.cumsum(cuts)[:-1])
    found = np.concatenate([session.prefill(piece, all_logits=True) for piece in pieces])
    assert session.position == session.capacity == 128
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(1,) * 200, (50,) * 4, (63, 1, 1, 62, 1, 1, 71)])
def test_past_the_sliding_window(cuts: tuple[int, ...]) -> None:
    """Positions before, at and after the window of 64 and twice that, by single steps and by larger ones."""
    tokens = np.random.default_rng(11).integers(0, 320, 200)
    dynamic = rewritten("gemma4-mixed", "stateful", f32=True)
    wanted = ovp.Session(ovp.compile_model(dynamic, "CPU", F32), dynamic.info).prefill(tokens, all_logits=True)
    session = ovp.ChunkedSession(*static_pair("gemma4-mixed", f32=True, context=256))
    pieces = np.split(tokens, np.cumsum(cuts)[:-1])
    found = [session.decode(int(p[0])) if p.size == 1 else session.prefill(p, all_logits=True) for p in pieces]
    np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-5, atol=2e-5)


def assert_states_and_logits(pair: Pair, dynamic: CompiledModel, lengths: range) -> None:
    session, whole = ovp.ChunkedSession(*pair), ovp.Session(dynamic, pair[2])
    for length in lengths:
        session.reset()
        whole.reset()
        got, wanted = session.prefill(TOKENS[:length]), whole.prefill(TOKENS[:length])
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=f"logits, {length} tokens")
        for name, state in recurrent_states(dynamic, TOKENS[:length]).items():
            message = f"{name}, {length} tokens"
            np.testing.assert_allclose(session.state(name), state, rtol=1e-5, atol=1e-5, err_msg=message)


def test_padding_leaves_recurrent_states_alone(hybrid: tuple[Pair, CompiledModel]) -> None:
    """Lengths with fewer real tokens in the last chunk than the conv window has columns are among them."""
    assert_states_and_logits(*hybrid, range(4, 41, 5))
    assert_states_and_logits(*hybrid, range(16, 20))


@pytest.mark.slow
def test_padding_leaves_recurrent_states_alone_at_every_length(hybrid: tuple[Pair, CompiledModel]) -> None:
    assert_states_and_logits(*hybrid, range(1, 41))


def test_padding_that_counts_as_real_is_noticed(
    hybrid: tuple[Pair, CompiledModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the test above: with every token of a chunk called real it fails, as it would without the gates."""
    monkeypatch.setitem(MAKERS, "chunk_valid_len", lambda step: np.array([step.count]))
    with pytest.raises(AssertionError, match="4 tokens"):
        assert_states_and_logits(*hybrid, range(4, 5))
    assert_states_and_logits(*hybrid, range(16, 17))  # nothing to pad


def test_without_chunk_valid_len_padding_reaches_the_states(
    hybrid: tuple[Pair, CompiledModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, dynamic = hybrid
    imported = ovp.read_model(gguf("qwen35"))
    caches_in_f32(imported.model)
    ovp.Pipeline([ovp.StaticTokens(tokens=CHUNK, context=128), ovp.LowerGatedDeltaNet()]).run(imported)
    ungated = ovp.compile_model(imported, "CPU", F32)
    with pytest.raises(ovp.StateError, match="layer 0 is recurrent and the prefill model has no input chunk_valid_len"):
        ovp.ChunkedSession(ungated, *pair[1:])
    monkeypatch.setattr(chunked_prefill, "RECURRENT", "")  # not asked, it would be wrong
    with pytest.raises(AssertionError, match="5 tokens"):
        assert_states_and_logits((ungated, *pair[1:]), dynamic, range(5, 6))


def test_what_a_chunk_is_padded_with_makes_no_difference(hybrid: tuple[Pair, CompiledModel]) -> None:
    def run(pad: int) -> Iterator[bytes]:
        session = ovp.ChunkedSession(*hybrid[0], pad_token=pad)
        for length in (4, 18, 21):
            yield session.prefill(TOKENS[:length], all_logits=True).tobytes()
        yield session.decode(3).tobytes()
        for layer in range(3):
            yield session.state(f"conv_state_l{layer}").tobytes()
            yield session.state(f"ssm_state_l{layer}").tobytes()
        for cache in ("cache_k_l3", "cache_v_l3"):
            yield session.state(cache)[:, : session.position].tobytes()

    first, *others = [list(run(pad)) for pad in (0, 5, 319)]
    assert all(other == first for other in others)


def test_position_planes_that_differ(hybrid: tuple[Pair, CompiledModel]) -> None:
    pair, dynamic = hybrid
    count = np.arange(40)
    planes = np.stack([count // 2, count % 7 + 3, count, np.zeros_like(count)])
    session = ovp.ChunkedSession(*pair)
    found = session.prefill(TOKENS[:40], positions=planes)
    request = run_once(dynamic, TOKENS[:40], planes)
    wanted = request.get_output_tensor(0).data.reshape(1, -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    session.reset()
    assert nmse(session.prefill(TOKENS[:40]), wanted) > 1e-4  # they matter
    with pytest.raises(ovp.StateError, match=r"positions are int64 \[3, 40\], wanted integers \[4, 40\]"):
        session.prefill(TOKENS[:40], positions=planes[:3])


@pytest.fixture(scope="module")
def small() -> Pair:
    return static_pair("llama-gqa", context=64, rows=1)


@pytest.fixture
def no_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    def infer(*_: Any) -> None:
        raise AssertionError("an inference was run")

    monkeypatch.setattr(chunked_prefill._Stage, "infer", infer)


def test_a_prompt_fills_the_context(small: Pair) -> None:
    session = ovp.ChunkedSession(*small)
    done: list[int] = []
    session.prefill(TOKENS[:64], progress=done.append)
    assert done == [16, 32, 48, 64]
    with pytest.raises(ovp.StateError, match="1 tokens at position 64 go past the context of 64 tokens"):
        session.decode(1)


@pytest.mark.usefixtures("no_inference")
@pytest.mark.parametrize("count", [65, 200])
def test_too_long_a_prompt_is_refused_before_anything_runs(small: Pair, count: int) -> None:
    session = ovp.ChunkedSession(*small)
    with pytest.raises(ovp.StateError, match=f"{count} tokens at position 0 go past the context of 64 tokens"):
        session.prefill(np.arange(count))
    assert session.position == 0


def test_decoding_ends_where_the_context_does(small: Pair) -> None:
    session = ovp.ChunkedSession(*small)
    session.prefill(TOKENS[:60])
    for token in TOKENS[60:64]:
        session.decode(int(token))
    for _ in range(2):
        with pytest.raises(ovp.StateError, match="position 64 go past the context of 64"):
            session.decode(1)
    session.reset()
    fresh = ovp.ChunkedSession(*small)
    assert np.array_equal(session.prefill(TOKENS[:20]), fresh.prefill(TOKENS[:20]))
    assert np.array_equal(session.decode(7), fresh.decode(7))


def test_trim_and_go_on(small: Pair) -> None:
    session, fresh = ovp.ChunkedSession(*small), ovp.ChunkedSession(*small)
    session.prefill(TOKENS[:64])
    for n in (-1, 65):
        with pytest.raises(ovp.StateError, match=f"cannot trim to {n}: .* holds 64 tokens, position is 64"):
            session.trim(n)
    session.trim(64)
    session.trim(10)
    fresh.prefill(TOKENS[:10])
    assert session.position == 10
    np.testing.assert_allclose(session.prefill(TOKENS[70:90]), fresh.prefill(TOKENS[70:90]), rtol=1e-5, atol=1e-5)
    session.trim(0)
    assert np.array_equal(session.prefill(TOKENS[:10]), ovp.ChunkedSession(*small).prefill(TOKENS[:10]))


def test_a_recurrent_state_does_not_go_back(hybrid: tuple[Pair, CompiledModel]) -> None:
    session = ovp.ChunkedSession(*hybrid[0])
    session.prefill(TOKENS[:20])
    with pytest.raises(ovp.StateError, match=r"conv_state_l0 is a recurrent state \(conv\) at position 20"):
        session.trim(10)
    session.trim(20)
    assert session.position == 20
    session.trim(0)
    assert not session.state("ssm_state_l0").any()


def test_a_dynamic_model_is_told_of_the_presets_before_an_npu_is_asked() -> None:
    class Devices:
        def __init__(self, *names: str) -> None:
            self.available_devices = names

        def compile_model(self, model: Model, *_: Any) -> Model:
            return model

    there: Any = Devices("CPU", "NPU")
    absent: Any = Devices("CPU")
    dynamic = rewritten("llama-gqa", "stateful")
    with pytest.raises(ovp.DeviceError, match=r"is dynamic; an NPU takes .* run the preset static-prefill or static-d"):
        ovp.compile_model(dynamic, "NPU", core=absent)
    static = rewritten("llama-gqa", "static-decode", context=64)
    assert ovp.compile_model(static, "NPU", core=there) is static.model
    with pytest.raises(ovp.DeviceError, match="device NPU is not there"):
        ovp.compile_model(static, "NPU", core=absent)


def test_a_refusal_leaves_the_session_as_it_was(small: Pair) -> None:
    session, control = ovp.ChunkedSession(*small), ovp.ChunkedSession(*small)
    session.prefill(TOKENS[:10])
    control.prefill(TOKENS[:10])
    for bad in ([], [320], [-1], [1.5], list(range(60))):
        with pytest.raises(ovp.StateError):
            session.prefill(bad)
    assert np.array_equal(session.decode(3), control.decode(3))


def test_a_failed_inference_asks_for_a_reset(small: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("Check 'x' failed at a.cpp:1:\nout of memory")

    session = ovp.ChunkedSession(*small)
    with monkeypatch.context() as patch:
        patch.setattr(chunked_prefill._Stage, "infer", fail)
        with pytest.raises(ovp.DeviceError, match="position 0: out of memory"):
            session.decode(1)
    with pytest.raises(ovp.StateError, match="reset it"):
        session.decode(1)
    session.reset()
    assert session.decode(1).shape == (1, 320)


def test_models_that_do_not_fit_each_other(small: Pair) -> None:
    prefill, decode, info = small
    larger = static_pair("llama-gqa", context=96)
    with pytest.raises(ovp.StateError, match="the prefill model has 64 cells, the decode model 96"):
        ovp.ChunkedSession(prefill, larger[1], info)
    with pytest.raises(ovp.StateError, match="the decode model takes 16 tokens, wanted 1"):
        ovp.ChunkedSession(prefill, prefill, info)
    other = ovp.compile_model(rewritten("qwen35", "static-decode", context=64), "CPU", F32)
    with pytest.raises(ovp.StateError, match=r"cache_k_l0 is f16 \[1,64,3,16\] in the prefill model and not there in"):
        ovp.ChunkedSession(prefill, other, info)
    dynamic = ovp.compile_model(rewritten("llama-gqa", "stateful"), "CPU", F32)
    with pytest.raises(ovp.StateError, match=r"is dynamic, wanted a model of the preset"):
        ovp.ChunkedSession(dynamic, decode, info)
    with pytest.raises(ovp.StateError, match="token id 320 is outside"):
        ovp.ChunkedSession(prefill, decode, info, pad_token=320)


def test_nothing_is_copied_between_the_models(small: Pair) -> None:
    """What one model has written is, as the same memory, what the other reads."""
    session = ovp.ChunkedSession(*small)
    session.prefill(TOKENS[:5])
    prefill, decode = session._prefill, session._decode
    name = "cache_k_l0"
    written = prefill.request.get_tensor(prefill.carried[name][1]).data
    session.decode(1)
    read = decode.request.get_tensor(decode.carried[name][0]).data
    assert np.shares_memory(written, read)
    assert np.abs(read[0, :5].astype(np.float32)).min(-1).max() > 0
    assert not read[0, 16:].any()


LOAD = """
import sys
import numpy as np
import openvino
for path in sys.argv[1:]:
    compiled = openvino.Core().compile_model(path, "CPU")
    assert all(port.partial_shape.is_static for port in [*compiled.inputs, *compiled.outputs])
    compiled({port: np.zeros(port.shape, port.element_type.to_dtype()) for port in compiled.inputs})
assert "ovpasses" not in sys.modules
"""


def test_a_saved_pair_needs_nothing_but_openvino(tmp_path: Path) -> None:
    reference = np.load(RECORDED / "logits/qwen35.npz")
    paths = [tmp_path / "prefill.xml", tmp_path / "decode.xml"]
    save_ir(rewritten("qwen35", "static-prefill", chunk=CHUNK, context=128), paths[0])
    save_ir(rewritten("qwen35", "static-decode", context=128), paths[1])
    subprocess.run([sys.executable, "-c", LOAD, *map(str, paths)], check=True, cwd=tmp_path)
    read = [ovp.read_model(path) for path in paths]
    session = ovp.ChunkedSession(*(ovp.compile_model(model, "CPU", F32) for model in read), read[0].info)
    assert nmse(session.prefill(reference["tokens"][:76]), reference["logits"][75:76]) <= 1e-5
    assert nmse(session.decode(int(reference["tokens"][76])), reference["logits"][76:77]) <= 1e-5


@pytest.mark.parametrize(("wanted", "given"), [("f16", np.float32), ("f32", np.float64), ("i32", np.int64)])
def test_widths_convert(wanted: str, given: Any) -> None:
    port = ops.parameter([1, 1, 2, 3], getattr(openvino.Type, wanted)).output(0)
    tensor = input_tensor("x", np.zeros((2, 3), given), port)
    assert tensor.element_type == getattr(openvino.Type, wanted)
    assert list(tensor.shape) == [1, 1, 2, 3]


@pytest.mark.parametrize(("wanted", "given"), [("f16", np.int64), ("i32", np.float32)])
def test_integers_and_floats_do_not_mix(wanted: str, given: Any) -> None:
    port = ops.parameter([2], getattr(openvino.Type, wanted)).output(0)
    with pytest.raises(ovp.StateError, match=f"input x is {wanted}, given {np.dtype(given)}"):
        input_tensor("x", np.zeros(2, given), port)


def test_mask_of_a_padded_chunk() -> None:
    no = -np.inf
    step = Step(np.zeros(4, dtype=np.int64), 2, np.array([1]), real=2, cells=8, window=3)
    assert MAKERS["self_kq_mask"](step)[:2].tolist() == [[0, 0, 0, no, no, no, no, no], [0, 0, 0, 0, no, no, no, no]]
    assert MAKERS["self_kq_mask_swa"](step).tolist() == [
        [0, 0, 0, no, no, no, no, no],
        [no, 0, 0, 0, no, no, no, no],
        [no, no, 0, 0, 0, no, no, no],
        [no, no, no, 0, 0, 0, no, no],
    ]
    assert MAKERS["chunk_valid_len"](step).tolist() == [2]
    assert MAKERS["inp_kv_idx"](step).tolist() == [2, 3, 4, 5]


def test_positions_of_padding_go_on_in_each_plane() -> None:
    given = np.array([[7, 8], [1, 1], [4, 9], [0, 0]])
    step = Step(np.zeros(4, dtype=np.int64), 2, np.array([1]), planes=4, real=2, given=given)
    assert MAKERS["inp_pos"](step).reshape(4, 4).tolist() == [[7, 8, 9, 10], [1, 1, 2, 3], [4, 9, 10, 11], [0, 0, 1, 2]]
