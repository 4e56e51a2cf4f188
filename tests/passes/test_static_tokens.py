"""StaticTokens: every dim fixed, rows written on their cells; what cannot be is named and nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from openvino import Model, PartialShape

import ovpasses as ovp
from models.tiny_graphs import Decoder, int_constant, parameter, result, scattered, stateful, stateless
from ovpasses._openvino import Manager, Node, ops
from ovpasses.equivalence import structure_digest
from ovpasses.importers.graph_info import INFO_KEY
from ovpasses.passes import StaticTokens
from ovpasses.passes._static_check import not_static
from tests.conftest import RECORDED
from tests.passes.helpers import CORE, assert_same, nodes

HEADS, SIZE, VOCAB = 2, 3, 8
TABLE = np.random.default_rng(3).standard_normal((VOCAB, HEADS * SIZE)).astype(np.float32)
INPUTS = ("inp_tokens", "inp_kv_idx", "self_kq_mask", "inp_out_ids", "cache_k_l0")


def one_cache(
    tokens: int = -1,
    cells: int = -1,
    rows: int = -1,
    *,
    write: Callable[[Node, Node, Node], Node] | None = None,
    extra: bool = False,
) -> Model:
    """Embedded tokens are the rows of a cache, a weighted sum of which is put out; ``write`` puts them there."""
    shapes = ([1, 1, 1, tokens], [1, 1, 1, tokens], [1, 1, tokens, cells], [1, 1, 1, rows], [1, cells, HEADS, SIZE])
    types = ("i32", "i32", "f32", "i32", "f32")
    inputs = [parameter(name, shape, kind) for name, shape, kind in zip(INPUTS, shapes, types, strict=True)]
    ids, index, mask, wanted, cache = inputs
    flat = [ops.squeeze(x, int_constant([0, 1, 2])) for x in (ids, index, wanted)]
    embedded = ops.gather(ops.constant(TABLE), flat[0], int_constant(0))
    new = ops.reshape(embedded, int_constant([1, -1, HEADS, SIZE]), special_zero=False)
    update = (write or on_heads)(cache, flat[1], new)
    update.set_friendly_name("update")
    grown = ops.transpose(update, int_constant([0, 2, 1, 3]))
    seen = ops.gather(ops.matmul(mask, grown, False, False), flat[2], int_constant(2))
    kept = result(update, "kept")
    unread = [parameter("token_len_per_seq", [1], "i64")] if extra else []
    return Model([result(seen, "y"), kept], [*inputs, *unread], "one_cache")


def on_heads(cache: Node, index: Node, rows: Node) -> Node:
    """As OpenVINO's GGUF frontend does it."""
    flat = ops.reshape(rows, int_constant([1, 1, -1, SIZE]), special_zero=False)
    return ops.scatter_update(cache, index, flat, int_constant(2))


def on_cells(cache: Node, index: Node, rows: Node) -> Node:
    return ops.scatter_update(cache, index, rows, int_constant(1))


def names_of_outputs(model: Model) -> list[set[str]]:
    return [set(output.get_names()) for output in model.outputs]


@pytest.mark.parametrize(("tokens", "rows"), [(2, 1), (2, 2), (1, 1)])
def test_fixes_shapes_and_writes_rows_on_cells(tokens: int, rows: int) -> None:
    def make() -> StaticTokens:
        return StaticTokens(tokens=tokens, context=6, rows=rows, strict=True)

    model, one = one_cache(extra=True), make()
    assert one.run_on_model(model) is True
    assert one.report.sites == list(INPUTS)
    assert [(skip.node, skip.step) for skip in one.report.skipped] == [("token_len_per_seq", "already")]
    assert one.report.notes == ["removed unread inputs token_len_per_seq"]
    expected = one_cache(tokens, 6, rows, write=on_cells)
    expected.outputs[1].get_tensor().add_names({"cache_k_l0_out"})
    assert_same(model, expected)
    assert names_of_outputs(model) == [{"y"}, {"kept", "cache_k_l0_out"}]
    assert not_static(model) == []
    other, manager = one_cache(extra=True), Manager()
    manager.register_pass(make())
    manager.run_passes(other)
    assert_same(other, model)
    digest, again = structure_digest(model), make()
    assert again.run_on_model(model) is False
    assert again.report.rewritten == 0
    assert {skip.step for skip in again.report.skipped} == {"already"}
    assert structure_digest(model) == digest


