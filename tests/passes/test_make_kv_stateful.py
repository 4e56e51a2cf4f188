"""MakeKVStateful: cache inputs and outputs become states; the steps of a generation stay what they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from openvino import Model, PartialShape, Type, save_model

from models import tiny_graphs as tiny
from models import tiny_onnx
from models.tiny_graphs import Decoder
from ovpasses import (
    BeamReorder,
    ImportedModel,
    KVStateSeqAxis,
    MakeKVStateful,
    Pipeline,
    RewriteError,
    Session,
    compile_model,
    read_model,
)
from ovpasses._openvino import Constant, Parameter, ops
from tests.passes.helpers import (
    CORE,
    assert_same,
    assert_same_numbers,
    check_pass,
    check_unchanged,
    names,
    nodes,
    only_skip,
    run,
)

RECORDED = Path(__file__).parents[2] / "models" / "recorded"


def carried(layers: int) -> dict[str, str]:
    kinds = [(layer, kind) for layer in range(layers) for kind in ("key", "value")]
    return {f"present.{layer}.{kind}": f"past_key_values.{layer}.{kind}" for layer, kind in kinds}


def shapes(model: Model) -> list[str]:
    return [str(v.info.data_shape) for v in model.get_variables()]


# Caches that grow by a Concat ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd"])
def test_concat_form(layout: str, heads: int, dtype: str) -> None:
    knobs = Decoder(layers=2, heads=heads, repeats=2, layout=layout, dtype=dtype)
    model, report = check_pass(
        MakeKVStateful,
        lambda: tiny.stateless(knobs),
        tiny.stateful(knobs),
        rewritten=4,
        tolerance=1e-6 if dtype == "f32" else 2e-3,
        carried=carried(2),
    )
    assert names(model) == ["x", "y"]
    assert report.sites[0] == "past_key_values.0.key"


def test_takes_rows_from_later_ports_of_a_split() -> None:
    knobs = Decoder(split=True, repeats=2)
    check_pass(
        MakeKVStateful,
        lambda: tiny.stateless(knobs),
        tiny.stateful(knobs),
        rewritten=2,
        tolerance=1e-6,
        carried=carried(1),
    )


def test_names_the_states_after_input_and_output() -> None:
    model = tiny.stateless(Decoder())
    MakeKVStateful().run_on_model(model)
    assert [v.info.variable_id for v in model.get_variables()] == [
        "past_key_values.0.keypresent.0.key",
        "past_key_values.0.valuepresent.0.value",
    ]
    named = {r.get_variable_id(): r.output(0).get_names() for r in nodes(model, "ReadValue")}
    assert named["past_key_values.0.keypresent.0.key"] == {"past_key_values.0.key"}


def test_finds_caches_behind_a_beam_gather() -> None:
    def build() -> Model:
        model = tiny.stateless(Decoder())
        beam = tiny.parameter("beam_idx", [-1], "i32")
        for parameter in model.get_parameters()[1:]:
            readers = parameter.output(0).get_target_inputs()
            gather = ops.gather(parameter, beam, tiny.int_constant(0))
            for reader in readers:
                reader.replace_source_output(gather.output(0))
        model.add_parameters([beam])
        model.validate_nodes_and_infer_types()
        return model

    model, _ = check_pass(MakeKVStateful, build, rewritten=2, tolerance=1e-6, carried=carried(1))
    again = BeamReorder()
    again.run_on_model(model)
    assert [skip.step for skip in again.report.skipped] == ["already", "already"]


# The GGUF frontend's form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("heads", [1, 3])
def test_scatter_form(heads: int, dtype: str) -> None:
    knobs = Decoder(layers=2, heads=heads, repeats=2, dtype=dtype, reader="expand-transpose")
    model, report = check_pass(
        MakeKVStateful, lambda: tiny.scattered(knobs), tiny.stateful(knobs), rewritten=4, numbers=False
    )
    assert names(model) == ["x", "y"]
    assert report.notes == ["removed unread inputs inp_kv_idx"]
    assert model.get_variables()[0].info.variable_id == "cache_k_l0cache_k_l0_out"
    wanted = run(tiny.stateless(knobs), carried=carried(2))  # the scattered graph itself is defined for one token only
    assert_same_numbers(run(model), wanted, 1e-6 if dtype == "f32" else 2e-3, states=False)


def test_scatter_of_rows_that_are_not_flattened() -> None:
    def build() -> Model:
        model = tiny.scattered(Decoder())
        for update in nodes(model, "ScatterUpdate"):
            rows = update.input_value(2).get_node().input_value(0)
            update.set_arguments([update.input_value(0), update.input_value(1), rows, tiny.int_constant(1).output(0)])
        return model

    check_pass(MakeKVStateful, build, tiny.stateful(Decoder()), rewritten=2, numbers=False)


# Recurrent states ----------------------------------------------------------------------------------------------------


def test_recurrent_states_start_as_zeros_of_full_shape() -> None:
    outside = {f"{name}_l{n}_out": f"{name}_l{n}" for n in range(2) for name in ("conv_state", "ssm_state")}
    model, _ = check_pass(MakeKVStateful, lambda: tiny.recurrent(2), rewritten=4, tolerance=1e-6, carried=outside)
    assert shapes(model) == ["[1,1,4,3]", "[1,2,2,2]"] * 2
    for read in nodes(model, "ReadValue"):
        initial = read.input_value(0).get_node()
        assert isinstance(initial, Constant)
        assert list(initial.get_output_shape(0)) == list(read.get_output_shape(0))
        assert not initial.data.any()


def test_a_new_value_from_the_second_port_of_a_split() -> None:
    def build() -> Model:
        x = tiny.parameter("x", [1, -1, 4], "f32")
        into = tiny.parameter("conv_state_l0", [1, 2, 4], "f32")
        seen = ops.concat([into, x], axis=1)
        passed = ops.slice(seen, *(tiny.int_constant([v]) for v in (-4, 9999, 1, 1)))
        parts = ops.variadic_split(passed, tiny.int_constant(1), tiny.int_constant([2, 2]))
        outputs = [tiny.result(seen.output(0), "y"), tiny.result(parts.output(1), "conv_state_l0_out")]
        return Model(outputs, [x, into])

    check_pass(
        lambda: MakeKVStateful({"conv_state_l0": "conv_state_l0_out"}),
        build,
        rewritten=1,
        steps=(5, 2, 3),
        carried={"conv_state_l0_out": "conv_state_l0"},
    )


def test_pairs_are_given_by_name() -> None:
    def build() -> Model:
        x, memory = tiny.parameter("x", [1, 4], "f32"), tiny.parameter("memory", [1, 4], "f32")
        total = ops.add(x, memory)
        return Model([tiny.result(total.output(0), "y"), tiny.result(ops.relu(total).output(0), "kept")], [x, memory])

    assert check_unchanged(MakeKVStateful, build).candidates == 0
    model, _ = check_pass(lambda: MakeKVStateful({"memory": "kept"}), build, rewritten=1, carried={"kept": "memory"})
    assert names(model) == ["x", "y"]


# Names and other readers ---------------------------------------------------------------------------------------------


def test_tensor_names_rule_not_node_names() -> None:
    def build() -> Model:
        model = tiny.stateless(Decoder(layers=2))
        for number, op in enumerate(model.get_ops()):
            op.set_friendly_name(f"scrambled_{number}")
        for op in nodes(model, "Result"):
            op.set_friendly_name(f"past_key_values.{op.get_friendly_name()[-1]}.key")
        return model

    _, report = check_pass(
        MakeKVStateful, build, tiny.stateful(Decoder(layers=2)), rewritten=4, tolerance=1e-6, carried=carried(2)
    )
    assert report.sites[0] == "past_key_values.0.key"


def test_input_and_output_of_one_name() -> None:
    """As in llama.cpp's dumps: the cache comes in and leaves as ``cache_k_l0``."""

    def build() -> Model:
        model = tiny.stateless(Decoder())
        for parameter, output in zip(model.get_parameters()[1:], model.outputs[1:], strict=True):
            name = parameter.get_friendly_name().replace("past_key_values.0.", "cache_l0_")
            parameter.output(0).get_tensor().set_names({name})
            output.get_tensor().set_names({name})
        return model

    model = build()
    one = MakeKVStateful({name: name for name in ("cache_l0_key", "cache_l0_value")})
    one.run_on_model(model)
    assert one.report.rewritten == 2
    assert_same(model, tiny.stateful(Decoder()))


