"""assert_equivalent: two models give the same numbers on the same inputs, step by step, states included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from ovpasses.equivalence._inputs import BATCH, BATCH_WITH_STATES, Inputs, common_shapes
from ovpasses.equivalence._metrics import distance
from ovpasses.equivalence._opening import opened
from ovpasses.equivalence._runs import GraphRun, Outcome, Run
from ovpasses.equivalence._session_runs import SessionRun
from ovpasses.equivalence._states import paired_by_content
from ovpasses.equivalence.equivalence_report import Comparison, EquivalenceReport, Tolerance
from ovpasses.equivalence.errors import CheckError, NotEquivalentError
from ovpasses.runtime.states import Values

# Relative errors that right rewrites may show, of outputs and of states; their squares are the tolerances. An operation
# in f32 rounds by 2^-24, which grows through long sums and layers: 128 times that. A state or cache in f16 or bf16
# rounds a row once, and the rows of later layers follow from it: 4 times 2^-11 (2^-8). Logits have been through every
# layer's Softmax, which multiplies the error of a score by the score: twice as much again. Measured on recorded models
# (tests/equivalence/test_real_models.py), NMSE of outputs and of states: 1.6e-12 and 3.6e-12 where all is f32, 2.4e-6
# and 1e-7 with f16 caches.
ROUNDING = {
    "f32": (128 * 2.0**-24, 128 * 2.0**-24),
    "f16": (8 * 2.0**-11, 4 * 2.0**-11),
    "bf16": (8 * 2.0**-8, 4 * 2.0**-8),
}


# A prompt, a token, several tokens on a past (another turn), a token: each way to go on from a state.
STEPS = (7, 1, 3, 1)


def assert_equivalent(
    a: Any,
    b: Any,
    *,
    steps: Sequence[int] = STEPS,
    seed: int = 0,
    nmse: float | None = None,
    stateful: bool = False,
) -> EquivalenceReport:
    """Run two models on the same inputs and make sure that outputs and states agree.

    Args:
        a, b, steps, seed, nmse, stateful: as :func:`compare_numbers` takes them.

    Returns:
        The report, which is true.

    Raises:
        NotEquivalentError: they do not (an AssertionError too); ``.report`` holds where.
        CheckError: as :func:`compare_numbers`.
    """
    report = compare_numbers(a, b, steps=steps, seed=seed, nmse=nmse, stateful=stateful)
    if not report.equivalent:
        raise NotEquivalentError(report)
    return report


def compare_numbers(
    a: Any,
    b: Any,
    *,
    steps: Sequence[int] = STEPS,
    seed: int = 0,
    nmse: float | None = None,
    stateful: bool = False,
) -> EquivalenceReport:
    """Run two models on the same inputs over several steps, on the CPU in f32; states and caches are compared too.

    Args:
        a, b: models, paths of models, or static pairs ``(prefill, decode)``. Language models may be in different
            forms (dump with its caches outside, of one sequence or several, stateful, static pair): each runs through a
            session, and states are compared by kind and layer. Other graphs get random inputs of their shapes, and
            are compared by names. Neither is changed.
        steps: tokens of each step; of other graphs the size of dynamic dims. What they do not reach, such as a sliding
            window that they do not pass, is in the report's notes.
        seed: of the inputs, 0 or more.
        nmse: normalised mean squared error up to which two arrays are the same; no single element may be further off
            than 8 times its root, relative to the largest. By default it follows from the coarsest type that states
            and caches have: ``(128 * 2^-24)^2`` for f32; for f16 ``(8 * 2^-11)^2`` of outputs and ``(4 * 2^-11)^2``
            of states. Integers are compared exactly.
        stateful: run a model that cannot run as it is, such as a GGUF, through the preset ``stateful`` first, on a
            copy. Else it is refused.

    Returns:
        A report that is true when all agree.

    Raises:
        CheckError: no steps, no common output, an output that is the same whatever the inputs are, values that
            are finite in neither model, or models that do not run on the same inputs.
        StateError: no session runs a model as it is, or not so many tokens.
        OvpassesError: a model cannot be read or compiled.
    """
    _check_options(steps, seed, nmse)
    one, two = (opened(m, label, sum(steps), stateful) for m, label in ((a, "a"), (b, "b")))
    inputs = _inputs(one, two, seed, sum(steps))
    report = EquivalenceReport(one.name, two.name, _tolerance(one.types | two.types, nmse))
    _compare_forms(report, one, two, steps)
    keys: dict[str, str] | None = None
    seen: list[Outcome] = []
    for number, count in enumerate(steps, 1):
        found, other = one.step(inputs, number, count), two.step(inputs, number, count)
        _check_common(one, two, found, other)
        keys = _paired_states(report, found.states, other.states) if keys is None else keys
        other.states = {keys.get(key, key): value for key, value in other.states.items()}
        faulty = bool(found.fault or other.fault)
        _compare(report, number, "output", found.outputs, other.outputs, faulty, one.logits)
        _compare(report, number, "state", found.states, other.states, faulty, False)
        if faulty:
            name, fault = (one.name, found.fault) if found.fault else (two.name, other.fault)
            report.differences.append(f"after step {number} {name}, and it alone: {fault}")
            break
        seen.append(found)
    if report.equivalent:
        _check_can_fail(one, inputs, steps, seen)
    return report


def _check_options(steps: Sequence[int], seed: int, nmse: float | None) -> None:
    if not steps or any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1 for n in steps):
        raise CheckError(f"steps are {list(steps)}, wanted at least one step of at least 1 token")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise CheckError(f"seed is {seed!r}, wanted an integer of 0 or more")
    if nmse is not None and not (isfinite(nmse) and nmse >= 0):
        raise CheckError(f"nmse is {nmse}, wanted a number of 0 or more, or None for one that follows from the types")


def _inputs(a: Run, b: Run, seed: int, tokens: int) -> Inputs:
    if isinstance(a, GraphRun) and isinstance(b, GraphRun):
        b.call_as(a)
        batch = BATCH_WITH_STATES if a.has_states or b.has_states else BATCH
        return Inputs(seed, shapes=common_shapes(a.ports, b.ports), batch=batch)
    if not (isinstance(a, SessionRun) and isinstance(b, SessionRun)):
        raise CheckError(f"{a.name} and {b.name}: only one takes tokens, wanted two forms of one model")
    for run in (a, b):
        if run.capacity is not None and tokens > run.capacity:
            raise CheckError(f"the steps are {tokens} tokens, {run.name} holds {run.capacity}; give shorter ones")
    known = [run.n_vocab for run in (a, b) if run.n_vocab is not None]
    return Inputs(seed, min(known), min(a.sequences, b.sequences))


def _tolerance(types: set[str], nmse: float | None) -> Tolerance:
    if nmse is not None:
        return Tolerance(nmse, nmse, "as given")
    kind = max({*types & ROUNDING.keys(), "f32"}, key=lambda kind: ROUNDING[kind])
    output, state = (error**2 for error in ROUNDING[kind])
    return Tolerance(output, state, f"{'computed in' if kind == 'f32' else 'states in'} {kind}")


def _paired_states(report: EquivalenceReport, a: Values, b: Values) -> dict[str, str]:
    """Keys in b to keys in a, of states that are not called as they are in the other model."""
    apart = []
    for key in a.keys() & b.keys():
        x, y = a[key], b[key]
        comparable = x.shape == y.shape and x.size and np.isfinite(x).all() and np.isfinite(y).all()
        if comparable and not report.tolerance.allows("state", distance(x, y)):
            apart.append(key)
    return paired_by_content(a, b, apart)


def _compare_forms(report: EquivalenceReport, a: Run, b: Run, steps: Sequence[int]) -> None:
    """What two models are, beside what they give; and what these steps cannot show."""
    if not (isinstance(a, SessionRun) and isinstance(b, SessionRun)):
        assert isinstance(a, GraphRun)
        assert isinstance(b, GraphRun)
        for name in sorted(a.ports.keys() ^ b.ports.keys()):
            report.notes.append(f"input {name} is only in {a.name if name in a.ports else b.name}")
        for name in sorted(a.ports.keys() - {"beam_idx"}):
            if np.issubdtype(a.ports[name].get_element_type().to_dtype(), np.integer):
                report.notes.append(f"input {name} takes integers, of which 0 and 1 were given")
        return
    for layer in sorted(a.windows.keys() & b.windows.keys()):
        if a.windows[layer] != b.windows[layer]:
            found = f"{a.windows[layer]} tokens in {a.name} and {b.windows[layer]} in {b.name}"
            report.differences.append(f"layer {layer} slides over {found}")
    if a.reordered is not None and b.reordered is not None:
        for name in sorted(a.reordered ^ b.reordered):
            only = a.name if name in a.reordered else b.name
            report.differences.append(f"state {name} is gathered by beam_idx in {only} only")
    passed = sum(steps)
    window = max([*a.windows.values(), *b.windows.values()], default=0)
    if passed <= window:
        report.notes.append(f"the sliding window of {window} tokens is not passed by {passed}; give longer steps")
    if all(count == 1 for count in steps[1:]):
        report.notes.append("no step runs several tokens on a past; give steps such as 7,1,3,1")
    for name in sorted(a.left_out | b.left_out):
        report.notes.append(f"output {name} is not compared: a static pair and sequences in a batch give logits only")


def _check_common(a: Run, b: Run, one: Outcome, other: Outcome) -> None:
    if one.fault and other.fault:
        raise CheckError(f"neither {a.name} nor {b.name} can be compared: {one.fault}")
    if not (one.fault or other.fault) and not one.outputs.keys() & other.outputs.keys():
        names = [", ".join(sorted(found.outputs)) or "none" for found in (one, other)]
        raise CheckError(f"{a.name} and {b.name} have no output in common, found {names[0]} and {names[1]}")


def _compare(
    report: EquivalenceReport,
    step: int,
    kind: str,
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    faulty: bool,
    logits: bool,
) -> None:
    """Put into the report what one step gives; of a step that failed in one model, what both have."""
    for name in sorted(a.keys() ^ b.keys()) if not faulty else ():
        line = f"{kind} {name} is only in {report.a if name in a else report.b}"
        if line not in report.differences:
            report.differences.append(line)
    for name in sorted(a.keys() & b.keys()):
        x, y = a[name], b[name]
        if x.shape != y.shape:
            report.differences.append(f"{kind} {name} after step {step} is {list(x.shape)} and {list(y.shape)}")
        elif not (np.isfinite(x).all() and np.isfinite(y).all()):
            _not_finite(report, f"{kind} {name} after step {step}", x, y)
        elif x.size:
            found = distance(x, y, logits)
            exact = not np.issubdtype(x.dtype, np.inexact) and not np.issubdtype(y.dtype, np.inexact)
            same = bool((x == y).all()) if exact else report.tolerance.allows(kind, found)
            report.comparisons.append(Comparison(step, name, kind, found, same))


def _not_finite(report: EquivalenceReport, what: str, x: np.ndarray, y: np.ndarray) -> None:
    finite = bool(np.isfinite(x).all()), bool(np.isfinite(y).all())
    if not any(finite):
        raise CheckError(f"{what} is not finite in either model: that compares nothing")
    report.differences.append(f"{what} is not finite in {report.b if finite[0] else report.a} only")


def _check_can_fail(run: Run, inputs: Inputs, steps: Sequence[int], seen: list[Outcome]) -> None:
    """Other inputs must give other outputs, or these compare nothing."""
    run.reset()
    others = Inputs(inputs.seed + 1, inputs.n_vocab, inputs.sequences, inputs.shapes, inputs.batch)
    probe = run.step(others, 1, steps[0])
    for name, first in seen[0].outputs.items():
        if name not in probe.outputs or not np.array_equal(first, probe.outputs[name]):
            continue
        rows = [o.outputs[name] for o in seen if name in o.outputs]
        flat = np.concatenate([row.reshape(-1, row.shape[-1] if row.ndim else 1) for row in rows])
        if all(np.array_equal(row, first) for row in rows) or bool((flat == flat[0]).all()):
            raise CheckError(f"output {name} of {run.name} is the same whatever the inputs are: that compares nothing")
