"""assert_equivalent: two models give the same numbers on the same inputs, step by step, states included."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.table import Table

from ovpasses.equivalence._metrics import Distance, distance
from ovpasses.equivalence._runs import GraphRun, Outcome, Run, SessionRun, is_language_model
from ovpasses.errors import OvpassesError
from ovpasses.importers import ImportedModel, read_model

# Relative errors that right rewrites may show, squared to an NMSE. f32 rounds by 2^-24 in every op, which grows through
# layers and long sums; f16 and bf16 states and caches round once per token. Measured on the recorded models: up to
# 2.3e-12 where all is f32 and 8e-7 with f16 caches (tests/equivalence/test_numbers.py).
ROUNDING = {"f32": 64 * 2.0**-24, "f16": 4 * 2.0**-11, "bf16": 4 * 2.0**-8}


class CheckError(OvpassesError):
    """A comparison that would mean nothing: it cannot fail, or cannot be made."""


class NotEquivalentError(OvpassesError, AssertionError):
    """Two models do not give the same; ``report`` holds where."""

    def __init__(self, report: EquivalenceReport) -> None:
        super().__init__(str(report.worst_line()))
        self.report = report


@dataclass(frozen=True)
class Comparison:
    """One output or state after one step."""

    step: int
    name: str
    kind: str
    distance: Distance
    same: bool

    def __str__(self) -> str:
        d = self.distance
        return (
            f"{self.kind} {self.name} after step {self.step}: NMSE {d.nmse:.1e}, largest difference {d.max_abs:.3g} "
            f"at {list(d.at)} ({d.values[0]:.6g} against {d.values[1]:.6g})"
        )


@dataclass
class EquivalenceReport:
    """The outcome of a numeric comparison; true when every output and state agrees at every step.

    Attributes:
        a, b: what was compared.
        nmse: the tolerance, a normalised mean squared error.
        comparisons: every output and state after every step.
        differences: what could not be compared, such as a state that only one has.
    """

    a: str
    b: str
    nmse: float
    comparisons: list[Comparison] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def equivalent(self) -> bool:
        return not self.differences and all(c.same for c in self.comparisons)

    def __bool__(self) -> bool:
        return self.equivalent

    def worst_line(self) -> str:
        """The first that differs, in the order of steps, else the one with the largest error."""
        if self.differences:
            return f"{self.a} and {self.b} differ: {self.differences[0]}"
        wrong = [c for c in self.comparisons if not c.same]
        if wrong:
            return f"{self.a} and {self.b} differ in {wrong[0]}; the tolerance is {self.nmse:.1e}"
        worst = max(self.comparisons, key=lambda c: c.distance.nmse)
        return f"{self.a} and {self.b} are equivalent (tolerance {self.nmse:.1e}); worst is {worst}"

    def table(self) -> Table:
        """Per step its outputs, and of the states the worst."""
        table = Table("step", "what", "NMSE", "max abs", "max rel", "cosine", "top-1", "KL", "same")
        for step in sorted({c.step for c in self.comparisons}):
            mine = [c for c in self.comparisons if c.step == step]
            states = [c for c in mine if c.kind == "state"]
            shown = [c for c in mine if c.kind == "output"]
            shown += sorted(states, key=lambda c: (c.same, -c.distance.nmse))[:3]
            for c in shown:
                d = c.distance
                top, kl = ("-" if v is None else f"{v:.3g}" for v in (d.top1, d.kl))
                figures = (f"{d.nmse:.1e}", f"{d.max_abs:.2e}", f"{d.max_rel:.1e}", f"{d.cosine:.6f}", top, kl)
                table.add_row(str(step), f"{c.kind} {c.name}", *figures, "yes" if c.same else "NO")
        return table

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "equivalent": self.equivalent,
            "a": self.a,
            "b": self.b,
            "nmse": self.nmse,
            "summary": self.worst_line(),
            "differences": list(self.differences),
            "comparisons": [
                {"step": c.step, "kind": c.kind, "name": c.name, "same": c.same, **c.distance.to_dict()}
                for c in self.comparisons
            ],
        }

    def __str__(self) -> str:
        return self.worst_line()


def assert_equivalent(
    a: Any, b: Any, *, steps: tuple[int, ...] = (7, 1, 1), seed: int = 0, nmse: float | None = None
) -> EquivalenceReport:
    """Run two models on the same inputs and make sure that outputs and states agree.

    Raises:
        NotEquivalentError: they do not (an AssertionError too).
        CheckError: as :func:`compare_numbers`.
    """
    report = compare_numbers(a, b, steps=steps, seed=seed, nmse=nmse)
    if not report.equivalent:
        raise NotEquivalentError(report)
    return report


def compare_numbers(
    a: Any, b: Any, *, steps: tuple[int, ...] = (7, 1, 1), seed: int = 0, nmse: float | None = None
) -> EquivalenceReport:
    """Run two models on the same inputs over several steps, on the CPU in f32.

    Args:
        a, b: models, paths of models, or static pairs ``(prefill, decode)``. Language models may be in different
            forms (stateless dump, stateful, static pair): each runs through a session, and states are compared by
            kind and layer. Other graphs get random inputs of their shapes, and are compared by names. Neither is
            changed.
        steps: tokens of each step.
        seed: of the inputs.
        nmse: normalised mean squared error from which on two arrays differ. By default it follows from the coarsest
            type that states and caches have: ``(64 * 2^-24)^2`` for f32, ``(4 * 2^-11)^2`` for f16.

    Raises:
        CheckError: no steps, nothing to compare, an output that is the same whatever the inputs are, or a value that
            is not finite.
        OvpassesError: a model cannot be read or run.
    """
    if not steps or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in steps):
        raise CheckError(f"steps are {list(steps)}, wanted at least one step of at least 1 token")
    runs = _open(a, "a"), _open(b, "b")
    if runs[0].logits != runs[1].logits:
        raise CheckError(f"{runs[0].name} and {runs[1].name}: one takes tokens and one does not")
    types = runs[0].types | runs[1].types
    limit = max(ROUNDING.get(kind, ROUNDING["f32"]) for kind in {*types, "f32"}) ** 2
    report = EquivalenceReport(runs[0].name, runs[1].name, limit if nmse is None else nmse)
    randoms = [np.random.default_rng(seed) for _ in runs]
    seen: list[Outcome] = []
    for number, count in enumerate(steps, 1):
        one, two = (run.step(count, random) for run, random in zip(runs, randoms, strict=True))
        _compare(report, number, "output", one.outputs, two.outputs, runs[0].logits)
        _compare(report, number, "state", one.states, two.states, False)
        seen.append(one)
    _check_meaningful(report, seen)
    return report


def _open(subject: Any, label: str) -> Run:
    if isinstance(subject, tuple | list):
        pair = [_imported(one) for one in subject]
        if len(pair) != 2:
            raise CheckError(f"{label} is {len(pair)} models, wanted one, or prefill and decode of a static pair")
        return SessionRun(f"{label} ({_name(pair[0])})", *pair)
    imported = _imported(subject)
    name = f"{label} ({_name(imported)})"
    return SessionRun(name, imported) if is_language_model(imported) else GraphRun(name, imported.model)


def _imported(subject: Any) -> ImportedModel:
    return subject if isinstance(subject, ImportedModel) else read_model(subject)


def _name(imported: ImportedModel) -> str:
    source = imported.source
    return "/".join(source.parts[-2:]) if source else imported.model.get_friendly_name()


def _compare(
    report: EquivalenceReport, step: int, kind: str, a: dict[str, np.ndarray], b: dict[str, np.ndarray], logits: bool
) -> None:
    for name in sorted(a.keys() ^ b.keys()):
        line = f"{kind} {name} is only in {report.a if name in a else report.b}"
        if line not in report.differences:
            report.differences.append(line)
    for name in sorted(a.keys() & b.keys()):
        x, y = a[name], b[name]
        if x.shape != y.shape:
            report.differences.append(f"{kind} {name} after step {step} is {list(x.shape)} and {list(y.shape)}")
            continue
        if not x.size:
            continue
        finite = [bool(np.isfinite(v).all()) for v in (x, y)]
        if not any(finite):
            raise CheckError(f"{kind} {name} after step {step} is not finite in either model: that compares nothing")
        if not all(finite):
            report.differences.append(
                f"{kind} {name} after step {step} is not finite in {report.b if finite[0] else report.a} only"
            )
            continue
        found = distance(x, y, logits)
        report.comparisons.append(Comparison(step, name, kind, found, found.nmse <= report.nmse))


def _check_meaningful(report: EquivalenceReport, seen: list[Outcome]) -> None:
    """A comparison of nothing, or of what no input changes, cannot fail."""
    if not report.comparisons and not report.differences:
        raise CheckError(f"{report.a} and {report.b} have no output or state to compare")
    for name, first in seen[0].outputs.items():
        rows = np.concatenate([o.outputs[name].reshape(-1, first.shape[-1] if first.ndim else 1) for o in seen])
        if len(rows) > 1 and bool((rows == rows[0]).all()):
            raise CheckError(f"output {name} of {report.a} is the same at every step and row: that compares nothing")