def test_another_result_on_the_cache_survives(tmp_path: Path) -> None:
    def build() -> Model:
        model = tiny.stateless(Decoder())
        grown = model.output("present.0.key").get_node().input_value(0)
        extra = tiny.result(grown, "all_keys")
        model.add_results([extra])
        return model

    model = build()
    MakeKVStateful().run_on_model(model)
    assert {"y", "all_keys"} <= set(names(model))
    save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    again = CORE.read_model(tmp_path / "model.xml")
    assert names(again) == names(model)
    found = run(again)
    wanted = run(tiny.stateless(Decoder()), carried=carried(1))
    for step, tokens in enumerate((5, 6, 7, 9)):
        assert found.outputs[step]["all_keys"].shape == (1, tokens, 2, 4)
        np.testing.assert_allclose(found.outputs[step]["y"], wanted.outputs[step]["y"], atol=1e-6)


def test_an_index_that_something_else_reads_stays() -> None:
    model = tiny.scattered(Decoder())
    index = next(p for p in model.get_parameters() if p.get_friendly_name() == "inp_kv_idx")
    model.add_results([tiny.result(ops.add(index, tiny.int_constant(1)).output(0), "next")])
    MakeKVStateful().run_on_model(model)
    assert names(model) == ["x", "inp_kv_idx", "y", "next"]


