"""LowerGatedDeltaNet: numbers against an f64 loop, form of the lowered graph, refusals, recorded models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino import CompiledModel, Core, Model, PartialShape, save_model

from ovpasses import Session, compile_model, read_model
from ovpasses._openvino import Manager, Node, ops
from ovpasses.errors import RewriteError
from ovpasses.importers.internal_ops import GatedDeltaNet
from ovpasses.passes import BeamReorder, KVStateSeqAxis, LowerGatedDeltaNet, MakeKVStateful

RECORDED = Path(__file__).resolve().parents[2] / "models" / "recorded"
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
TOLERANCE = 1e-5  # f32 against f64, keys of length 1, values around 1
EPS = 1e-6

# batch, key heads, value heads, key size, value size
Sizes = tuple[int, int, int, int, int]


def shapes(sizes: Sizes, tokens: int) -> list[list[int]]:
    b, hk, h, s, sv = sizes
    return [[b, tokens, hk, s], [b, tokens, hk, s], [b, tokens, h, sv], [b, h, s, sv], [b, tokens, h], [b, tokens, h]]


def graph(declared: list[Any], dtype: Any = np.float32, **attributes: Any) -> Model:
    parameters = [ops.parameter(shape, dtype) for shape in declared]
    op = GatedDeltaNet([p.output(0) for p in parameters], **attributes)
    op.set_friendly_name("delta")
    return Model([ops.result(op.output(0)), ops.result(op.output(1))], parameters, "delta_net")


def native_graph(declared: list[list[int]], **attributes: Any) -> Model:
    """The native op, out of an imported GGUF: Python cannot make it."""
    imported = read_model(RECORDED / "gguf" / "tiny-qwen35.gguf").model
    op = delta_nets(imported)[0]
    parameters = [ops.parameter(shape, np.float32) for shape in declared]
    op.set_arguments([p.output(0) for p in parameters])
    for name, value in attributes.items():
        op.set_attribute(name, value)
    op.validate_and_infer_types()
    return Model([op.output(0), op.output(1)], parameters, "delta_net")


def data(sizes: Sizes, tokens: int, gate: float | None = None, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    values = [rng.standard_normal(shape) for shape in shapes(sizes, tokens)]
    values[1] /= np.linalg.norm(values[1], axis=-1, keepdims=True)
    values[4] = -np.abs(values[4]) if gate is None else np.full_like(values[4], gate)
    values[5] = rng.random(values[5].shape)
    return [x.astype(np.float32) for x in values]


def expected(inputs: list[np.ndarray], order: str = "tile", eps: tuple[float, float] | None = None) -> list[np.ndarray]:
    """The delta rule token by token in f64."""
    q, k, v, state, g, beta = (x.astype(np.float64) for x in inputs)
    if eps is not None:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + e) for x, e in zip((q, k), eps, strict=True))
    q, k = q / np.sqrt(q.shape[-1]), k
    repeats = v.shape[2] // q.shape[2]
    q, k = (np.tile(x, (1, 1, repeats, 1)) if order == "tile" else np.repeat(x, repeats, 2) for x in (q, k))
    attention = np.zeros_like(v)
    for t in range(v.shape[1]):
        state = state * np.exp(g[:, t])[..., None, None]
        d = (v[:, t] - np.einsum("bhsv,bhs->bhv", state, k[:, t])) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * d[:, :, None, :]
        attention[:, t] = np.einsum("bhsv,bhs->bhv", state, q[:, t])
    return [attention, state]


def lower(model: Model, **options: Any) -> LowerGatedDeltaNet:
    lowering = LowerGatedDeltaNet(**options)
    lowering.run_on_model(model)
    return lowering


def reopened(model: Model, folder: Path, **options: Any) -> CompiledModel:
    """Saved, read by a Core that knows no extension, and compiled."""
    save_model(model, folder / "model.xml", **{"compress_to_fp16": False, **options})
    core = Core()
    return core.compile_model(core.read_model(folder / "model.xml"), "CPU", F32)


def layer_types(compiled: CompiledModel) -> list[str]:
    return [op.get_rt_info()["layerType"].value for op in compiled.get_runtime_model().get_ops()]


def delta_nets(model: Model) -> list[Node]:
    return [op for op in model.get_ops() if op.get_type_name() == "GatedDeltaNet"]


def loops(model: Model) -> list[Node]:
    return [op for op in model.get_ops() if op.get_type_name() == "Loop"]


def error(compiled: CompiledModel, inputs: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    found = compiled(inputs)
    assert [found[i].shape for i in (0, 1)] == [w.shape for w in wanted]
    return max(float(np.abs(found[i] - wanted[i]).max()) for i in (0, 1))


HEADS = [(1, 1), (2, 4), (3, 6)]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("sizes", [(8, 8), (8, 16), (16, 8), (128, 128)])
def test_numbers_with_dynamic_tokens(heads: tuple[int, int], sizes: tuple[int, int], tmp_path: Path) -> None:
    every = (1, *heads, *sizes)
    model = graph(shapes(every, -1))
    lower(model)
    compiled = reopened(model, tmp_path)
    for tokens in (1, 2, 17, 64):
        for gate in (None, 0.0, -20.0):
            inputs = data(every, tokens, gate)
            assert error(compiled, inputs, expected(inputs)) < TOLERANCE, (tokens, gate)


@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize("heads", HEADS)
def test_numbers_with_static_tokens(tokens: int, heads: tuple[int, int], tmp_path: Path) -> None:
    every = (2, *heads, 8, 16)
    model = graph(shapes(every, tokens))
    lower(model)
    compiled = reopened(model, tmp_path)
    for gate in (None, 0.0, -20.0):
        inputs = data(every, tokens, gate)
        assert error(compiled, inputs, expected(inputs)) < TOLERANCE, gate


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 2, 17, 64, 300])
@pytest.mark.parametrize("heads", [*HEADS, (4, 32)])
@pytest.mark.parametrize("sizes", [(8, 8), (16, 16), (128, 128), (8, 128), (128, 8), (20, 12), (1, 3)])
def test_numbers_with_static_tokens_sweep(
    tokens: int, heads: tuple[int, int], sizes: tuple[int, int], tmp_path: Path
) -> None:
    every = (1, *heads, *sizes)
    model = graph(shapes(every, tokens))
    lower(model)
    compiled = reopened(model, tmp_path)
    for gate in (None, 0.0, -20.0):
        inputs = data(every, tokens, gate)
        assert error(compiled, inputs, expected(inputs)) < TOLERANCE, gate


@pytest.mark.parametrize("tokens", [1, 5, 17])
def test_few_key_heads_are_repeated_tiled_not_grouped(tokens: int, tmp_path: Path) -> None:
    every = (1, 2, 4, 16, 16)
    model = graph(shapes(every, tokens))
    report = lower(model).report
    compiled = reopened(model, tmp_path)
    inputs = data(every, tokens)
    assert error(compiled, inputs, expected(inputs)) < TOLERANCE
    assert error(compiled, inputs, expected(inputs, "group")) > 0.1
    assert report.notes == ["delta: 2 key heads for 4, tile order"]


@pytest.mark.parametrize("tokens", [1, 5])
def test_group_order_is_what_the_native_op_computes(tokens: int, tmp_path: Path) -> None:
    every = (1, 2, 4, 16, 16)
    inputs = data(every, tokens)
    model = native_graph(shapes(every, tokens))
    assert error(Core().compile_model(model, "CPU", F32), inputs, expected(inputs, "group")) < TOLERANCE
    (note,) = lower(model, key_heads="group").report.notes
    assert note.endswith(": 2 key heads for 4, group order")
    assert error(reopened(model, tmp_path), inputs, expected(inputs, "group")) < TOLERANCE


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("key_heads", ["tile", "group"])
@pytest.mark.parametrize("heads", [(2, 4), (4, 4)])
@pytest.mark.parametrize("normalise", [False, True])
def test_heads_split_from_one_value_keep_their_order(
    key_heads: str, heads: tuple[int, int], normalise: bool, tmp_path: Path
) -> None:
    """OpenVINO looks through the reshapes before a recognised op and may repeat key heads itself, grouped."""
    every, tokens = (1, *heads, 8, 8), 5
    declared = shapes(every, -1)
    widths = [int(np.prod(shape[2:])) for shape in declared[:3]]
    packed = ops.parameter([1, -1, sum(widths)], np.float32)
    rest = [ops.parameter(shape, np.float32) for shape in declared[3:]]
    parts = ops.variadic_split(packed, ops.constant(2), ops.constant(widths))
    q, k, v = (
        ops.reshape(parts.output(i), ops.constant([0, 0, *declared[i][2:]]), special_zero=True) for i in range(3)
    )
    op = GatedDeltaNet([q.output(0), k.output(0), v.output(0), *(p.output(0) for p in rest)], fuse_qk_l2norm=normalise)
    model = Model([op.output(0), op.output(1)], [packed, *rest], "delta_net")
    lower(model, key_heads=key_heads)
    compiled = reopened(model, tmp_path)
    inputs = data(every, tokens)
    together = np.concatenate([x.reshape(1, tokens, -1) for x in inputs[:3]], axis=2)
    assert "GatedDeltaNet" in layer_types(compiled)
    wanted = expected(inputs, key_heads, (EPS, EPS) if normalise else None)
    assert error(compiled, [together, *inputs[3:]], wanted) < TOLERANCE


@pytest.mark.parametrize("tokens", [1, 5])
def test_l2_normalisation_is_that_of_the_native_op(tokens: int, tmp_path: Path) -> None:
    every = (1, 3, 3, 8, 16)
    inputs = data(every, tokens)
    inputs[1] *= 3
    attributes = {"fuse_qk_l2norm": True, "q_l2_norm_eps": 0.25, "k_l2_norm_eps": 0.5}
    model = native_graph(shapes(every, tokens), **attributes)
    wanted = expected(inputs, eps=(0.25, 0.5))
    assert error(Core().compile_model(model, "CPU", F32), inputs, wanted) < TOLERANCE
    for lowered in (model, graph(shapes(every, tokens), **attributes)):
        lower(lowered)
        assert error(reopened(lowered, tmp_path), inputs, wanted) < TOLERANCE


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("tokens", [-1, 2])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 8, 8), (1, 2, 4, 128, 128), (2, 3, 3, 8, 16)])
@pytest.mark.parametrize("attributes", [{}, {"fuse_qk_l2norm": True}])
def test_the_cpu_turns_the_loop_back_into_the_native_op(
    tokens: int, sizes: Sizes, attributes: dict[str, Any], tmp_path: Path
) -> None:
    model = graph(shapes(sizes, tokens), **attributes)
    lower(model)
    assert not delta_nets(model)
    assert len(loops(model)) == 1
    for compress_to_fp16 in (False, True):
        compiled = reopened(model, tmp_path, compress_to_fp16=compress_to_fp16)
        assert layer_types(compiled).count("GatedDeltaNet") == 1
        assert "TensorIterator" not in layer_types(compiled)


def test_one_token_needs_no_loop(tmp_path: Path) -> None:
    model = graph(shapes((1, 2, 4, 8, 8), 1))
    lower(model)
    assert not loops(model)
    assert "GatedDeltaNet" not in layer_types(reopened(model, tmp_path))


@pytest.mark.parametrize("dynamic", ["heads", "key heads", "sizes", "everything"])
@pytest.mark.parametrize("key_heads", ["tile", "group"])
def test_dynamic_heads_and_sizes(dynamic: str, key_heads: str, tmp_path: Path) -> None:
    every = (1, 2, 4, 8, 16)
    hk, h = {"heads": (-1, -1), "key heads": (-1, 4), "sizes": (2, 4), "everything": (-1, -1)}[dynamic]
    s, sv = (-1, -1) if dynamic in ("sizes", "everything") else (8, 16)
    model = graph(shapes((-1 if dynamic == "everything" else 1, hk, h, s, sv), -1))
    before = [o.get_partial_shape() for o in model.outputs]
    lower(model, key_heads=key_heads)
    assert [o.get_partial_shape() for o in model.outputs] == before
    compiled = reopened(model, tmp_path)
    for tokens in (1, 5):
        inputs = data(every, tokens)
        assert error(compiled, inputs, expected(inputs, key_heads)) < TOLERANCE


def test_bounds_and_batch_of_the_outputs_stay() -> None:
    tokens = "1..64"
    declared = ["[1,t,4,8]", "[1,t,4,8]", "[?,t,4,16]", "[1,4,8,16]", "[?,t,4]", "[1,t,4]"]
    model = graph([PartialShape(text.replace("t", tokens)) for text in declared])
    before = [o.get_partial_shape() for o in model.outputs]
    assert before[1].is_static
    lower(model)
    assert [o.get_partial_shape() for o in model.outputs] == before


def test_half_precision_inputs(tmp_path: Path) -> None:
    every = (1, 2, 4, 8, 8)
    model = graph(shapes(every, -1), np.float16)
    lower(model)
    assert [o.get_element_type().get_type_name() for o in model.outputs] == ["f16", "f16"]
    inputs = [x.astype(np.float16) for x in data(every, 5)]
    assert error(reopened(model, tmp_path), inputs, expected(inputs)) < 5e-3  # the outputs are rounded to f16


def test_names_and_rt_info_go_along() -> None:
    for tokens, kind in ((-1, "Loop"), (1, "Unsqueeze")):
        model = graph(shapes((1, 2, 4, 8, 8), tokens))
        op = delta_nets(model)[0]
        op.output(0).get_tensor().add_names({"attention"})
        op.output(1).get_tensor().add_names({"new_state"})
        before = [r.input_value(0).get_names() for r in model.get_results()]
        assert "attention" in before[0]
        assert "new_state" in before[1]
        op.get_rt_info()["layer"] = "7"
        lower(model)
        assert [r.input_value(0).get_names() for r in model.get_results()] == before
        named = next(n for n in model.get_ops() if n.get_friendly_name() == "delta")
        assert named.get_type_name() == kind
        for output in model.outputs:
            assert output.get_node().input_value(0).get_node().get_rt_info()["layer"].value == "7"


def test_shared_consumers_of_both_outputs(tmp_path: Path) -> None:
    every = (1, 2, 4, 8, 8)
    parameters = [ops.parameter(shape, np.float32) for shape in shapes(every, -1)]
    op = GatedDeltaNet([p.output(0) for p in parameters])
    attention, state = op.output(0), op.output(1)
    results = [attention, state, ops.negative(attention).output(0), ops.multiply(state, state).output(0)]
    model = Model(results, parameters, "delta_net")
    lower(model)
    found = reopened(model, tmp_path)(inputs := data(every, 5))
    a, s = expected(inputs)
    for index, wanted in enumerate((a, s, -a, s * s)):
        np.testing.assert_allclose(found[index], wanted, rtol=0, atol=TOLERANCE)


def test_two_layers_and_a_second_run() -> None:
    every = (1, 4, 4, 8, 8)
    parameters = [ops.parameter(shape, np.float32) for shape in shapes(every, -1)]
    first = GatedDeltaNet([p.output(0) for p in parameters])
    second = GatedDeltaNet(
        [first.output(0), *(p.output(0) for p in parameters[1:3]), first.output(1)]
        + [p.output(0) for p in parameters[4:]]
    )
    for name, op in (("first", first), ("second", second)):
        op.set_friendly_name(name)
    model = Model([second.output(0), second.output(1)], parameters, "delta_net")
    report = lower(model).report
    assert (report.candidates, report.rewritten, report.sites) == (2, 2, ["first", "second"])
    assert report.notes == []
    assert report.ops_before == 6 + 2 + 2
    assert report.ops_after == len(model.get_ops())
    again = lower(model)
    assert again.report.rewritten == again.report.candidates == 0
    assert again.report.summary() == f"nothing matched: no GatedDeltaNet op among {len(model.get_ops())} ops"


def test_works_in_a_bare_manager() -> None:
    model = graph(shapes((1, 2, 4, 8, 8), -1))
    manager, lowering = Manager(), LowerGatedDeltaNet()
    manager.register_pass(lowering)
    manager.run_passes(model)
    assert lowering.report.rewritten == 1
    assert not delta_nets(model)


GOOD: list[Any] = shapes((1, 2, 4, 8, 8), 5)


@pytest.mark.parametrize(
    ("step", "reason", "changed", "attributes"),
    [
        ("rank", "wanted ranks 4, 4, 4, 4, 3, 3", {4: [1, 5, 4, 1]}, {}),
        ("rank", "[1,5,4,8], [...], [1,5,4]", {3: PartialShape.dynamic()}, {}),
        ("shape", "the key size differs", {0: [1, 5, 2, 16]}, {}),
        ("shape", "the value size differs", {3: [1, 4, 8, 16]}, {}),
        ("shape", "the token count differs", {5: [1, 4, 4]}, {}),
        ("shape", "the batch differs", {3: [2, 4, 8, 8]}, {}),
        ("shape", "the key head count differs", {1: [1, 5, 1, 8]}, {}),
        ("shape", "the value head count differs", {4: [1, 5, 2]}, {}),
        ("heads", "4 value heads are no multiple of 3 key heads", {0: [1, 5, 3, 8], 1: [1, 5, 3, 8]}, {}),
        ("attributes", "fuse_q_scale unknown", {}, {"fuse_q_scale": True}),
    ],
)
def test_skips(step: str, reason: str, changed: dict[int, Any], attributes: dict[str, Any]) -> None:
    model = graph([changed.get(i, shape) for i, shape in enumerate(GOOD)], **attributes)
    report = lower(model).report
    assert report.rewritten == 0
    assert len(delta_nets(model)) == 1
    (skip,) = report.skipped
    assert (skip.node, skip.step) == ("delta", step)
    assert reason in skip.reason
    with pytest.raises(RewriteError, match="delta"):
        lower(model, strict=True)


def test_skips_integer_inputs() -> None:
    model = graph(GOOD, np.int32)
    (skip,) = lower(model).report.skipped
    assert (skip.step, skip.reason) == ("type", "query is i32, wanted f32, f16 or bf16")


def test_one_op_of_two_is_skipped() -> None:
    good, bad = graph(GOOD), graph(GOOD, fuse_q_scale=True)
    model = Model([*good.get_results(), *bad.get_results()], [*good.get_parameters(), *bad.get_parameters()], "two")
    report = lower(model).report
    assert report.summary() == "1 of 2 rewritten"
    assert len(delta_nets(model)) == len(loops(model)) == 1


def test_key_heads_is_checked_and_shown() -> None:
    with pytest.raises(RewriteError, match="'tile' or 'group'"):
        LowerGatedDeltaNet(key_heads="interleave")
    assert repr(LowerGatedDeltaNet()) == "LowerGatedDeltaNet()"
    assert repr(LowerGatedDeltaNet(key_heads="group", strict=True)) == (
        "LowerGatedDeltaNet(key_heads='group', strict=True)"
    )


def test_attributes_survive_an_ir(tmp_path: Path) -> None:
    every = (1, 2, 2, 8, 8)
    save_model(
        graph(shapes(every, -1), fuse_qk_l2norm=True, q_l2_norm_eps=0.25, k_l2_norm_eps=0.5), tmp_path / "internal.xml"
    )
    model = read_model(tmp_path / "internal.xml").model
    assert lower(model).report.rewritten == 1
    inputs = data(every, 5)
    assert error(reopened(model, tmp_path), inputs, expected(inputs, eps=(0.25, 0.5))) < TOLERANCE


ORDERS = [
    (MakeKVStateful, LowerGatedDeltaNet, KVStateSeqAxis, BeamReorder),
    (LowerGatedDeltaNet, MakeKVStateful, KVStateSeqAxis, BeamReorder),
    (MakeKVStateful, BeamReorder, KVStateSeqAxis, LowerGatedDeltaNet),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(p.cli_name() for p in order))
def test_qwen35_gguf_gives_the_recorded_logits(order: tuple[type, ...], tmp_path: Path) -> None:
    imported = read_model(RECORDED / "gguf" / "tiny-qwen35.gguf")
    for each in order:
        rewrite = each()
        rewrite.run_on_model(imported.model)
        if each is LowerGatedDeltaNet:
            assert rewrite.report.rewritten == 3  # layers 0 to 2 are recurrent, layer 3 is attention
    save_model(imported.model, tmp_path / "model.xml", compress_to_fp16=False)
    saved = Core().read_model(tmp_path / "model.xml")
    recurrent = [v.info for v in saved.get_variables() if "cache" not in v.info.variable_id]
    assert [info.data_type.get_type_name() for info in recurrent] == ["f32"] * 6
    compiled = compile_model(saved, "CPU", F32)
    assert layer_types(compiled).count("GatedDeltaNet") == 3

    recorded = np.load(RECORDED / "logits" / "qwen35.npz")
    tokens, wanted = recorded["tokens"], recorded["logits"].astype(np.float64)
    session = Session(compiled, imported.info)
    found = [session.prefill(tokens[:76], all_logits=True), *(session.decode(int(t)) for t in tokens[76:])]
    for rows, reference in ((found[0], wanted[:76]), (np.concatenate(found[1:]), wanted[76:])):
        assert ((rows - reference) ** 2).mean() / (reference**2).mean() <= 1e-5


PLAIN = """
import json, sys
import openvino as ov
core = ov.Core()
model = core.read_model(sys.argv[1])
compiled = core.compile_model(model, "CPU")
types = [op.get_rt_info()["layerType"].value for op in compiled.get_runtime_model().get_ops()]
print(json.dumps({"ovpasses": "ovpasses" in sys.modules, "fused": types.count("GatedDeltaNet"),
                  "loops": types.count("TensorIterator"), "ops": len(types)}))