@pytest.mark.parametrize("write", [on_heads, on_cells])
def test_numbers(write: Callable[[Node, Node, Node], Node]) -> None:
    model = one_cache(write=write)
    StaticTokens(tokens=2, context=6).run_on_model(model)
    compiled = CORE.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    random, held = np.random.default_rng(1), np.zeros((6, HEADS, SIZE), np.float32)
    for at, row in (([0, 1], 1), ([2, 3], 0), ([5, 2], 1)):
        ids, weights = random.integers(0, VOCAB, 2), random.standard_normal((2, 6)).astype(np.float32)
        found = compiled(
            {
                "inp_tokens": ids.astype(np.int32).reshape(1, 1, 1, 2),
                "inp_kv_idx": np.array(at, np.int32).reshape(1, 1, 1, 2),
                "self_kq_mask": weights.reshape(1, 1, 2, 6),
                "inp_out_ids": np.array([[[[row]]]], np.int32),
                "cache_k_l0": held[None].copy(),
            }
        )
        held[at] = TABLE[ids].reshape(2, HEADS, SIZE)
        assert np.array_equal(found["cache_k_l0_out"][0], held)
        wanted = np.einsum("c,chd->hd", weights[row].astype(np.float64), held)
        np.testing.assert_allclose(found["y"][0, :, 0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "rewritten"), [("llama-gqa", 11), ("gemma4-mixed", 18), ("qwen35", 7)])
@pytest.mark.parametrize("preset", ["static-prefill", "static-decode"])
def test_recorded_models(name: str, rewritten: int, preset: str) -> None:
    """Inputs with a token, row or cell count: five (six with a second mask), and two per attention layer."""
    imported = ovp.read_model(RECORDED / f"gguf/tiny-{name}.gguf")
    tokens = {"chunk": 16} if preset == "static-prefill" else {}
    report = ovp.Pipeline.preset(preset, context=128, strict=True, **tokens).run(imported)
    assert report["StaticTokens"].rewritten == rewritten
    assert not_static(imported.model) == []
    assert not [op for op in imported.model.get_ops() if op.get_type_info().version_id == "extension"]
    count = tokens.get("chunk", 1)
    shapes = {p.get_any_name(): list(p.get_shape()) for p in imported.model.inputs}
    assert shapes["inp_tokens"] == shapes["inp_kv_idx"] == [1, 1, 1, count]
    assert shapes["inp_pos"] == [1, 1, 1, count * imported.info.position_planes]
    assert shapes["inp_out_ids"] == [1, 1, 1, 1]
    for mask in [n for n in shapes if n.startswith("self_kq_mask")]:
        assert shapes[mask] == [1, 1, count, 128]
    layer = next(la for la in imported.info.layers if la.kind == "attention")
    assert shapes[f"cache_k_l{layer.index}"] == [1, 128, layer.n_heads_kv, layer.key_size]
    assert ("chunk_valid_len" in shapes) == (preset == "static-prefill" and name == "qwen35")
    carried = [n for n in shapes if n.startswith(("cache", "conv", "ssm"))]
    outputs = {next(iter(o.get_names()), ""): list(o.get_shape()) for o in imported.model.outputs}
    assert {n: outputs[f"{n}_out"] for n in carried} == {n: shapes[n] for n in carried}


def test_internal_ops_stay_when_asked_for() -> None:
    imported = ovp.read_model(RECORDED / "gguf/tiny-qwen35.gguf")
    ovp.Pipeline.preset("static-prefill", chunk=16, context=128, internal_ops=True).run(imported)
    assert len(nodes(imported.model, "GatedDeltaNet")) == 3
    assert not_static(imported.model) == []


def refused(model: Model, one: StaticTokens | None = None) -> str:
    """The message of the refusal; the model must be as it was."""
    one = one or StaticTokens(tokens=2, context=6)
    digest = structure_digest(model)
    with pytest.raises(ovp.RewriteError) as raised:
        one.run_on_model(model)
    assert structure_digest(model) == digest
    assert raised.value.reports == (one.report,)
    assert one.report.rewritten == 0
    assert {skip.step for skip in one.report.skipped} == {"static"}
    return str(raised.value)


def test_an_input_of_no_known_role_is_named() -> None:
    one = StaticTokens(tokens=2, context=6)
    message = refused(scattered(Decoder()), one)
    assert message.startswith("StaticTokens: with 2 tokens and 6 cells not all is static: ")
    assert "x: Parameter f32 [1,?,8] is dynamic" in message
    assert message.endswith(f"and {len(one.report.skipped) - 5} more; nothing was changed")
    assert message.count("is dynamic") == 5


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (stateful, r"cache_k_l0: ReadValue f32 [1,?,2,4] is dynamic"),
        (stateless, r"past_key_values.0.key: Parameter f32 [1,?,2,4] is dynamic"),
    ],
)
def test_caches_that_grow_are_named(build: Callable[[Decoder], Model], named: str) -> None:
    one = StaticTokens()
    refused(build(Decoder()), one)
    assert named in [str(skip) for skip in one.report.skipped]


def test_a_value_without_elements_is_named() -> None:
    model = one_cache()
    bounds = [int_constant([v]) for v in (0, 0, 1, 1)]
    nothing = ops.slice(model.get_results()[1].input_value(0), *bounds)
    nothing.set_friendly_name("nothing")
    model.add_results([result(nothing, "rest")])
    message = refused(model)
    assert "nothing: Slice f32 [1,0,2,3] has no elements" in message