# Skips, one per condition --------------------------------------------------------------------------------------------


def cache(shape: list[int], *, axis: int = 1, parts: int = 1, name: str = "cache_k_l0") -> Model:
    """One cache that grows by a Concat of ``parts`` rows on ``axis``."""
    rows = tiny.parameter("x", [-1 if d == axis else max(s, 1) for d, s in enumerate(shape)], "f32")
    into = tiny.parameter(name, shape, "f32")
    grown = ops.concat([into.output(0), *[rows.output(0)] * parts], axis=axis)
    grown.set_friendly_name("grown")
    return Model([tiny.result(grown.output(0), "out")], [rows, into])


def scatter(shape: list[int], axis: int, rows_shape: tuple[int, ...] = (1, -1, 2, 4)) -> Model:
    rows, index = tiny.parameter("x", rows_shape, "f32"), tiny.parameter("inp_kv_idx", [-1], "i64")
    into = tiny.parameter("cache_k_l0", shape, "f32")
    update = ops.scatter_update(into, index, rows, tiny.int_constant(axis))
    update.set_friendly_name("update")
    return Model([tiny.result(update.output(0), "out")], [rows, index, into])


def of_dynamic_rank() -> Model:
    rows, into = tiny.parameter("x", [1, -1, 2, 4], "f32"), Parameter(Type.f32, PartialShape.dynamic())
    into.output(0).get_tensor().set_names({"cache_k_l0"})
    return Model([tiny.result(ops.concat([into, rows], axis=1).output(0), "out")], [rows, into])


def replaced(shape: list[int], out_shape: list[int], output: str = "out") -> Model:
    """A state that is replaced by something of ``out_shape``."""
    into, x = tiny.parameter("memory", shape, "f32"), tiny.parameter("x", out_shape, "f32")
    return Model([tiny.result(ops.relu(into).output(0), "y"), tiny.result(ops.exp(x).output(0), output)], [into, x])


