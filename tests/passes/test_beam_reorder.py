"""BeamReorder: one shared ``beam_idx`` gathers the batch rows of every past state."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from openvino import Model, save_model

from models import tiny_graphs as tiny
from models.tiny_graphs import Decoder
from ovpasses import BeamReorder, KVStateSeqAxis, MakeKVStateful, RewriteError, read_model
from ovpasses._openvino import ops
from ovpasses.passes.base import ReportedPass
from tests.passes.helpers import (
    CORE,
    assert_same,
    assert_same_numbers,
    check_pass,
    check_unchanged,
    names,
    node,
    nodes,
    only_skip,
    precise,
    run,
)

RECORDED = Path(__file__).parents[2] / "models" / "recorded"


def summed(gathered: bool = False, beam_input: str | None = None, batch: int = 1) -> Model:
    """A state of rows, appended to and summed over the sequence."""
    x = tiny.parameter("x", [batch, -1, 2], "f32")
    read, variable = tiny.state("rows", [-1, -1, 2], "f32")
    read.set_arguments([ops.constant(np.zeros((batch, 0, 2), np.float32)).output(0)])
    inputs = [x]
    past = read.output(0)
    if gathered:
        inputs.append(tiny.parameter("beam_idx", [-1], "i32"))
        past = ops.gather(read, inputs[-1], ops.constant(0, dtype=np.int32)).output(0)
    elif beam_input:
        inputs.append(tiny.parameter("beam_idx", [-1], beam_input))
    grown = ops.concat([past, x.output(0)], axis=1)
    results = [tiny.result(ops.reduce_sum(grown, tiny.int_constant([1])).output(0), "y")]
    if beam_input:
        results.append(tiny.result(ops.relu(inputs[-1]).output(0), "other"))
    return Model(results, [tiny.written(grown.output(0), variable)], inputs, "summed")


# Rewrites ------------------------------------------------------------------------------------------------------------


def test_gathers_the_past() -> None:
    model, report = check_pass(BeamReorder, summed, summed(gathered=True), rewritten=1)
    assert names(model) == ["x", "beam_idx", "y"]
    assert report.notes == ["added input beam_idx (i32 [beams])"]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("heads", [1, 2])
def test_the_cpus_fused_attention_computes_the_same(heads: int, layout: str, dtype: str) -> None:
    """From the Gather on the CPU plugin uses another kernel, with sums in another order."""
    knobs = Decoder(layers=2, heads=heads, repeats=2, size=16, width=32, layout=layout, dtype=dtype)
    model, _ = check_pass(BeamReorder, lambda: tiny.stateful(knobs), rewritten=4, numbers=False)
    assert len([p for p in model.get_parameters() if p.get_friendly_name() == "beam_idx"]) == 1
    tolerance = 1e-5 if dtype == "f32" else 5e-3
    assert_same_numbers(run(model), run(tiny.stateful(knobs)), tolerance, states=False)


def test_reorders_the_beams() -> None:
    """Three sequences; after a step the third goes on as the first, the first as the others."""
    model = summed(batch=3)
    BeamReorder().run_on_model(model)
    request = CORE.compile_model(model, "CPU", precise(model)).create_infer_request()
    first, second = (np.random.default_rng(n).standard_normal((3, 2, 2)).astype(np.float32) for n in (1, 2))
    request.infer({"x": first, "beam_idx": np.arange(3, dtype=np.int32)})
    found = request.infer({"x": second, "beam_idx": np.array([2, 0, 0], np.int32)})["y"]
    np.testing.assert_allclose(found, first[[2, 0, 0]].sum(1) + second.sum(1), atol=1e-6)


def test_every_reader_gets_the_gathered_past() -> None:
    def build() -> Model:
        model = summed()
        (read,) = nodes(model, "ReadValue")
        for number in range(2):
            seen = ops.reduce_mean(ops.concat([read, node(model, "x")], axis=1), tiny.int_constant([1]))
            model.add_results([tiny.result(seen.output(0), f"reader_{number}")])
        return model

    model, _ = check_pass(BeamReorder, build, rewritten=1)
    (read,) = nodes(model, "ReadValue")
    (reader,) = read.output(0).get_target_inputs()
    assert reader.get_node().get_type_name() == "Gather"
    assert len(reader.get_node().output(0).get_target_inputs()) == 3


def test_gathers_recurrent_states_too() -> None:
    def build() -> Model:
        model = tiny.recurrent(2)
        MakeKVStateful().run_on_model(model)
        return model

    check_pass(BeamReorder, build, rewritten=4, tolerance=1e-6)


def test_uses_a_beam_input_that_is_there() -> None:
    model, report = check_pass(BeamReorder, lambda: summed(beam_input="i32"), rewritten=1, numbers=False)
    assert names(model) == ["x", "beam_idx", "y", "other"]
    assert report.notes == []


def test_gathers_what_is_not_gathered_yet_from_the_same_input() -> None:
    """A half converted model: one state has its Gather already."""

    def build() -> Model:
        model = tiny.stateful(Decoder(layout="bhsd"))
        read = nodes(model, "ReadValue")[0]
        readers = read.output(0).get_target_inputs()
        beam = tiny.parameter("beam_idx", [-1], "i32")
        gather = ops.gather(read, beam, ops.constant(0, dtype=np.int32))
        for reader in readers:
            reader.replace_source_output(gather.output(0))
        model.add_parameters([beam])
        return model

    model, report = check_pass(BeamReorder, build, rewritten=1, tolerance=1e-5)
    assert [skip.step for skip in report.skipped] == ["already"]
    assert names(model).count("beam_idx") == 1


def test_gives_a_state_without_an_initial_value_an_empty_one() -> None:
    """As in llama.cpp's dumps; the CPU plugin does not compile its fused attention without one."""
    model, report = check_pass(BeamReorder, lambda: tiny.stateful(Decoder(initial=False)), rewritten=2, tolerance=1e-5)
    assert "gave 2 states an empty initial value" in report.notes
    for read in nodes(model, "ReadValue"):
        assert list(read.input_value(0).get_shape()) == [1, 0, 2, 4]


