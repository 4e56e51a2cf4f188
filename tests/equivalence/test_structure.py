"""compare_structure: what must be found, what must not matter, how it is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino import Core, Model, Shape, Tensor, Type, save_model

from models import tiny_graphs as tiny
from ovpasses import KVStateSeqAxis, read_model
from ovpasses._openvino import Constant, ops
from ovpasses.equivalence import compare_numbers, compare_structure, structure_digest
from tests.equivalence.graph_edits import rename_variables, reorder

RECORDED = Path(__file__).parents[2] / "models" / "recorded"
KNOBS = tiny.Decoder(layers=2, heads=2, repeats=2)


def graph() -> Model:
    return tiny.stateful(KNOBS)


def of_type(model: Model, kind: str) -> list[Any]:
    return [op for op in model.get_ordered_ops() if op.get_type_name() == kind]


def assign_of(model: Model, name: str) -> Any:
    return next(sink for sink in model.get_sinks() if sink.get_variable_id().startswith(name))


@pytest.mark.parametrize(("name", "ops_count"), [("llama-gqa", 446), ("gemma4-mixed", 991)])
def test_the_pass_makes_what_the_cpp_pass_makes(name: str, ops_count: int) -> None:
    folder = RECORDED / "after" / name
    found = read_model(folder / "stateful-prerelayout" / "model.xml")
    wanted = read_model(folder / "stateful" / "model.xml")
    assert not compare_structure(found, wanted)
    KVStateSeqAxis().run_on_model(found.model)
    report = compare_structure(found, wanted)
    assert report, str(report)
    assert report.ops == (ops_count, ops_count)


# What must not matter ------------------------------------------------------------------------------------------------


def rename_nodes(model: Model) -> Model:
    for number, op in enumerate(model.get_ops()):
        op.set_friendly_name(f"renamed_{number}")
    return model


def rename_inner_tensors(model: Model) -> Model:
    for op in model.get_ordered_ops():
        if op.get_type_name() in ("Concat", "MatMul", "Add", "Reshape"):
            for output in op.outputs():
                if all(i.get_node().get_type_name() != "Result" for i in output.get_target_inputs()):
                    output.get_tensor().set_names({f"{op.get_friendly_name()}/other"})
    return model


def clone(model: Model) -> Model:
    return model.clone()


@pytest.mark.parametrize("build", [graph, lambda: tiny.stateless(KNOBS), lambda: tiny.recurrent(2)])
@pytest.mark.parametrize("change", [rename_nodes, rename_inner_tensors, reorder, rename_variables, clone])
def test_equal_whatever_the_names_and_the_order(build: Callable[[], Model], change: Callable[[Model], Model]) -> None:
    changed = change(build())
    report = compare_structure(build(), changed)
    assert report, str(report)
    assert structure_digest(build()) == structure_digest(changed)


@pytest.mark.parametrize("build", [graph, lambda: tiny.stateless(KNOBS), lambda: tiny.recurrent(2)])
def test_equal_after_saving_and_reading_back(tmp_path: Path, build: Callable[[], Model]) -> None:
    model = build()
    save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    report = compare_structure(model, Core().read_model(tmp_path / "model.xml"), names=True)
    assert report, str(report)


def test_shared_or_repeated_constants_are_the_same() -> None:
    model = graph()
    transposes = of_type(model, "Transpose")
    for transpose in transposes:
        transpose.input(1).replace_source_output(transposes[0].input_value(1))
    assert compare_structure(graph(), model)


def test_same_report_reads_well() -> None:
    report = compare_structure(graph(), graph())
    assert report.same
    assert str(report) == f"same structure: {report.ops[0]} ops"
    assert report.to_dict() == {"same": True, "differences": [], "ops": list(report.ops), "more": False}


# What must be found, and named ---------------------------------------------------------------------------------------


def swap_assigns(model: Model) -> list[str]:
    """K and V of layer 1 have one shape; each gets what is the other's."""
    k, v = assign_of(model, "cache_k_l1"), assign_of(model, "cache_v_l1")
    from_k, from_v = k.input_value(0), v.input_value(0)
    k.input(0).replace_source_output(from_v)
    v.input(0).replace_source_output(from_k)
    return ["Assign", "cache_k_l1", "cache_v_l1/grown"]


def change_a_weight(model: Model) -> list[str]:
    matmul = next(op for op in model.get_ops() if op.get_friendly_name() == "out_1")
    weight = matmul.input_value(1).get_node().data.copy()
    weight[3, 5] += 1e-2
    matmul.input(1).replace_source_output(ops.constant(weight).output(0))
    return ['MatMul "out_1"', "input 1", "1 of 128 values differ", "[3, 5]"]