@pytest.mark.parametrize(
    ("build", "step", "words"),
    [
        (of_dynamic_rank, "cache", ["rank is dynamic"]),
        (lambda: cache([1, 8, 2, 4]), "cache", ["sequence dimension is static (8)"]),
        (lambda: cache([1, -1, -1, 4]), "cache", ["dims [2]", "dynamic beside the sequence"]),
        (lambda: scatter([1, 8, 2, 4], 1), "cache", ["sequence dimension is static (8)"]),
        (lambda: scatter([1, -1, -1, 4], 1), "cache", ["static heads, size"]),
        (lambda: cache([1, -1, 2, 4], parts=2), "append", ["Concat grown has 3 inputs, wanted 2"]),
        (lambda: scatter([1, -1, 2, 4], 3), "append", ["ScatterUpdate update has axis 3", "wanted 1 or 2"]),
        (lambda: scatter([1, -1, 2, 4], 2, (1, 1, -1, -1)), "append", ["rows are Parameter x", "[1, tokens, 2, 4]"]),
        (lambda: tiny_without_update(), "update", ["is read by Relu reader", "wanted a Concat or ScatterUpdate"]),
    ],
)
def test_skips(build: Any, step: str, words: list[str]) -> None:
    found, reason = only_skip(check_unchanged(MakeKVStateful, build))
    assert found == step
    for word in words:
        assert word in reason


def tiny_without_update() -> Model:
    into = tiny.parameter("cache_k_l0", [1, -1, 2, 4], "f32")
    reader = ops.relu(into)
    reader.set_friendly_name("reader")
    return Model([tiny.result(reader.output(0), "y")], [into])


@pytest.mark.parametrize(
    ("build", "step", "words"),
    [
        (lambda: replaced([1, 4], [1, 4], "other"), "pair", ["no output called out"]),
        (lambda: replaced([1, 4], [1, 5]), "pair", ["[1,4]", "[1,5]", "wanted the same"]),
        (lambda: replaced([1, -1], [1, -1]), "cache", ["[1,?] is dynamic", "nothing is appended"]),
    ],
)
def test_skips_a_given_pair(build: Any, step: str, words: list[str]) -> None:
    found, reason = only_skip(check_unchanged(lambda: MakeKVStateful({"memory": "out"}), build))
    assert found == step
    for word in words:
        assert word in reason


def test_strict_raises_before_anything_is_edited() -> None:
    def build() -> Model:
        model = tiny.stateless(Decoder())
        model.reshape({"past_key_values.0.value": [1, 8, 2, 4]})
        return model

    model = build()
    with pytest.raises(RewriteError, match=r"past_key_values.0.value: .* static.*nothing was changed"):
        MakeKVStateful(strict=True).run_on_model(model)
    assert_same(model, build())


# ONNX ----------------------------------------------------------------------------------------------------------------


def onnx_decoder(folder: Path, layout: str, mask: bool = True) -> Model:
    onnx.save(tiny_onnx.decoder(layout, attention_mask=mask), str(folder / "decoder.onnx"))
    return read_model(folder / "decoder.onnx").model


def onnx_feeds(batch: int = 1) -> dict[str, Any]:
    def ids(start: int, tokens: int) -> np.ndarray:
        return (np.arange(start, start + tokens) * 5 + 3 * np.arange(batch)[:, None]) % 17

    return {"input_ids": ids, "attention_mask": lambda start, tokens: np.ones((batch, start + tokens))}


ONNX_STEPS = (4, 1, 1, 1, 3, 1, 1, 1)


