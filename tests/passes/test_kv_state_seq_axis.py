"""KVStateSeqAxis: states [b,seq,h,d] -> [b,h,seq,d]; what readers see stays, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino import Dimension, Model, PartialShape, Shape, save_model

from models import tiny_graphs as tiny
from models.tiny_graphs import Decoder
from ovpasses import KVStateSeqAxis, Pipeline, RewriteError, read_model
from ovpasses._openvino import Constant, ops
from tests.passes.helpers import (
    CORE,
    assert_same,
    assert_same_numbers,
    check_pass,
    check_unchanged,
    nodes,
    only_skip,
    run,
)

RECORDED = Path(__file__).parents[2] / "models" / "recorded"

SWAP = [0, 2, 1, 3]


def one_state(
    shape: list[int] | None = None,
    *,
    axis: int = 1,
    dtype: str = "f32",
    past_second: bool = False,
    third: bool = False,
    through: str = "",
    readers: tuple[str, ...] = ("transpose",),
) -> Model:
    """One state called ``cache_k_l0``, rows ``x`` appended to it, and readers ``y0, y1, ..`` of the grown state."""
    shape = [1, -1, 2, 4] if shape is None else shape
    x = tiny.parameter("x", [-1 if d == axis else max(s, 1) for d, s in enumerate(shape)], dtype)
    read, variable = tiny.state("cache_k_l0", shape, dtype)
    parts = [read.output(0), x.output(0)][:: -1 if past_second else 1]
    grown = ops.concat([*parts, x.output(0)] if third else parts, axis=axis)
    grown.set_friendly_name("grown")
    stored = {"": lambda v: v, "relu": ops.relu}[through](grown)
    results = []
    for number, reader in enumerate(readers):
        source = read if reader == "past" else grown
        read_as: dict[str, Any] = {
            "transpose": lambda v: ops.transpose(v, tiny.int_constant(SWAP)),
            "transpose, exp": lambda v: ops.exp(ops.transpose(v, tiny.int_constant(SWAP))),
            "other order": lambda v: ops.transpose(v, tiny.int_constant([0, 2, 3, 1])),
            "relu": ops.relu,
            "past": ops.relu,
        }
        results.append(tiny.result(read_as[reader](source).output(0), f"y{number}"))
    return Model(results, [tiny.written(stored.output(0), variable)], [x], "one_state")


def one_state_after() -> Model:
    x = tiny.parameter("x", [1, -1, 2, 4], "f32")
    read, variable = tiny.state("cache_k_l0", [1, 2, -1, 4], "f32")
    grown = ops.concat([read, ops.transpose(x, tiny.int_constant(SWAP))], axis=2)
    return Model([tiny.result(grown.output(0), "y0")], [tiny.written(grown.output(0), variable)], [x], "after")


# Rewrites ------------------------------------------------------------------------------------------------------------


def test_moves_the_axis_and_drops_the_readers_transpose() -> None:
    check_pass(KVStateSeqAxis, one_state, one_state_after(), rewritten=1)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("attention", ["sdpa", "matmul"])
@pytest.mark.parametrize("reader", ["transpose-expand", "expand-transpose"])
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
def test_makes_the_layout_of_attention(heads: int, repeats: int, reader: str, attention: str, dtype: str) -> None:
    knobs = {"layers": 2, "heads": heads, "repeats": repeats, "attention": attention, "dtype": dtype}
    expected = tiny.stateful(Decoder(**knobs, layout="bhsd"))
    check_pass(
        KVStateSeqAxis, lambda: tiny.stateful(Decoder(**knobs, reader=reader)), expected, rewritten=4, tolerance=1e-6
    )


def test_each_layer_keeps_its_own_heads() -> None:
    knobs = {"layers": 2, "heads": (3, 1), "repeats": 2}
    check_pass(
        KVStateSeqAxis,
        lambda: tiny.stateful(Decoder(**knobs)),
        tiny.stateful(Decoder(**knobs, layout="bhsd")),
        rewritten=4,
        tolerance=1e-6,
    )


def test_takes_rows_from_later_ports_of_a_split() -> None:
    check_pass(
        KVStateSeqAxis,
        lambda: tiny.stateful(Decoder(split=True, repeats=2)),
        tiny.stateful(Decoder(split=True, repeats=2, layout="bhsd")),
        rewritten=2,
        tolerance=1e-6,
    )


def test_a_state_without_an_initial_value_stays_without() -> None:
    model = tiny.stateful(Decoder(initial=False))
    KVStateSeqAxis().run_on_model(model)
    assert_same(model, tiny.stateful(Decoder(initial=False, layout="bhsd")))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_an_initial_value_that_is_not_empty_is_turned(dtype: str) -> None:
    values = np.arange(24, dtype=np.float32)

    def build() -> Model:
        model = one_state(dtype=dtype)
        (read,) = nodes(model, "ReadValue")
        read.set_arguments([Constant(read.get_output_element_type(0), Shape([1, 3, 2, 4]), values).output(0)])
        model.validate_nodes_and_infer_types()
        return model

    model, _ = check_pass(KVStateSeqAxis, build, rewritten=1, numbers=dtype != "bf16")  # NumPy has no bf16
    (read,) = nodes(model, "ReadValue")
    assert list(read.input_value(0).get_shape()) == [1, 2, 3, 4]


# Readers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("readers", "transposes"),
    [
        (("relu",), 2),  # of the rows, and for the reader
        (("transpose", "transpose, exp"), 1),
        (("transpose", "relu"), 2),
        (("relu", "relu"), 2),  # shared
        (("other order",), 3),
        (("transpose", "past"), 2),
        (("past", "relu", "transpose"), 3),
    ],
)
def test_every_reader_sees_what_it_saw(readers: tuple[str, ...], transposes: int) -> None:
    model, _ = check_pass(KVStateSeqAxis, lambda: one_state(readers=readers), rewritten=1)
    assert len(nodes(model, "Transpose")) == transposes
    assert [p.get_partial_shape() for p in model.outputs] == [
        p.get_partial_shape() for p in one_state(readers=readers).outputs
    ]


def test_a_result_on_the_grown_state_keeps_its_name_and_layout() -> None:
    def build() -> Model:
        model = one_state()
        grown = next(op for op in model.get_ops() if op.get_friendly_name() == "grown")
        model.add_results([tiny.result(grown.output(0), "all_keys")])
        return model

    model, _ = check_pass(KVStateSeqAxis, build, rewritten=1)
    assert model.output("all_keys").get_partial_shape() == PartialShape([1, -1, 2, 4])


def test_names_and_variable_ids_stay() -> None:
    model = one_state()
    KVStateSeqAxis().run_on_model(model)
    (read,) = nodes(model, "ReadValue")
    assert read.output(0).get_names() == {"cache_k_l0"}
    assert [v.info.variable_id for v in model.get_variables()] == ["cache_k_l0cache_k_l0"]


# Skips, one per condition --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "step", "words"),
    [
        (lambda: one_state([1, -1, 8], readers=("relu",)), "state", ["[1,?,8]", "wanted rank 4"]),
        (lambda: one_state([1, -1, -1, 4]), "state", ["dynamic dims are [1, 2]", "wanted dim 1 only"]),
        (lambda: one_state([1, 2, 2, -1], axis=3), "state", ["dynamic dims are [3]", "wanted dim 1 only"]),
        (lambda: one_state([-1, 1, 2, 4], axis=0), "state", ["dynamic dims are [0]", "wanted dim 1 only"]),
        (lambda: one_state([1, 8, 2, 4]), "state", ["the sequence dimension is static (8)"]),
        (lambda: one_state([-1, -1, 2, 4]), "state", ["dynamic dims are [0, 1]", "wanted dim 1 only"]),
        (lambda: one_state([1, 2, -1, 4], axis=2), "already", ["dim 2 already", "[1,2,?,4]"]),
        (lambda: one_state(through="relu"), "append", ["Relu", "wanted a Concat of past and rows"]),
        (lambda: one_state(third=True), "append", ["Concat grown has 3 inputs, wanted 2"]),
        (lambda: one_state(past_second=True), "append", ["input 0 of Concat grown is Parameter x", "own past"]),
    ],
)
def test_skips(build: Any, step: str, words: list[str]) -> None:
    found, reason = only_skip(check_unchanged(KVStateSeqAxis, build))
    assert found == step
    for word in words:
        assert word in reason


def test_skips_an_append_on_another_axis() -> None:
    """The state is declared [1,?,2,4], but what is written to it grew on the heads axis."""

    def build() -> Model:
        x = tiny.parameter("x", [1, -1, 2, 4], "f32")
        read, variable = tiny.state("cache_k_l0", [1, -1, 2, 4], "f32")
        grown = ops.concat([read, x], axis=3)
        return Model([tiny.result(grown.output(0), "y")], [tiny.written(read.output(0), variable)], [x])

    model = build()
    (assign,) = nodes(model, "Assign")
    (concat,) = nodes(model, "Concat")
    assign.input(0).replace_source_output(concat.output(0))
    one = KVStateSeqAxis()
    one.run_on_model(model)
    step, reason = only_skip(one.report)
    assert step == "append"
    assert "its Concat is on dim 3, wanted dim 1" in reason


def test_skips_states_that_exchange_their_values() -> None:
    def build() -> Model:
        model = tiny.stateful(Decoder())
        one, other = nodes(model, "Assign")
        first, second = one.input_value(0), other.input_value(0)
        one.input(0).replace_source_output(second)
        other.input(0).replace_source_output(first)
        return model

    report = check_unchanged(KVStateSeqAxis, build)
    assert [skip.step for skip in report.skipped] == ["append", "append"]
    assert all("wanted the state's own past" in skip.reason for skip in report.skipped)


def test_skips_an_op_between_concat_and_assign() -> None:
    def build() -> Model:
        model = one_state()
        (assign,) = nodes(model, "Assign")
        relu = ops.relu(assign.input_value(0))
        relu.set_friendly_name("extra")
        assign.input(0).replace_source_output(relu.output(0))
        return model

    step, reason = only_skip(check_unchanged(KVStateSeqAxis, build))
    assert step == "append"
    assert "Relu extra" in reason


def test_leaves_recurrent_states_alone() -> None:
    def build() -> Model:
        read, variable = tiny.state("ssm_state_l0", [1, 2, 4, 4], "f32")
        value = ops.multiply(read, ops.constant(np.float32(0.5)))
        return Model([tiny.result(value.output(0), "y")], [tiny.written(value.output(0), variable)], [])

    step, reason = only_skip(check_unchanged(KVStateSeqAxis, build))
    assert step == "kind"
    assert "not a KV cache" in reason


def test_says_that_there_is_nothing_to_look_at() -> None:
    report = check_unchanged(KVStateSeqAxis, lambda: tiny.stateless(Decoder()))
    assert report.candidates == 0
    assert "no state" in report.summary()


def test_strict_raises_before_anything_is_edited() -> None:
    def build() -> Model:
        return tiny.stateful(Decoder(layers=2, layout=("bshd", "sbhd")))

    model = build()
    with pytest.raises(RewriteError, match=r"cache_k_l1.*dynamic dims are \[0\].*nothing was changed"):
        KVStateSeqAxis(strict=True).run_on_model(model)
    assert_same(model, build())


# The sequence axis is each state's own ------------------------------------------------------------------------------


def test_mixed_axes_and_an_odd_number_of_states() -> None:
    def build(layouts: tuple[str, ...] = ("sbhd", "bshd", "bhsd")) -> Model:
        model = tiny.stateful(Decoder(layers=3, layout=layouts))
        single, variable = tiny.state("seventh", [1, -1, 2, 4], "f32")
        rows = nodes(model, "Concat")[0].input_value(1)
        rows = tiny.transposed(rows, "sbhd", "bshd")
        grown = ops.concat([single.output(0), rows], axis=1)
        total = ops.reduce_sum(grown, tiny.int_constant([1]), keep_dims=False)
        model.add_variables([variable])
        model.add_sinks([tiny.written(grown.output(0), variable)])
        model.add_results([tiny.result(total.output(0), "total")])
        return model

    model, report = check_pass(KVStateSeqAxis, build, rewritten=3, tolerance=1e-6)
    assert sorted(report.sites) == ["cache_k_l1", "cache_v_l1", "seventh"]
    assert {skip.node: skip.step for skip in report.skipped} == {
        "cache_k_l0": "state",
        "cache_v_l0": "state",
        "cache_k_l2": "already",
        "cache_v_l2": "already",
    }
    shapes = {v.info.variable_id[:10]: str(v.info.data_shape) for v in model.get_variables()}
    assert shapes["cache_k_l0"] == "[?,1,2,4]"
    assert shapes["cache_k_l1"] == shapes["cache_k_l2"] == "[1,2,?,4]"


# Recorded graphs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("llama-gqa", 6),  # 3 layers x K and V
        ("gemma4-mixed", 12),  # 5 sliding layers of 4 heads, a full one of 1 head
    ],
)
def test_recorded_graph(name: str, states: int) -> None:
    folder = RECORDED / "after" / name
    _, report = check_pass(
        KVStateSeqAxis,
        lambda: read_model(folder / "stateful-prerelayout" / "model.xml").model,
        read_model(folder / "stateful" / "model.xml").model,
        rewritten=states,
        numbers=False,
    )
    assert report.skipped == []


def planted(change: str) -> Model:
    """The recorded llama graph, one append of it changed."""
    model = read_model(RECORDED / "after" / "llama-gqa" / "stateful-prerelayout" / "model.xml").model
    assign = next(a for a in nodes(model, "Assign") if a.get_variable_id() == "cache_k_l1cache_k_l1")
    concat = assign.input_value(0).get_node()
    if change == "reshape":
        same = ops.reshape(concat, tiny.int_constant([0, 0, 0, 0]), special_zero=True)
        for reader in list(concat.output(0).get_target_inputs()):
            if reader.get_node() is not same:
                reader.replace_source_output(same.output(0))
    elif change == "third input":
        concat.set_arguments([*concat.input_values(), concat.input_value(1)])
    elif change == "other variable":
        other = next(a for a in nodes(model, "Assign") if a.get_variable_id() == "cache_v_l1cache_v_l1")
        assign.input(0).replace_source_output(other.input_value(0))
        other.input(0).replace_source_output(concat.output(0))
    elif change == "dynamic heads":
        variable = next(v for v in model.get_variables() if v.info.variable_id == "cache_k_l1cache_k_l1")
        info = variable.info
        info.data_shape = PartialShape([1, Dimension(), Dimension(), 16])
        variable.update(info)
        read = next(r for r in nodes(model, "ReadValue") if r.get_variable_id() == info.variable_id)
        read.set_arguments([ops.constant(np.zeros((1, 0, 3, 16), np.float16)).output(0)])  # the heads, for the CPU
    elif change == "two readers":
        model.add_results([ops.result(ops.relu(concat))])
    model.validate_nodes_and_infer_types()
    return model


@pytest.mark.parametrize(
    ("change", "skipped", "step", "words"),
    [
        ("reshape", [], "", ""),  # it changes nothing, so it is looked through
        ("third input", ["cache_k_l1"], "append", "has 3 inputs, wanted 2"),
        ("other variable", ["cache_k_l1", "cache_v_l1"], "append", "wanted the state's own past"),
        ("dynamic heads", ["cache_k_l1"], "state", "dynamic dims are [1, 2]"),
        ("two readers", [], "", ""),
    ],
)
def test_one_change_is_explained_and_the_rest_rewritten(change: str, skipped: list[str], step: str, words: str) -> None:
    model = planted(change)
    one = KVStateSeqAxis()
    one.run_on_model(model)
    report = one.report
    assert report.candidates == 6
    assert report.rewritten == 6 - len(skipped)
    assert sorted(skip.node.split("cache_")[-1] for skip in report.skipped) == [n.split("cache_")[-1] for n in skipped]
    for skip in report.skipped:
        assert (skip.step, words in skip.reason) == (step, True), skip
    if skipped:
        with pytest.raises(RewriteError):
            Pipeline.preset("stateful", strict=True).run(planted(change))
    if change == "third input":
        return  # rows appended twice do not fit the mask: this graph cannot be run, before or after
    feeds = llama_feeds()
    assert_same_numbers(run(model, (4, 1), feeds=feeds), run(planted(change), (4, 1), feeds=feeds), 1e-6, states=False)


def llama_feeds() -> dict[str, Any]:
    def mask(start: int, tokens: int) -> np.ndarray:
        seen = np.arange(start + tokens)[None, :] <= np.arange(start, start + tokens)[:, None]
        return np.where(seen, 0, -np.inf)[None, None]

    return {
        "inp_tokens": lambda start, tokens: (np.arange(start, start + tokens) % 300).reshape(1, 1, 1, -1),
        "inp_pos": lambda start, tokens: np.arange(start, start + tokens).reshape(1, 1, 1, -1),
        "self_kq_mask": mask,
        "out_ids": lambda start, tokens: np.array([tokens - 1]).reshape(1, 1, 1, -1),
        "token_len_per_seq": lambda start, tokens: np.array([tokens]),
    }


def test_names_survive_saving(tmp_path: Path) -> None:
    model = tiny.stateful(Decoder(repeats=2))
    KVStateSeqAxis().run_on_model(model)
    save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    again = CORE.read_model(tmp_path / "model.xml")
    assert [p.get_names() for p in again.inputs] == [{"x"}]
    assert [p.get_names() for p in again.outputs] == [{"y"}]
    assert_same(again, model)