def change_a_concat_axis(model: Model) -> list[str]:
    concat = of_type(model, "Concat")[0]
    concat.set_attribute("axis", 2)
    return [f'Concat "{concat.get_friendly_name()}"', "axis: 1 in a, 2 in b"]


def change_a_transpose_order(model: Model) -> list[str]:
    transpose = of_type(model, "Transpose")[0]
    transpose.input(1).replace_source_output(tiny.int_constant([0, 1, 2, 3]).output(0))
    return ["Transpose", "input 1", "[0, 2, 1, 3] in a, [0, 1, 2, 3] in b"]


def assign_the_past(model: Model) -> list[str]:
    read = next(r for r in of_type(model, "ReadValue") if r.get_variable_id().startswith("cache_v_l0"))
    assign_of(model, "cache_v_l0").input(0).replace_source_output(read.output(0))
    return ["Assign", "cache_v_l0/grown", "ReadValue"]


def exchange_operands(model: Model) -> list[str]:
    attention = of_type(model, "ScaledDotProductAttention")[1]
    key, value = attention.input_value(1), attention.input_value(2)
    attention.input(1).replace_source_output(value)
    attention.input(2).replace_source_output(key)
    return ["ScaledDotProductAttention", "input 1", "input 2"]


def add_an_op(model: Model) -> list[str]:
    concat = of_type(model, "Concat")[0]
    transpose = concat.input(1)
    same = ops.reshape(transpose.get_source_output(), tiny.int_constant([0, 0, 0, 0]), special_zero=True)
    same.set_friendly_name("superfluous")
    transpose.replace_source_output(same.output(0))
    return ["superfluous", concat.get_friendly_name()]


CHANGES = [
    swap_assigns,
    change_a_weight,
    change_a_concat_axis,
    change_a_transpose_order,
    assign_the_past,
    exchange_operands,
    add_an_op,
]


@pytest.mark.parametrize("renamed", [False, True], ids=["same names", "other names"])
@pytest.mark.parametrize("change", CHANGES)
def test_finds(change: Callable[[Model], list[str]], renamed: bool) -> None:
    changed = graph()
    telling = change(changed)
    before = graph()
    if renamed:
        rename_variables(rename_nodes(changed))
        telling = [telling[0].split()[0]] if change is not add_an_op else []
    report = compare_structure(before, changed)
    assert not report
    assert structure_digest(before) != structure_digest(changed)
    for words in telling:
        assert words in str(report)
    assert len(str(report).splitlines()) < 40


def test_names_only_the_first_differing_op_not_what_follows() -> None:
    changed = graph()
    change_a_weight(changed)
    report = compare_structure(graph(), changed)
    assert len(report.differences) == 1
    first, in_a, in_b = report.differences[0].splitlines()
    assert first.startswith("MatMul")
    assert in_a.strip().startswith('a: MatMul "out_1" f32[1,?,8]')
    assert in_b.strip().startswith('b: MatMul "out_1" f32[1,?,8]')


def test_finds_independent_differences_behind_each_other() -> None:
    changed = graph()
    change_a_transpose_order(changed)
    change_a_weight(changed)
    report = compare_structure(graph(), changed)
    assert [line.split()[0] for line in report.differences] == ["Transpose", "MatMul"]


def test_finds_an_input_of_another_name_or_shape() -> None:
    changed = graph()
    changed.inputs[0].get_tensor().set_names({"hidden"})
    assert 'input "x" in a is called "hidden" in b' in str(compare_structure(graph(), changed))
    changed = graph()
    changed.reshape({"x": [1, 3, 8]})
    assert "[1,3,8]" in str(compare_structure(graph(), changed))


def test_finds_swapped_outputs() -> None:
    def two(swap: bool) -> Model:
        x = tiny.parameter("x", [2], "f32")
        named = [tiny.result(ops.relu(x).output(0), "p"), tiny.result(ops.exp(x).output(0), "q")]
        model = Model(named, [x])
        for port, name in zip(model.outputs, "qp" if swap else "pq", strict=True):
            port.get_tensor().set_names({name})
        return model

    assert compare_structure(two(False), two(False))
    assert not compare_structure(two(False), two(True))


def test_finds_a_missing_state() -> None:
    shorter = graph()
    shorter.remove_sink(assign_of(shorter, "cache_v_l1"))
    report = compare_structure(graph(), shorter)
    assert not report
    assert "cache_v_l1" in str(report)


def test_finds_exchanged_updates_of_states_that_look_alike() -> None:
    def counters(crossed: bool) -> Model:
        (a, variable_a), (b, variable_b) = (tiny.state(n, [1], "f32") for n in "ab")
        one = ops.constant(np.ones(1, np.float32))
        first, second = ops.add(a, one), ops.add(b, one)
        if crossed:
            first, second = second, first
        sinks = [tiny.written(first.output(0), variable_a), tiny.written(second.output(0), variable_b)]
        return Model([tiny.result(ops.concat([a, b], 0).output(0), "y")], sinks, [])

    assert compare_structure(counters(False), counters(False))
    assert not compare_structure(counters(False), counters(True))