def test_names_and_other_inputs_survive_saving(tmp_path: Path) -> None:
    model = tiny.stateful(Decoder(layers=2))
    BeamReorder().run_on_model(model)
    save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    again = CORE.read_model(tmp_path / "model.xml")
    assert names(again) == ["x", "beam_idx", "y"]
    assert_same(again, model)


# Skips, one per condition --------------------------------------------------------------------------------------------


def test_skips_a_gathered_state() -> None:
    step, reason = only_skip(check_unchanged(BeamReorder, lambda: summed(gathered=True)))
    assert (step, reason) == ("already", "gathered by input beam_idx already")


def test_skips_a_state_of_dynamic_rank() -> None:
    def build() -> Model:
        read, variable = tiny.state("memory", [1, 2], "f32", initial=False)
        info = variable.info
        info.data_shape = tiny.PartialShape.dynamic()
        variable.update(info)
        read.validate_and_infer_types()
        value = ops.relu(read)
        return Model([tiny.result(value.output(0), "y")], [tiny.written(value.output(0), variable)], [])

    step, reason = only_skip(check_unchanged(BeamReorder, build))
    assert step == "state"
    assert "rank is dynamic" in reason


def test_a_state_that_nothing_reads_is_no_candidate() -> None:
    def build() -> Model:
        x = tiny.parameter("x", [1, 2], "f32")
        _, variable = tiny.state("memory", [1, 2], "f32")
        value = ops.relu(x)
        return Model([tiny.result(value.output(0), "y")], [tiny.written(value.output(0), variable)], [x])

    assert check_unchanged(BeamReorder, build).candidates == 0


def test_says_that_there_is_nothing_to_look_at() -> None:
    assert "no state" in check_unchanged(BeamReorder, lambda: tiny.stateless(Decoder())).summary()


def test_skips_for_a_beam_input_of_another_type() -> None:
    step, reason = only_skip(check_unchanged(BeamReorder, lambda: summed(beam_input="i64")))
    assert (step, reason) == ("beam", "input beam_idx is i64 [?], wanted i32 [beams]")
    with pytest.raises(RewriteError, match=r"input beam_idx is i64 .*; nothing was changed"):
        BeamReorder(strict=True).run_on_model(summed(beam_input="i64"))


def test_strict_accepts_what_is_gathered_already() -> None:
    assert BeamReorder(strict=True).run_on_model(summed(gathered=True)) is False


# With the other passes -----------------------------------------------------------------------------------------------

PASSES: dict[str, type[ReportedPass]] = {p.__name__: p for p in (MakeKVStateful, KVStateSeqAxis, BeamReorder)}


def converted(model: Model, order: Sequence[str]) -> Model:
    for name in order:
        PASSES[name]().run_on_model(model)
    return model


@pytest.mark.parametrize("reader", ["transpose-expand", "expand-transpose"])
@pytest.mark.parametrize("order", list(permutations(PASSES)), ids=lambda order: " ".join(n[0] for n in order))
def test_any_order_of_passes(order: tuple[str, ...], reader: str) -> None:
    """A pass that comes too early finds nothing; run again it ends in the same graph."""
    knobs = Decoder(layers=2, heads=2, repeats=2, size=16, width=32, reader=reader)
    carried = {f"present.{n}.{k}": f"past_key_values.{n}.{k}" for n in range(2) for k in ("key", "value")}
    wanted = run(tiny.stateless(knobs), carried=carried)
    model = converted(tiny.stateless(knobs), order)
    assert_same_numbers(run(model), wanted, 1e-5, states=False)
    assert_same(converted(model, order), converted(tiny.stateless(knobs), list(PASSES)))


@pytest.mark.parametrize(("name", "states"), [("llama-gqa", 6), ("gemma4-mixed", 12)])
@pytest.mark.parametrize("form", ["stateful", "stateful-prerelayout"])
def test_recorded_graph(form: str, name: str, states: int) -> None:
    def build() -> Model:
        return read_model(RECORDED / "after" / name / form / "model.xml").model

    model, report = check_pass(BeamReorder, build, rewritten=states, numbers=False)
    assert f"gave {states} states an empty initial value" in report.notes
    assert len(nodes(model, "Gather")) == len(nodes(build(), "Gather")) + states


@pytest.mark.parametrize(("name", "states"), [("tiny-llama-gqa", 6), ("tiny-gemma4-mixed", 12), ("tiny-qwen35", 8)])
def test_recorded_gguf(name: str, states: int) -> None:
    """Of tiny-qwen35's eight states two are KV caches."""

    def build() -> Model:
        model = read_model(RECORDED / "gguf" / f"{name}.gguf").model
        MakeKVStateful().run_on_model(model)
        return model

    model, _ = check_pass(BeamReorder, build, rewritten=states, numbers=False)
    live = set(model.get_ops())
    beam = next(p for p in model.get_parameters() if p.get_friendly_name() == "beam_idx")
    assert len([r for r in beam.output(0).get_target_inputs() if r.get_node() in live]) == states
    one = KVStateSeqAxis()
    one.run_on_model(model)
    assert one.report.rewritten == (2 if name == "tiny-qwen35" else states)
