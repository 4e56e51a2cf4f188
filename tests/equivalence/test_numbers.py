"""assert_equivalent: right rewrites pass with the derived tolerance, each planted difference is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import ovpasses as ovp
from ovpasses._openvino import Node, ops
from ovpasses.cli import main
from ovpasses.equivalence import CheckError, NotEquivalentError, compare_numbers
from ovpasses.passes._states import find_append, states
from tests.conftest import RECORDED

NAMES = ["llama-gqa", "gemma4-mixed"]
WINDOWED = (70, 1)  # past gemma4's window of 64


def prerelayout(name: str) -> ovp.ImportedModel:
    return ovp.read_model(RECORDED / f"after/{name}/stateful-prerelayout/model.xml")


def gguf(name: str, *passes: Any) -> ovp.ImportedModel:
    imported = ovp.read_model(RECORDED / f"gguf/tiny-{name}.gguf")
    (ovp.Pipeline([kind() for kind in passes]) if passes else ovp.Pipeline.preset("stateful")).run(imported)
    return imported


def static_pair(name: str, chunk: int = 5) -> tuple[ovp.ImportedModel, ...]:
    pair = []
    for preset, options in (("static-prefill", {"chunk": chunk}), ("static-decode", {})):
        imported = ovp.read_model(RECORDED / f"gguf/tiny-{name}.gguf")
        ovp.Pipeline.preset(preset, context=128, **options).run(imported)
        pair.append(imported)
    return tuple(pair)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_stateful_graph_against_its_rewrite(name: str) -> None:
    rewritten = prerelayout(name)
    ovp.KVStateSeqAxis().run_on_model(rewritten.model)
    report = ovp.assert_equivalent(prerelayout(name), rewritten, steps=WINDOWED)
    assert report.nmse < 2e-11
    assert {c.kind for c in report.comparisons} == {"output", "state"}


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("name", [*NAMES, "qwen35"])
def test_a_stateless_dump_against_its_stateful_rewrite(name: str) -> None:
    info = ovp.read_model(RECORDED / f"gguf/tiny-{name}.gguf").info
    dump, rewritten = (ovp.read_model(RECORDED / f"after/{name}/stateless/model.xml", info=info) for _ in range(2))
    ovp.Pipeline.preset("stateful").run(rewritten)
    ops_before = len(dump.model.get_ops())
    assert ovp.assert_equivalent(dump, rewritten, steps=WINDOWED).nmse < 4e-6
    assert len(dump.model.get_ops()) == ops_before


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("name", [*NAMES, "qwen35"])
def test_a_dynamic_model_against_its_static_pair(name: str) -> None:
    ovp.assert_equivalent(gguf(name), static_pair(name))


@pytest.mark.needs_2026_4
def test_a_static_pair_without_the_gate_is_found_in_a_state() -> None:
    pair = static_pair("qwen35")
    gate = next(p for p in pair[0].model.get_parameters() if "chunk_valid_len" in p.output(0).get_names())
    for reader in list(gate.output(0).get_target_inputs()):
        reader.replace_source_output(ops.constant(np.array([5], np.int64)).output(0))
    report = compare_numbers(gguf("qwen35"), pair)
    wrong = [c for c in report.comparisons if not c.same]
    assert {c.name for c in wrong if c.step == 1} >= {"conv of layer 0", "delta-net of layer 0"}


def swap_assigns(model: ov.Model) -> None:
    key, value = (next(s for s in states(model) if s.name.startswith(f"cache_{kind}_l0")) for kind in "kv")
    sources = key.assign.input_value(0), value.assign.input_value(0)
    key.assign.set_arguments([sources[1]])
    value.assign.set_arguments([sources[0]])


def never_grow(model: ov.Model) -> None:
    state = next(s for s in states(model) if s.name.startswith("cache_v_l1"))
    state.assign.set_arguments([state.read.output(0)])


def change_a_weight(model: ov.Model) -> None:
    product = [op for op in model.get_ordered_ops() if op.get_type_name() == "MatMul"][3]
    constant = next(
        o for o in upstream(product) if o.get_type_name() == "Constant" and o.get_output_size() == 1 and big(o)
    )
    data = np.array(constant.data)
    data.reshape(-1)[7] += 1e-2
    changed = ops.constant(data, constant.get_element_type())
    for reader in list(constant.output(0).get_target_inputs()):
        reader.replace_source_output(changed.output(0))


def upstream(node: Node) -> list[Node]:
    found, todo = [], [node]
    while todo:
        todo = [value.get_node() for one in todo for value in one.input_values()]
        found += todo
    return found


def big(constant: Node) -> bool:
    return constant.get_output_partial_shape(0).is_static and int(np.prod(list(constant.get_output_shape(0)))) > 1000


def other_transpose(model: ov.Model) -> None:
    """Heads and sizes of the value rows, as if [size, heads] had been written."""
    append = find_append(next(s for s in states(model) if s.name.startswith("cache_v_l0")))
    assert not isinstance(append, str)
    rows = append.concat.input_value(1)
    shape = rows.get_partial_shape()
    swapped = ops.transpose(rows, np.array([0, 1, 3, 2]))
    target = np.array([1, -1, shape[2].get_length(), shape[3].get_length()])
    append.concat.input(1).replace_source_output(ops.reshape(swapped, target, False).output(0))


def mask_off_by_one(model: ov.Model) -> None:
    mask = next(p for p in model.get_parameters() if "self_kq_mask" in p.output(0).get_names())
    readers = list(mask.output(0).get_target_inputs())
    rolled = ops.roll(mask, np.array([1]), np.array([-1]))
    for reader in readers:
        reader.replace_source_output(rolled.output(0))


PLANTED: dict[str, tuple[Callable[[ov.Model], None], str]] = {
    "swapped Assign targets": (swap_assigns, "key of layer 0"),
    "an Assign fed by its ReadValue": (never_grow, "value of layer 1"),
    "one weight changed by 1e-2": (change_a_weight, "key of layer 1"),
    "a Transpose order": (other_transpose, "value of layer 0"),
    "a mask off by one": (mask_off_by_one, "logits"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_difference_is_found_and_named(kind: str) -> None:
    plant, named = PLANTED[kind]
    changed = prerelayout("llama-gqa")
    plant(changed.model)
    changed.model.validate_nodes_and_infer_types()
    with pytest.raises((NotEquivalentError, ovp.StateError)) as found:
        ovp.assert_equivalent(prerelayout("llama-gqa"), changed)
    text = str(found.value)
    if isinstance(found.value, NotEquivalentError):
        report = found.value.report
        text += " ".join(f"{c.kind} {c.name}" for c in report.comparisons if not c.same)
    assert named in text or named.replace("value of layer ", "cache_v_l") in text
    assert not ovp.compare_structure(prerelayout("llama-gqa"), changed).same


def test_renamed_and_reordered_twins_pass() -> None:
    twin = prerelayout("llama-gqa")
    for number, op in enumerate(twin.model.get_ops()):
        op.set_friendly_name(f"op{number}")
    assert ovp.assert_equivalent(prerelayout("llama-gqa"), twin).comparisons


def graph(factor: float, shape: list[int] | None = None) -> ov.Model:
    x = ops.parameter([-1, 4] if shape is None else shape, np.float32, name="x")
    return ov.Model([ops.multiply(x, np.full([1], factor, np.float32))], [x], "g")


def test_other_graphs_run_on_random_inputs() -> None:
    assert ovp.assert_equivalent(graph(2), graph(2)).comparisons
    with pytest.raises(NotEquivalentError, match="NMSE"):
        ovp.assert_equivalent(graph(2), graph(2.001))


def test_a_check_that_cannot_fail_is_refused() -> None:
    x = ops.parameter([2, 4], np.float32, name="x")
    zero = ov.Model([ops.multiply(x, np.zeros([1], np.float32))], [x], "zero")
    with pytest.raises(CheckError, match="is the same at every step"):
        compare_numbers(zero, zero.clone())
    with pytest.raises(CheckError, match="not finite in either"):
        compare_numbers(graph(float("nan")), graph(float("nan")))
    for steps in ((), (0,), (3, -1)):
        with pytest.raises(CheckError, match="wanted at least one step"):
            compare_numbers(graph(1), graph(1), steps=steps)
    report = compare_numbers(graph(1), graph(float("inf")))
    assert not report.equivalent
    assert "not finite in b (g) only" in str(report)


def test_check_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = RECORDED / "after/llama-gqa/stateful-prerelayout/model.xml", tmp_path / "b.xml"
    rewritten = prerelayout("llama-gqa")
    ovp.KVStateSeqAxis().run_on_model(rewritten.model)
    ov.save_model(rewritten.model, b, compress_to_fp16=False)
    with pytest.raises(SystemExit) as same:
        main(["check", str(a), str(b), "--json"])
    assert same.value.code == 0
    assert json.loads(capsys.readouterr().out)["equivalent"]
    change_a_weight(rewritten.model)
    ov.save_model(rewritten.model, tmp_path / "c.xml", compress_to_fp16=False)
    with pytest.raises(SystemExit) as other:
        main(["check", str(a), str(tmp_path / "c.xml")])
    assert other.value.code == 1
    assert "differ in" in capsys.readouterr().out
    with pytest.raises(SystemExit) as bad:
        main(["check", str(a), str(b), "--steps", "x"])
    assert bad.value.code == 2
