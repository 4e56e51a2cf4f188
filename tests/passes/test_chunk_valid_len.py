"""ChunkValidLen: padding is an exact identity for conv windows and delta nets; every other state is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from openvino import Model, PartialShape

import ovpasses as ovp
from models.tiny_graphs import int_constant, parameter, recurrent, result
from ovpasses._openvino import Manager, Node, ops
from ovpasses.equivalence import structure_digest
from ovpasses.importers._slot_rows import Rows, find_rows
from ovpasses.importers._slots import slot_caches
from ovpasses.importers.internal_ops import GatedDeltaNet
from ovpasses.passes import ChunkValidLen
from ovpasses.passes.base import ReportedPass
from ovpasses.passes.report import PassReport
from tests.conftest import RECORDED
from tests.passes.helpers import CORE, assert_same, node, nodes, precise
from tests.passes.sequence_graphs import write_odd_rows

TOKENS = np.random.default_rng(7).integers(0, 320, 64)
END = np.iinfo(np.int64).max
HEADS, SIZE, CHANNELS, WINDOW = 2, 4, 6, 3


def cut(columns: Node, start: int = -WINDOW, stop: int = END, step: int = 1, axis: int = 3) -> Node:
    return ops.slice(columns, *(int_constant([v]) for v in (start, stop, step, axis)))


def chunk(
    tokens: int = -1,
    *,
    keep: Callable[[Node], Node] = cut,
    gated: Callable[[Node, Node], Node] | None = None,
    dtype: str = "f32",
) -> Model:
    """A conv window and a delta net; ``gated`` and ``keep`` are what the pass replaces."""
    shapes = {"q": [HEADS, SIZE], "k": [HEADS, SIZE], "v": [HEADS, SIZE], "g": [HEADS], "b": [HEADS]}
    q, k, v, g, b = (parameter(name, [1, tokens, *rest], dtype) for name, rest in shapes.items())
    x = parameter("x", [1, 1, CHANNELS, tokens], "f32")
    window = parameter("conv_state_l0", [1, 1, CHANNELS, WINDOW], "f32")
    state = parameter("ssm_state_l0", [1, HEADS, SIZE, SIZE], dtype)
    inputs = [q, k, v, g, b, x, window, state]
    if gated is not None:
        valid = parameter("chunk_valid_len", [1], "i64")
        inputs.append(valid)
        live = ops.unsqueeze(gated(g, valid), int_constant([1]))
        g, b = ops.multiply(g, live), ops.multiply(b, live)
    net = GatedDeltaNet([n.output(0) for n in (q, k, v, state, g, b)])
    net.set_friendly_name("delta")
    columns = ops.concat([window, x], axis=3)
    columns.set_friendly_name("columns")
    kept = keep(columns) if gated is None else ops.gather(columns, ops.add(valid, int_constant([0, 1, 2])), axis=3)
    kept.set_friendly_name("kept")
    outputs = [result(net.output(0), "y"), result(columns.output(0), "seen")]
    outputs += [result(kept.output(0), "conv_state_l0_out"), result(net.output(1), "ssm_state_l0_out")]
    model = Model(outputs, inputs, "chunk")
    pairs = [name for state in ("conv_state_l0", "ssm_state_l0") for name in (state, f"{state}_out")]
    model.set_rt_info(pairs, ["gguf_recurrent_states"])
    return model


def live_of_dynamic(g: Node, valid: Node) -> Node:
    count = ops.gather(ops.shape_of(g), ops.constant(np.int64(1)), ops.constant(np.int64(0)))
    position = ops.range(ops.constant(np.int64(0)), count, ops.constant(np.int64(1)), "i64")
    return ops.convert(ops.less(position, valid), "f32")


def live_of_five(g: Node, valid: Node) -> Node:
    return ops.convert(ops.less(int_constant(np.arange(5)), valid), g.get_element_type().get_type_name())


@pytest.mark.parametrize(("tokens", "live"), [(-1, live_of_dynamic), (5, live_of_five)])
def test_gates_the_delta_net_and_ends_the_window(tokens: int, live: Callable[[Node, Node], Node]) -> None:
    model, one = chunk(tokens), ChunkValidLen()
    assert one.run_on_model(model) is True
    assert one.report.sites == ["delta", "conv_state_l0"]
    assert one.report.notes == ["added input chunk_valid_len i64 [1]"]
    assert_same(model, chunk(tokens, gated=live))
    assert node(model, "kept").get_output_partial_shape(0) == PartialShape([1, 1, CHANNELS, WINDOW])
    other, manager = chunk(tokens), Manager()
    manager.register_pass(ChunkValidLen())
    manager.run_passes(other)
    assert_same(other, model)
    digest, again = structure_digest(model), ChunkValidLen()
    assert again.run_on_model(model) is False
    assert {skip.step for skip in again.report.skipped} == {"already"}
    assert structure_digest(model) == digest


def test_gates_of_half_precision() -> None:
    model = chunk(5, dtype="f16")
    assert ChunkValidLen(strict=True).run_on_model(model)
    assert_same(model, chunk(5, dtype="f16", gated=live_of_five))


def test_other_readers_of_gate_and_window() -> None:
    """The gate's other reader sees it as it was; the window's sees the window that is written back."""
    model = chunk(5)
    gate = next(p for p in model.get_parameters() if "g" in p.output(0).get_names())
    model.add_results([result(gate.output(0), "gate"), result(node(model, "kept").output(0), "window")])
    ChunkValidLen().run_on_model(model)
    seen = {r.get_friendly_name(): r.input_value(0).get_node() for r in model.get_results()}
    assert seen["gate"] is gate
    assert seen["window"].get_type_name() == "Gather"


def all_skipped_for(report: PassReport, name: str) -> tuple[str, str]:
    """Step and reason of the one candidate that does not fit; for it all others are skipped too, as the input that
    they would add says that padding reaches no state."""
    assert report.rewritten == 0
    skipped = {skip.node: (skip.step, skip.reason) for skip in report.skipped}
    step, reason = skipped.pop(name)
    assert skipped
    assert {*skipped.values()} == {("together", f"all change together, but {name}: {reason}")}
    return step, reason


@pytest.mark.parametrize(
    ("keep", "reason"),
    [
        (lambda c: cut(c, -4, -1), "Slice kept takes -4:-1:1 on axis 3, wanted -3:end:1 on axis 3"),
        (lambda c: cut(c, -6, END, 2), rf"takes -6:{END}:2 on axis 3, wanted"),
        (lambda c: cut(c, 0, 3), "takes 0:3:1 on axis 3, wanted"),
        (lambda c: ops.slice(c, *(int_constant(v) for v in ([0, -3], [6, END], [1, 1], [2, 3]))), "of one axis"),
        (lambda c: ops.relu(cut(c)), "what is written back is Relu kept .*, wanted a Slice of columns"),
    ],
)
def test_skips_what_is_no_window(keep: Callable[[Node], Node], reason: str) -> None:
    one, model = ChunkValidLen(), chunk(5, keep=keep)
    one.run_on_model(model)
    step, found = all_skipped_for(one.report, "conv_state_l0")
    assert step == "window"
    assert re.search(reason, found), found


def test_skips_a_state_that_padding_reaches() -> None:
    one = ChunkValidLen()
    one.run_on_model(recurrent())
    assert all_skipped_for(one.report, "ssm_state_l0") == (
        "state",
        "is neither a conv window nor a delta net's, so padding reaches it",
    )
    model = recurrent()
    digest = structure_digest(model)
    with pytest.raises(ovp.RewriteError, match=r"ssm_state_l0: is neither .*; nothing was changed"):
        ChunkValidLen(strict=True).run_on_model(model)
    assert structure_digest(model) == digest


def test_skips_gates_of_integers() -> None:
    model = chunk(5)
    net = node(model, "delta")
    net.set_arguments([*net.input_values()[:4], ops.convert(net.input_value(4), "i32").output(0), net.input_value(5)])
    one = ChunkValidLen()
    one.run_on_model(model)
    assert all_skipped_for(one.report, "delta") == (
        "gates",
        "gate is i32 [1,5,2], wanted floating-point values of rank 3",
    )


def test_skips_a_recurrent_input_without_an_output() -> None:
    model = chunk(5)
    cache = next(p for p in model.get_parameters() if "ssm_state_l0" in p.output(0).get_names())
    cache.output(0).get_tensor().set_names({"cache_s_l0"})  # not the name in the list of pairs
    cache.set_friendly_name("cache_s_l0")
    one = ChunkValidLen()
    one.run_on_model(model)
    step, reason = all_skipped_for(one.report, "cache_s_l0")
    assert step == "pair"
    assert "wanted a Concat or ScatterUpdate" in reason


def dump(form: str, age: str = "after") -> Model:
    return ovp.read_model(RECORDED / age / "qwen35" / f"{form}.xml").model


def inputs(model: Model) -> set[str]:
    return {p.output(0).get_any_name() for p in model.get_parameters()}


@pytest.mark.parametrize("age", ["before", "after"])
@pytest.mark.parametrize(
    ("form", "first"),
    [
        ("static/model_prefill", [ovp.StaticSlotCopy]),
        ("stateless/model", []),
        ("stateless/model", [ovp.MakeKVStateful]),
        ("stateless-slots-2-of-4/model", []),
    ],
)
def test_dumps_with_reshaped_windows(age: str, form: str, first: list[Callable[[], ReportedPass]]) -> None:
    """Three delta nets and three windows, which the dump reads and writes as rows of slots."""
    model = dump(form, age)
    for kind in first:
        kind().run_on_model(model)
    if "chunk_valid_len" in inputs(model):
        digest, left = structure_digest(model), ChunkValidLen(strict=True)
        assert left.run_on_model(model) is False
        assert structure_digest(model) == digest
        return
    before, one = inputs(model), ChunkValidLen(strict=True)
    assert one.run_on_model(model) is True
    assert one.report.rewritten == 6
    assert not one.report.skipped
    windows = [op for op in nodes(model, "Gather") if op.input_value(0).get_node().get_type_name() == "Concat"]
    assert [str(w.get_output_partial_shape(0)[3]) for w in windows] == ["3"] * 3
    # What only said where the windows begin goes away; the delta nets' own such inputs stay.
    assert inputs(model) - before == {"chunk_valid_len"}
    assert {n.split("conv")[0] for n in before - inputs(model)} <= {"rs_src_begin_", "chunk_valid_len"}
    assert len(before - inputs(model)) == (3 if "stateless" in form and not first else 0)
    digest, again = structure_digest(model), ChunkValidLen(strict=True)
    assert again.run_on_model(model) is False
    assert structure_digest(model) == digest


def test_a_window_whose_columns_are_counted() -> None:
    """Of eight columns the last three begin at the fifth."""
    one = ChunkValidLen(strict=True)
    model = chunk(5, keep=lambda c: cut(c, 5, 8))
    assert one.run_on_model(model)
    assert_same(model, chunk(5, gated=live_of_five))


def slot_skip(model: Model) -> tuple[str, str]:
    one = ChunkValidLen()
    one.run_on_model(model)
    assert len(one.report.skipped) == 6
    return all_skipped_for(one.report, "cache_r_l1")


def test_skips_a_slot_cache_of_which_something_else_is_written() -> None:
    model = dump("stateless/model")
    write_odd_rows(model)
    step, reason = slot_skip(model)
    assert step == "window"
    assert re.match(r"what is written back is Relu odd .*, wanted a Slice of Concat_470_conv_input-1", reason)


def test_skips_a_slot_cache_that_nothing_writes() -> None:
    model = dump("stateless/model")
    update = next(c for c in slot_caches(model) if c.name == "cache_r_l1").update
    assert update is not None
    model.remove_result(update.result)
    del update  # a Result that is held here is still a reader
    assert slot_skip(model) == ("pair", "nothing writes new rows into it, or several do")


@pytest.mark.parametrize(("width", "known"), [(3, True), (2, False)])
def test_a_window_that_begins_at_an_input(width: int, known: bool) -> None:
    """It must be as wide as what the state holds."""
    model = dump("stateless/model")
    update = next(c for c in slot_caches(model) if c.name == "cache_r_l1").update
    assert update is not None
    window = find_rows(update.rows, 384)
    assert isinstance(window, Rows)
    window.cut.input(2).replace_source_output(ops.add(window.cut.input_value(1), int_constant([width])).output(0))
    model.validate_nodes_and_infer_types()
    if known:
        assert ChunkValidLen(strict=True).run_on_model(model)
    else:
        assert slot_skip(model) == ("window", "Slice Slice_479 has bounds that are no constants of one axis")


@pytest.mark.parametrize("part", ["prefill", "decode"])
def test_leaves_a_graph_that_has_the_input(part: str) -> None:
    model = ovp.read_model(RECORDED / f"after/qwen35/static/model_{part}.xml").model
    digest, one = structure_digest(model), ChunkValidLen(strict=True)
    assert one.run_on_model(model) is False
    assert one.report.candidates > 0
    assert {skip.step for skip in one.report.skipped} == {"already"}
    assert structure_digest(model) == digest


def test_nothing_to_do_without_recurrent_layers() -> None:
    one = ChunkValidLen(strict=True)
    assert one.run_on_model(ovp.read_model(RECORDED / "gguf/tiny-llama-gqa.gguf").model) is False
    assert one.report.summary().startswith("nothing matched: no delta net or recurrent state")


STATEFUL: list[Callable[[], ReportedPass]] = [ovp.MakeKVStateful, ovp.KVStateSeqAxis, ovp.BeamReorder]
LOWER = ovp.LowerGatedDeltaNet


@pytest.mark.parametrize(
    "order",
    [
        [*STATEFUL, ChunkValidLen],
        [*STATEFUL, LOWER, ChunkValidLen],
        [ChunkValidLen, *STATEFUL, LOWER],
        [LOWER, ChunkValidLen, *STATEFUL],
    ],
    ids=lambda order: "-".join(kind.__name__ for kind in order),
)
def test_recorded_model_in_every_order(order: list[Callable[[], ReportedPass]]) -> None:
    """Three delta nets and three windows; without padding bit-exact, with it as if there were none."""
    model = ovp.read_model(RECORDED / "gguf/tiny-qwen35.gguf").model
    report = ovp.Pipeline([kind() for kind in order]).run(model)
    assert report["ChunkValidLen"].rewritten == 6
    assert not report["ChunkValidLen"].skipped
    plain = ovp.read_model(RECORDED / "gguf/tiny-qwen35.gguf").model
    ovp.Pipeline([kind() for kind in order if kind is not ChunkValidLen]).run(plain)
    assert len(nodes(model, "Loop")) == len(nodes(plain, "Loop"))

    wanted = run(plain, [11, 2, 4])
    assert_states(run(model, [11, 2, 4]), wanted, tolerance=0)
    # Two real tokens are fewer than the window of three columns.
    assert_states(run(model, [11, 2, 4], pad=5), wanted, tolerance=1e-6)
    with pytest.raises(AssertionError):
        assert_states(run(model, [11, 2, 4], pad=5, honest=False), wanted, tolerance=1e-2)


def run(model: Model, chunks: list[int], pad: int = 0, *, honest: bool = True) -> dict[str, np.ndarray]:
    """Recurrent states after chunks of real tokens, each followed by ``pad`` made-up ones."""
    request = CORE.compile_model(model, "CPU", precise(model)).create_infer_request()
    start = 0
    for real in chunks:
        count = real + pad
        ids = np.concatenate([TOKENS[start : start + real], np.full(pad, 9)])
        feeds: dict[str, Any] = {
            "inp_tokens": ids,
            "inp_pos": np.tile(np.arange(start, start + count), 4),
            "inp_out_ids": [real - 1],
            "chunk_valid_len": [real if honest else count],
            "beam_idx": [0],
        }
        feed = {}
        for port in model.inputs:
            name, rank = port.get_any_name(), port.get_partial_shape().rank.get_length()
            if name == "self_kq_mask":  # attention is behind the recurrent layers here
                past = request.query_state()[0].state.shape
                cells = next((s.state.shape for s in request.query_state() if "cache_k" in s.name), past)
                feed[name] = np.zeros((1, 1, count, max(cells[1], cells[2]) + count if start else count), np.float32)
                continue
            value = np.asarray(feeds[name], port.get_element_type().to_dtype())
            feed[name] = value.reshape((1,) * (rank - value.ndim) + value.shape)
        request.infer(feed)
        start += real
    return {s.name: np.array(s.state.data) for s in request.query_state() if "cache" not in s.name}


def assert_states(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    assert len(wanted) == 6
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)
