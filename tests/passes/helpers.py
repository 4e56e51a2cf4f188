"""What every pass is checked for: structure, numbers, report against digest, a second run, a bare Manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from openvino import Core, Model

from ovpasses._openvino import Manager
from ovpasses.equivalence import compare_structure, structure_digest
from ovpasses.passes.base import ReportedPass
from ovpasses.passes.report import PassReport

CORE = Core()
STEPS = (5, 1, 1, 2)  # tokens of each inference: prefill, decode, decode, two at once
Build = Callable[[], Model]


@dataclass
class Trace:
    """Outputs and states after every step of a run."""

    outputs: list[dict[str, np.ndarray]] = field(default_factory=list)
    states: list[dict[str, np.ndarray]] = field(default_factory=list)


def precise(model: Model) -> dict[str, str]:
    """A configuration in which the CPU plugin keeps to the types of the graph."""
    types = {v.info.data_type.get_type_name() for v in model.get_variables() if v.info.data_shape.is_dynamic}
    cache = {"KV_CACHE_PRECISION": min(types)} if types else {}
    return {"INFERENCE_PRECISION_HINT": "f32", **cache}


def run(
    model: Model,
    steps: Sequence[int] = STEPS,
    carried: Mapping[str, str] | None = None,
    feeds: Mapping[str, Any] | None = None,
) -> Trace:
    """Infer step by step on the CPU, with seeded inputs.

    Args:
        model: the model.
        steps: tokens of each step; every dynamic dim of an input gets that many.
        carried: caches outside the model, output name to input name; empty (or zeros) at first.
        feeds: inputs of a given value, or made from (start, tokens).
    """
    request = CORE.compile_model(model, "CPU", precise(model)).create_infer_request()
    carried, random, trace = carried or {}, np.random.default_rng(7), Trace()
    caches: dict[str, np.ndarray] = {}
    start = 0
    for tokens in steps:
        feed: dict[str, np.ndarray] = {}
        for port in sorted(model.inputs, key=lambda p: p.get_any_name()):
            name, shape = port.get_any_name(), port.get_partial_shape()
            dtype = port.get_element_type().to_dtype()
            if name in carried.values():
                empty = [0 if d.is_dynamic else d.get_length() for d in shape]
                feed[name] = caches.get(name, np.zeros(empty, dtype))
            elif feeds and name in feeds:
                value = feeds[name]
                feed[name] = np.asarray(value(start, tokens) if callable(value) else value, dtype)
            elif name == "beam_idx":
                feed[name] = np.zeros(1, np.int32)
            else:
                dims = [tokens if d.is_dynamic else d.get_length() for d in shape]
                feed[name] = random.standard_normal(dims).astype(dtype)
        found = request.infer(feed)
        by_name = {name: np.array(value) for port, value in found.items() for name in port.get_names()}
        caches = {into: by_name[out] for out, into in carried.items()}
        trace.outputs.append({name: v for name, v in by_name.items() if name not in carried})
        trace.states.append({s.name: np.array(s.state.data) for s in request.query_state()})
        start += tokens
    return trace


def assert_same_numbers(found: Trace, wanted: Trace, tolerance: float = 0.0, states: bool = True) -> None:
    """Every output and state of every step; a state of another layout is compared with dims 1 and 2 swapped."""
    for step, (got, expected) in enumerate(zip(found.outputs, wanted.outputs, strict=True)):
        assert got.keys() == expected.keys()
        for name in expected:
            _close(got[name], expected[name], tolerance, f"step {step}, output {name}")
    if not states:
        return
    for step, (got, expected) in enumerate(zip(found.states, wanted.states, strict=True)):
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            mine = got[name]
            if mine.shape != value.shape:
                mine = mine.swapaxes(1, 2)
            _close(mine, value, tolerance, f"step {step}, state {name}")


def _close(got: np.ndarray, expected: np.ndarray, tolerance: float, where: str) -> None:
    assert got.shape == expected.shape, where
    assert np.isfinite(expected.astype(np.float32)).all(), where
    np.testing.assert_allclose(
        got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance, err_msg=where
    )


def check_pass(
    make: Callable[[], ReportedPass],
    build: Build,
    expected: Model | None = None,
    *,
    rewritten: int | None = None,
    tolerance: float = 0.0,
    numbers: bool = True,
    steps: Sequence[int] = STEPS,
    carried: Mapping[str, str] | None = None,
    feeds: Mapping[str, Any] | None = None,
) -> tuple[Model, PassReport]:
    """Run a pass on a graph and check everything that holds for every pass.

    Args:
        make: the pass.
        build: builds the graph; called more than once.
        expected: what must come out.
        rewritten: how many candidates must be rewritten.
        tolerance: of outputs and states, absolute and relative; 0 for a relayout.
        numbers: compare outputs and states over ``steps`` with those of the graph before.
        steps: tokens of each step.
        carried: caches outside the graph before, output name to input name, which are states in it after.
        feeds: see :func:`run`.

    Returns:
        The rewritten model and the report.
    """
    model = build()
    before, interface = structure_digest(model), names(model)
    one = make()
    changed = one.run_on_model(model)
    report = one.report
    assert report.candidates == report.rewritten + len(report.skipped)
    assert changed == bool(report.rewritten)
    assert (structure_digest(model) != before) == bool(report.rewritten), "the report and the graph disagree"
    kept = [n for n in names(model) if n in interface]
    assert kept == [n for n in interface if n in kept], "the order of inputs or outputs changed"
    assert set(names(model)) <= {*interface, "beam_idx"}
    if rewritten is not None:
        assert report.rewritten == rewritten
    if expected is not None:
        assert_same(model, expected)
    if numbers:
        wanted = run(build(), steps, carried, feeds)
        assert_same_numbers(run(model, steps, None, feeds), wanted, tolerance, states=not carried)
    _check_second_run(make, model)
    _check_manager(make, build, model)
    return model, report


def check_unchanged(make: Callable[[], ReportedPass], build: Build) -> PassReport:
    """A pass must leave the graph as it is; returns its report."""
    model = build()
    _, report = check_pass(make, build, build(), rewritten=0, numbers=False)
    assert compare_structure(model, build(), names=False)
    return report


def _check_second_run(make: Callable[[], ReportedPass], model: Model) -> None:
    digest, again = structure_digest(model), make()
    assert again.run_on_model(model) is False
    assert again.report.rewritten == 0
    assert structure_digest(model) == digest


def _check_manager(make: Callable[[], ReportedPass], build: Build, model: Model) -> None:
    other, manager = build(), Manager()
    manager.register_pass(make())
    manager.run_passes(other)
    assert_same(other, model)


def assert_same(found: Model, wanted: Model) -> None:
    report = compare_structure(found, wanted)
    assert report, str(report)


def names(model: Model) -> list[str]:
    """Tensor names of inputs and outputs, in order."""
    return [name for port in [*model.inputs, *model.outputs] for name in sorted(port.get_names())]


def node(model: Model, name: str) -> Any:
    """The op of a friendly name."""
    return next(op for op in model.get_ops() if op.get_friendly_name() == name)


def nodes(model: Model, kind: str) -> list[Any]:
    return [op for op in model.get_ordered_ops() if op.get_type_name() == kind]


def only_skip(report: PassReport) -> tuple[str, str]:
    """Step and reason of a report's one skip."""
    (skip,) = report.skipped
    return skip.step, skip.reason