def test_names_are_compared_on_demand() -> None:
    renamed = graph()
    of_type(renamed, "ScaledDotProductAttention")[0].set_friendly_name("attention")
    assert compare_structure(graph(), graph().clone())
    before = graph()
    twin = before.clone()
    assert compare_structure(before, twin, names=True)
    of_type(twin, "ScaledDotProductAttention")[0].set_friendly_name("attention")
    assert compare_structure(before, twin)
    report = compare_structure(before, twin, names=True)
    assert len(report.differences) == 1
    assert "'attention' in b" in report.differences[0]


# Bodies --------------------------------------------------------------------------------------------------------------


def loop(step: float = 1.0, exchanged: bool = False) -> Model:
    """Two values, each increased in every iteration."""
    outer = [tiny.parameter(name, [1, 2], "f32") for name in "xy"]
    inner = [tiny.parameter(name, [1, 2], "f32") for name in "pq"]
    increments = [ops.constant(np.float32(2.0)), ops.constant(np.float32(step))]
    next_ones = [ops.result(ops.add(p, by)) for p, by in zip(inner, increments, strict=True)]
    condition = ops.result(ops.constant(True))
    node = ops.loop(ops.constant(3, dtype=np.int32), ops.constant(True))
    node.set_function(Model([*next_ones, condition], inner, "body"))
    node.set_special_body_ports([-1, 2])
    for p, x, value in zip(inner, outer, next_ones[::-1] if exchanged else next_ones, strict=True):
        node.set_merged_input(p, x.output(0), value.output(0))
    outputs = [node.get_iter_value(value.output(0), -1) for value in next_ones]
    return Model([tiny.result(out, name) for out, name in zip(outputs, "uv", strict=True)], outer, "with_loop")


def branches(step: float = 1.0) -> Model:
    condition, x = tiny.parameter("condition", [], "boolean"), tiny.parameter("x", [2], "f32")
    node = ops.if_op(condition.output(0))
    parameters, results = [], []
    for by, use in ((2.0, node.set_then_body), (step, node.set_else_body)):
        parameters.append(tiny.parameter("p", [2], "f32"))
        results.append(ops.result(ops.add(parameters[-1], ops.constant(np.float32(by)))))
        use(Model([results[-1]], [parameters[-1]]))
    node.set_input(x.output(0), *parameters)
    return Model([tiny.result(node.set_output(*results), "y")], [condition, x], "with_if")


def sliced(axis: int = 0) -> Model:
    x = tiny.parameter("x", [2, 2], "f32")
    part = tiny.parameter("part", [1, 2] if axis == 0 else [2, 1], "f32")
    value = ops.result(ops.relu(part))
    node = ops.tensor_iterator()
    node.set_body(Model([value], [part]))
    node.set_sliced_input(part, x.output(0), 0, 1, 1, -1, axis)
    return Model([tiny.result(node.get_concatenated_slices(value.output(0), 0, 1, 1, -1, axis), "y")], [x])


def test_bodies_are_compared(tmp_path: Path) -> None:
    for build in (loop, branches, sliced):
        assert compare_structure(build(), build()), build
        save_model(build(), tmp_path / "model.xml", compress_to_fp16=False)
        assert compare_structure(build(), Core().read_model(tmp_path / "model.xml")), build


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (loop(), loop(1.5), ["body of Loop", "Add", "1.0 in a, 1.5 in b"]),
        (branches(), branches(1.5), ["else body of If", "Add", "1.0 in a, 1.5 in b"]),
        (loop(), loop(exchanged=True), ["Loop"]),
        (sliced(), sliced(1), ["TensorIterator", "axis=1"]),
    ],
)
def test_finds_a_difference_in_a_body(one: Model, other: Model, words: list[str]) -> None:
    report = compare_structure(one, other)
    assert not report
    for word in words:
        assert word in str(report)


def test_stand_ins_of_internal_ops_are_compared() -> None:
    path = RECORDED / "after" / "qwen35" / "stateless" / "model.xml"
    one, other = read_model(path), read_model(path)
    assert compare_structure(one, other, names=True)
    delta = of_type(other.model, "GatedDeltaNet")[1]
    query, key = delta.input_value(0), delta.input_value(1)
    delta.set_arguments([key, query, *delta.input_values()[2:]])
    report = compare_structure(one, other)
    assert [line.split()[0] for line in report.differences] == ["GatedDeltaNet"]


# Constants and speed -------------------------------------------------------------------------------------------------


