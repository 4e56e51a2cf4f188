"""Random KV graphs through every pass in every order: same numbers over several steps, idempotent, counts add up."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openvino import Model

from models.tiny_graphs import ATTENTION, ROWS, Decoder, scattered, stateful, stateless
from ovpasses.equivalence import structure_digest
from ovpasses.passes import BeamReorder, KVHeadSplit, KVStateSeqAxis, MakeKVStateful
from ovpasses.passes.base import ReportedPass
from tests.passes.helpers import assert_same_numbers, run

STEPS = (3, 1, 2)
# The fused attention rounds in another order than MatMul and Softmax do; an f16 cache rounds to 2^-11.
TOLERANCE = {"f32": 3e-5, "f16": 1e-2}

QUICK = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
SWEEP = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def decoders(draw: st.DrawFn) -> Decoder:
    layers = draw(st.integers(1, 6))
    reader = draw(st.sampled_from(["transpose-expand", "expand-transpose"]))
    layouts = [ROWS] if reader == "expand-transpose" else [ROWS, ATTENTION]
    return Decoder(
        layers=layers,
        heads=draw(st.lists(st.integers(1, 8), min_size=layers, max_size=layers)),
        size=draw(st.sampled_from([4, 8, 12, 16, 32, 64])),
        repeats=draw(st.integers(1, 4)),
        dtype=draw(st.sampled_from(["f32", "f16"])),
        layout=draw(st.lists(st.sampled_from(layouts), min_size=layers, max_size=layers)),
        reader=reader,
        attention=draw(st.sampled_from(["sdpa", "matmul"])),
        initial=draw(st.booleans()),
        split=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


def rewrite(model: Model, order: list[type[ReportedPass]]) -> None:
    """Run the passes; each report must add up and agree with the graph, and a second run must find nothing to do."""
    for kind in order:
        before = structure_digest(model)
        one, again = kind(), kind()
        one.run_on_model(model)
        assert one.report.candidates == one.report.rewritten + len(one.report.skipped)
        assert len({*one.report.sites, *(s.node for s in one.report.skipped)}) == one.report.candidates
        after = structure_digest(model)
        assert (after != before) == bool(one.report.rewritten)
        again.run_on_model(model)
        assert again.report.rewritten == 0
        assert structure_digest(model) == after


def check_stateful(knobs: Decoder, order: list[type[ReportedPass]]) -> None:
    wanted = run(stateful(knobs), STEPS)
    model = stateful(knobs)
    rewrite(model, order)
    assert len(model.get_variables()) == 2 * knobs.layers
    # Every later step reads the states; their shapes alone do not tell 3 heads from 3 tokens.
    assert_same_numbers(run(model, STEPS), wanted, TOLERANCE[knobs.dtype], states=False)


def check_stateless(knobs: Decoder, order: list[type[ReportedPass]]) -> None:
    carried = {
        f"present.{layer}.{kind}": f"past_key_values.{layer}.{kind}"
        for layer in range(knobs.layers)
        for kind in ("key", "value")
    }
    wanted = run(stateless(knobs), STEPS, carried)
    model = stateless(knobs)
    rewrite(model, [MakeKVStateful, *order])
    assert [port.get_any_name() for port in model.outputs] == ["y"]
    assert_same_numbers(run(model, STEPS), wanted, TOLERANCE[knobs.dtype], states=False)


def check_scattered(knobs: Decoder, order: list[type[ReportedPass]]) -> None:
    """The frontend's form cannot be run for more than one token: the stateful twin says what it means."""
    wanted = run(stateful(knobs), STEPS)
    model = scattered(knobs)
    rewrite(model, order)
    assert_same_numbers(run(model, STEPS), wanted, TOLERANCE[knobs.dtype], states=False)


orders = st.permutations([KVStateSeqAxis, BeamReorder, KVHeadSplit])
orders_from_scattered = st.permutations([MakeKVStateful, KVStateSeqAxis, BeamReorder, KVHeadSplit])


@QUICK
@given(knobs=decoders(), order=orders)
def test_stateful(knobs: Decoder, order: list[type[ReportedPass]]) -> None:
    check_stateful(knobs, order)


@QUICK
@given(knobs=decoders(), order=orders)
def test_stateless(knobs: Decoder, order: list[type[ReportedPass]]) -> None:
    check_stateless(knobs, order)


@QUICK
@given(knobs=decoders(), order=orders_from_scattered)
def test_scattered(knobs: Decoder, order: list[type[ReportedPass]]) -> None:
    check_scattered(_frontend_form(knobs), order)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_stateful, check_stateless, check_scattered])
def test_sweep(check: object) -> None:
    @SWEEP
    @given(knobs=decoders(), order=orders if check is not check_scattered else orders_from_scattered)
    def sweep(knobs: Decoder, order: list[type[ReportedPass]]) -> None:
        check(_frontend_form(knobs) if check is check_scattered else knobs, order)  # type: ignore[operator]

    sweep()


def _frontend_form(knobs: Decoder) -> Decoder:
    from dataclasses import replace

    return replace(knobs, layout=ROWS)