@pytest.mark.parametrize("mask", [True, False], ids=["attention_mask", "no attention_mask"])
@pytest.mark.parametrize(("layout", "moved"), [("bhsd", 0), ("bshd", 4)])
def test_onnx_decoder(tmp_path: Path, layout: str, moved: int, mask: bool) -> None:
    def reference() -> Model:
        model = onnx_decoder(tmp_path, layout, mask)
        model.reshape({p.get_any_name(): [1, *list(p.get_partial_shape())[1:]] for p in model.inputs})
        return model

    wanted = run(reference(), ONNX_STEPS, carried(2), onnx_feeds())
    model = onnx_decoder(tmp_path, layout, mask)
    for one, rewritten in ((MakeKVStateful(), 4), (KVStateSeqAxis(), moved), (BeamReorder(), 4)):
        one.run_on_model(model)
        assert one.report.rewritten == rewritten
        assert_same_numbers(run(model, ONNX_STEPS, feeds=onnx_feeds()), wanted, 1e-5, states=False)
    assert shapes(model) == ["[1,2,?,4]"] * 4
    assert [list(r.input_value(0).get_shape()) for r in nodes(model, "ReadValue")] == [[1, 2, 0, 4]] * 4


def test_onnx_decoder_with_a_batch_of_two(tmp_path: Path) -> None:
    def reference() -> Model:
        model = onnx_decoder(tmp_path, "bhsd")
        model.reshape({p.get_any_name(): [2, *list(p.get_partial_shape())[1:]] for p in model.inputs})
        return model

    wanted = run(reference(), (4, 1, 1), carried(2), onnx_feeds(2))
    model = onnx_decoder(tmp_path, "bhsd")
    MakeKVStateful(batch=2).run_on_model(model)
    assert shapes(model) == ["[2,2,?,4]"] * 4
    assert_same_numbers(run(model, (4, 1, 1), feeds=onnx_feeds(2)), wanted, 1e-5, states=False)


# Recorded models -----------------------------------------------------------------------------------------------------

GGUF_STATES = {
    "tiny-llama-gqa": (6, 0),  # 3 layers
    "tiny-gemma4-mixed": (12, 0),  # 6 layers
    "tiny-qwen35": (2, 6),  # one attention layer, three recurrent ones
}


def imported(name: str, smollm2: Path) -> ImportedModel:
    return read_model(smollm2 if name == "smollm2" else RECORDED / "gguf" / f"{name}.gguf")


@pytest.mark.parametrize(("name", "kv", "recurrent"), [(n, *s) for n, s in GGUF_STATES.items()] + [("smollm2", 60, 0)])
def test_recorded_model(name: str, kv: int, recurrent: int, smollm2: Path) -> None:
    """All states once; each starts with batch 1 and sequence 0, or as zeros of its full static shape."""
    model = imported(name, smollm2).model
    inputs = {n for port in model.inputs for n in port.get_names()}
    one = MakeKVStateful()
    one.run_on_model(model)
    assert (one.report.rewritten, one.report.skipped) == (kv + recurrent, [])
    assert len(model.get_variables()) == len(model.get_sinks()) == kv + recurrent
    reads = nodes(model, "ReadValue")
    growing = [r for r in reads if r.get_output_partial_shape(0).is_dynamic]
    assert (len(growing), len(reads) - len(growing)) == (kv, recurrent)
    for read in reads:
        (initial,) = (value.get_node() for value in read.input_values())
        shape = read.get_output_partial_shape(0)
        assert initial.get_element_type() == read.get_element_type()
        assert not initial.data.any()
        if read in growing:
            assert [d for d in range(4) if shape[d].is_dynamic] == [1]
            assert list(initial.get_output_shape(0)) == [1, 0, shape[2].get_length(), shape[3].get_length()]
        else:
            assert list(initial.get_output_shape(0)) == list(shape.to_shape())
    live = set(model.get_ops())
    for port in model.inputs:
        assert port.get_any_name() in inputs
        assert any(reader.get_node() in live for reader in port.get_node().output(0).get_target_inputs())
    again = MakeKVStateful()
    assert again.run_on_model(model) is False
    assert again.report.candidates == 0


@pytest.mark.parametrize("name", list(GGUF_STATES))
def test_recorded_model_starts_over_after_a_reset(name: str, smollm2: Path) -> None:
    model = imported(name, smollm2)
    MakeKVStateful().run_on_model(model.model)
    session = Session(compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}), model.info)
    first = session.prefill([5])
    session.decode(7)
    session.reset()
    np.testing.assert_array_equal(session.prefill([5]), first)