def test_an_absent_input_of_an_internal_op_is_named_with_the_op() -> None:
    """Experts: the frontend leaves the bias of GatherMatmul out by a Constant of no type and no elements."""
    model = ovp.read_model(RECORDED / "families/llama-moe.gguf").model
    before = [str(port.get_partial_shape()) for port in model.inputs]
    with pytest.raises(ovp.RewriteError, match=r"Constant dynamic \[0\], input 3 of GatherMatmul GatherMatmul_"):
        StaticTokens(tokens=16, context=128).run_on_model(model)
    assert [str(port.get_partial_shape()) for port in model.inputs] == before


def test_shapes_that_do_not_fit_are_said_so() -> None:
    model = one_cache(cells=-1)
    fixed = ops.add(model.get_results()[1].input_value(0), ops.constant(np.zeros((1, 7, 1, 1), np.float32)))
    model.add_results([result(fixed, "seven")])
    assert "the graph: its shapes do not fit together" in refused(model)


def test_bodies_of_loops_are_looked_into() -> None:
    imported = ovp.read_model(RECORDED / "gguf/tiny-qwen35.gguf")
    ovp.LowerGatedDeltaNet().run_on_model(imported.model)
    inside = [reason for _, reason in not_static(imported.model) if "(in GatedDeltaNet_" in reason]
    assert inside
    ovp.Pipeline([StaticTokens(tokens=4, context=16, strict=True)]).run(imported)
    assert not_static(imported.model) == []


def test_a_failing_preset_leaves_the_model_as_it_was() -> None:
    imported = ovp.read_model(RECORDED / "after/llama-gqa/stateful/model.xml")
    digest = structure_digest(imported.model)
    with pytest.raises(ovp.RewriteError, match=r"ReadValue .* is dynamic"):
        ovp.Pipeline.preset("static-prefill", chunk=16, context=128).run(imported)
    assert structure_digest(imported.model) == digest


@pytest.mark.parametrize("part", ["prefill", "decode"])
def test_leaves_a_static_graph(part: str) -> None:
    model = ovp.read_model(RECORDED / f"after/llama-gqa/static/model_{part}.xml").model
    digest, one = structure_digest(model), StaticTokens()
    assert one.run_on_model(model) is False
    assert {skip.step for skip in one.report.skipped} == {"already"}
    assert structure_digest(model) == digest


def cells(model: Model) -> PartialShape:
    return next(p for p in model.inputs if "cache_k_l0" in p.get_names()).get_partial_shape()


@pytest.mark.parametrize(("known", "wanted"), [(None, 1024), (512, 512), (8192, 1024)])
def test_context_of_its_own(known: int | None, wanted: int) -> None:
    model = one_cache()
    if known is not None:
        model.set_rt_info(json.dumps(ovp.GraphInfo(context_length=known).to_dict()), list(INFO_KEY))
    StaticTokens(tokens=2).run_on_model(model)
    assert cells(model) == PartialShape([1, wanted, HEADS, SIZE])


def test_more_tokens_than_the_model_has_positions() -> None:
    model = one_cache()
    model.set_rt_info(json.dumps(ovp.GraphInfo(context_length=4).to_dict()), list(INFO_KEY))
    with pytest.raises(ovp.RewriteError, match="tokens is 5, wanted at most the context of 4 cells"):
        StaticTokens(tokens=5).run_on_model(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens is 0, wanted at least 1"),
        ({"context": -3}, "context is -3, wanted at least 1"),
        ({"rows": 0}, "rows is 0, wanted at least 1"),
        ({"rows": 2}, "rows is 2, wanted at most the 1 tokens of a call"),
        ({"tokens": 9, "context": 8}, "tokens is 9, wanted at most the context of 8 cells"),
    ],
)
def test_sizes_that_cannot_be(options: dict[str, int], message: str) -> None:
    with pytest.raises(ovp.RewriteError, match=message):
        StaticTokens(**options)


def test_options_of_the_presets() -> None:
    with pytest.raises(ovp.RewriteError, match=r"has no option 'window', known are strict, portable, chunk, context"):
        ovp.Pipeline.preset("static-prefill", window=3)
    with pytest.raises(ovp.RewriteError, match=r"preset static-decode has no option 'chunk', known are strict, porta"):
        ovp.Pipeline.preset("static-decode", chunk=3)
    with pytest.raises(ovp.RewriteError, match=r"preset stateful has no option 'context', known are strict, portable"):
        ovp.Pipeline.preset("stateful", context=3)


@pytest.mark.parametrize("preset", ["static-prefill", "static-decode"])
def test_repr_rebuilds_the_pipeline(preset: str) -> None:
    pipeline = ovp.Pipeline.preset(preset, context=300, strict=True)
    again = eval(repr(pipeline), {name: getattr(ovp, name) for name in ovp.__all__})
    assert repr(again) == repr(pipeline)
    assert "context=300" in repr(pipeline)