def holding(constant: Any) -> Model:
    return Model([tiny.result(ops.convert_like(constant, constant).output(0), "y")], [])


@pytest.mark.parametrize("kind", ["u1", "u4", "i4", "u8", "bf16", "f8e4m3", "f16", "f32", "f64", "i64", "boolean"])
def test_constants_of_every_type_are_compared_by_value(kind: str) -> None:
    def of(values: list[int]) -> Model:
        return holding(Constant(getattr(Type, kind), Shape([2, 4]), values))

    ones = [1, 0, 1, 1, 0, 0, 1, 0]
    assert compare_structure(of(ones), of(ones))
    report = compare_structure(of(ones), of([*ones[:-1], 1]))
    assert not report
    assert kind in str(report)


def test_constants_of_strings_and_of_other_types() -> None:
    def text(*words: str) -> Model:
        return holding(Constant(Tensor(np.array(words))))

    assert compare_structure(text("a", "bc"), text("a", "bc"))
    assert not compare_structure(text("a", "bc"), text("a", "bd"))
    zeros = [ops.constant(np.zeros(2, dtype)) for dtype in (np.int32, np.float32)]
    assert "i32[2] in a, f32[2] in b" in str(compare_structure(*map(holding, zeros)))


def test_twenty_thousand_ops_in_time() -> None:
    def long(last: float = 1.0) -> Model:
        value = x = tiny.parameter("x", [4], "f32")
        for step in range(10_000):
            value = ops.add(value, ops.constant(np.float32(last if step == 9_999 else 1.0)))
        return Model([tiny.result(value.output(0), "y")], [x])

    pair = long(), long(2.0)
    started = time.process_time()
    report = compare_structure(*pair)
    assert time.process_time() - started < 5
    assert (len(report.differences), report.ops) == (1, (20_002, 20_002))


def concatenated(count: int, *, backwards: bool = False) -> Model:
    x = tiny.parameter("x", [1, 4], "f32")
    parts = [ops.multiply(x, ops.constant(np.float32(i))) for i in range(count)]
    return Model([tiny.result(ops.concat(parts[:: -1 if backwards else 1], 0).output(0), "y")], [x])


def test_an_op_of_many_inputs_takes_few_lines() -> None:
    text = str(compare_structure(concatenated(400), concatenated(400, backwards=True)))
    assert sum(-(-len(line) // 120) for line in text.splitlines()) <= 24
    assert "and 396 more" in text
    assert "and 394 more" in text


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (0.0, -0.0, "1 of 32 values differ, the first at [1, 2]: 0.0 in a, -0.0 in b"),
        (np.nan, 1.0, "1 of 32 values differ, the first at [1, 2]: nan in a, 1.0 in b"),
    ],
)
def test_values_are_worded_as_they_are_compared(one: float, other: float, words: str) -> None:
    def build(value: float) -> Model:
        table = np.full((4, 8), one, np.float32)
        table[1, 2] = value
        x = tiny.parameter("x", [4, 8], "f32")
        return Model([tiny.result(ops.add(x, ops.constant(table)).output(0), "y")], [x])

    assert compare_structure(build(one), build(one))
    assert words in str(compare_structure(build(one), build(other)))


def layers(ids: str, last: float = 1.0) -> Model:
    """Layers that are alike but for a weight, each with a state."""
    x = first = tiny.parameter("x", [1, -1, 4], "f32")
    sinks = []
    for number, name in enumerate(ids):
        read, variable = tiny.state(name, [1, -1, 4], "f32")
        rows = ops.matmul(first, ops.constant(np.eye(4, dtype=np.float32) * (number + 1)), False, False)
        past = ops.concat([read.output(0), rows.output(0)], 1)
        sinks.append(tiny.written(past.output(0), variable))
        scale = ops.constant(np.float32(last if number == len(ids) - 1 else 1.0))
        x = ops.add(x, ops.multiply(ops.reduce_sum(past, ops.constant(np.int64([1])), True), scale))
    return Model([tiny.result(x.output(0), "y")], sinks, [first])


def test_variable_ids_in_another_order_hide_nothing() -> None:
    assert compare_structure(layers("abcd"), layers("bcda"))
    report = compare_structure(layers("abcd"), layers("bcda", 2.0))
    assert len(report.differences) == 1
    assert report.differences[0].startswith("Multiply")
    assert compare_numbers(layers("abcd"), layers("bcda"))
    assert not compare_numbers(layers("abcd"), layers("bcda", 2.0))


def test_paths_are_taken(tmp_path: Path) -> None:
    save_model(layers("ab"), tmp_path / "a.xml", compress_to_fp16=False)
    assert compare_structure(tmp_path / "a.xml", layers("ab"))
    assert compare_structure(str(tmp_path / "a.xml"), tmp_path / "a.xml")