"""


@pytest.mark.parametrize(
    ("dump", "fused"),
    [
        ("stateless/model.xml", 3),
        ("stateless-slots-2-of-4/model.xml", 3),
        ("static/model_prefill.xml", 3),
        ("static/model_decode.xml", 0),  # one token: no Loop
    ],
)
def test_plain_openvino_opens_a_lowered_dump(dump: str, fused: int, tmp_path: Path) -> None:
    model = read_model(RECORDED / "after" / "qwen35" / dump).model
    before = [(o.get_names(), o.get_element_type(), o.get_partial_shape()) for o in model.outputs]
    assert lower(model).report.summary() == "3 of 3 rewritten"
    assert [(o.get_names(), o.get_element_type(), o.get_partial_shape()) for o in model.outputs] == before
    save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    done = subprocess.run(
        [sys.executable, "-I", "-c", PLAIN, str(tmp_path / "model.xml")],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ovpasses"], found["fused"], found["loops"]) == (False, fused, 0)


def test_native_ops_are_left_alone_unless_asked(recorded: Path) -> None:
    imported = read_model(recorded / "gguf/tiny-qwen35.gguf")
    kept = LowerGatedDeltaNet(native=False)
    kept.run_on_model(imported.model)
    assert [skip.step for skip in kept.report.skipped] == ["kind"] * 3
    dump = read_model(recorded / "after/qwen35/stateless/model.xml")
    lowered = LowerGatedDeltaNet(native=False)
    lowered.run_on_model(dump.model)
    assert lowered.report.rewritten == 3