@pytest.mark.needs_2026_4
def test_the_same_graph_in_every_process() -> None:
    program = (
        "import sys, ovpasses as ovp\n"
        "from ovpasses.equivalence import structure_digest\n"
        "for path in sys.argv[1:]:\n"
        "    model = ovp.read_model(path)\n"
        "    ovp.Pipeline.preset('stateful').run(model)\n"
        "    ids = [v.info.variable_id for v in model.model.get_variables()]\n"
        "    print(structure_digest(model.model), sorted(ids), [sorted(p.get_names()) for p in model.model.inputs])\n"
    )
    paths = [str(RECORDED / "gguf" / f"{name}.gguf") for name in GGUF_STATES]
    found = [
        subprocess.run(
            [sys.executable, "-c", program, *paths],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(RECORDED.parents[1])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len(found[0].splitlines()) == len(paths)


@pytest.mark.parametrize("name", list(GGUF_STATES))
def test_a_converted_model_is_left_alone(name: str, smollm2: Path, tmp_path: Path) -> None:
    model = imported(name, smollm2).model
    Pipeline.preset("stateful").run(model)
    save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    read_back = read_model(tmp_path / "model.xml").model
    native = name == "tiny-qwen35"  # its GatedDeltaNet is one that only this process can compute; an IR must be lowered
    for again in (model,) if native else (model, read_back):
        twin = again.clone()
        report = Pipeline.preset("stateful").run(again)
        assert report.rewritten == 0, str(report)
        assert_same(again, twin)
        assert_same(again, model)
        assert names(again) == names(model)


def test_a_given_pair_whose_input_is_not_there() -> None:
    report = check_unchanged(lambda: MakeKVStateful({"memm": "out"}), lambda: replaced([1, 4], [1, 4]))
    assert only_skip(report) == ("pair", "the model has no input of that name")
    model = replaced([1, 4], [1, 4])
    assert MakeKVStateful({"memory": "out"}, strict=True).run_on_model(model)
    assert not MakeKVStateful({"memory": "out"}, strict=True).run_on_model(model)  # it is a state by now


def test_two_inputs_joined_along_the_batch_are_no_cache() -> None:
    def build() -> Model:
        a, b = tiny.parameter("a", [-1, 4], "f32"), tiny.parameter("b", [-1, 4], "f32")
        return Model([tiny.result(ops.concat([a, b], axis=0).output(0), "y")], [a, b])

    assert check_unchanged(MakeKVStateful, build).candidates == 0


def test_states_whose_names_would_run_together_to_one() -> None:
    names = [("x1", "1y"), ("x11", "y")]
    pasts = [tiny.parameter(name, [1, 4], "f32") for name, _ in names]
    news = [tiny.result(ops.relu(past).output(0), out) for past, (_, out) in zip(pasts, names, strict=True)]
    model = Model(news, pasts)
    MakeKVStateful(dict(names), strict=True).run_on_model(model)
    assert {v.info.variable_id for v in model.get_variables()} == {"x11y", "x11/y"}
    CORE.compile_model(model, "CPU")


def test_options_are_checked_and_shown() -> None:
    with pytest.raises(RewriteError, match="batch is -1, wanted at least 1"):
        MakeKVStateful(batch=-1)
    assert repr(MakeKVStateful({"a": "b"}, batch=2, strict=True)) == "MakeKVStateful({'a': 'b'}, batch=2, strict=True)"


def test_an_odd_list_of_recurrent_ports_is_refused() -> None:
    model = replaced([1, 4], [1, 4])
    model.set_rt_info("memory,out,more", ["gguf_recurrent_states"])
    with pytest.raises(RewriteError, match="gguf_recurrent_states names 3 ports, wanted pairs"):
        MakeKVStateful().run_on_model(model)
