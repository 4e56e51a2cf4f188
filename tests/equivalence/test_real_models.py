"""Right rewrites of recorded models pass with the tolerance that follows from their types, in every form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ovpasses as ovp
from ovpasses.equivalence import EquivalenceReport, compare_numbers, structure_digest
from tests.equivalence.model_forms import (
    MODELS,
    RECORDED,
    WINDOWED,
    Models,
    batched,
    dump,
    gguf,
    rewritten,
    static_dump,
    static_pair,
)

ERAS = ("before", "after")
FAMILIES = sorted(path.stem for path in (RECORDED / "families").glob("*.gguf"))

# What right rewrites are measured to be off at most: NMSE of outputs and of states, where all states are f32 and where
# some are f16. The derived tolerances are above these, and far below what a mutant does (2e-3 in its first output).
MEASURED = {"f32": (2e-12, 1e-12), "f16": (3e-6, 1e-7)}


def passes(a: Models, b: Models, kind: str, steps: tuple[int, ...] = WINDOWED) -> EquivalenceReport:
    report = compare_numbers(a, b, steps=steps)
    assert report.equivalent, report
    assert {c.kind for c in report.comparisons} == {"output", "state"}
    assert {c.step for c in report.comparisons} == set(range(1, len(steps) + 1))
    for what, bound in zip(("output", "state"), MEASURED[kind], strict=True):
        assert max(c.distance.nmse for c in report.comparisons if c.kind == what) < bound
    return report


def of_forms(*forms: str, quick: str) -> list[object]:
    """Every recorded model of these forms; all but the newest of those named quick are a sweep of their own."""
    found = []
    for era in ERAS:
        for name in MODELS:
            for form in forms:
                if (RECORDED / era / name / form).is_dir():
                    marks = [] if (era, form) == ("after", forms[0]) and name in quick else [pytest.mark.slow]
                    marks += [pytest.mark.needs_2026_4] if name != "llama-gqa" else []
                    found.append(pytest.param(era, name, form, marks=marks, id=f"{era}-{name}-{form}"))
    return found


def few(*quick: str) -> list[object]:
    """Every model; all but these are a sweep of their own."""
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.slow]) for name in MODELS]


@pytest.mark.parametrize(
    ("era", "name", "form"), of_forms("stateful-prerelayout", "stateful", quick="llama-gqa gemma4-mixed")
)
def test_a_stateful_dump_against_its_rewrite(era: str, name: str, form: str) -> None:
    original = dump(name, form, era)
    passes(original, rewritten(original), "f32")


@pytest.mark.parametrize(("era", "name", "form"), of_forms("stateful-prerelayout", quick="llama-gqa"))
def test_a_stateful_dump_before_and_after_kv_state_seq_axis(era: str, name: str, form: str) -> None:
    passes(dump(name, form, era), rewritten(dump(name, form, era), ovp.KVStateSeqAxis()), "f32")


@pytest.mark.parametrize(("era", "name", "form"), of_forms("stateless", quick="llama-gqa qwen35"))
def test_a_stateless_dump_against_its_stateful_rewrite(era: str, name: str, form: str) -> None:
    original = dump(name, form, era)
    digest = structure_digest(original.model)
    passes(original, rewritten(original), "f16")
    assert structure_digest(original.model) == digest


@pytest.mark.needs_2026_4
@pytest.mark.parametrize(("era", "name", "form"), of_forms("stateless", quick="qwen35"))
def test_a_stateless_dump_against_the_pair_made_of_it(era: str, name: str, form: str) -> None:
    passes(dump(name, form, era), static_pair(dump(name, form, era)), "f16", (7, 1, 1))


@pytest.mark.needs_2026_4
@pytest.mark.parametrize(("era", "name", "form"), of_forms("static", quick="gemma4-mixed"))
def test_a_static_dump_against_the_stateless_one(era: str, name: str, form: str) -> None:
    pair = static_dump(name, era)
    if (era, name) == ("before", "qwen35"):  # does not run as it is
        pair = tuple(
            rewritten(one, preset=preset) for one, preset in zip(pair, ("static-prefill", "static-decode"), strict=True)
        )
    passes(dump(name, "stateless", era), pair, "f16", (18, 1, 1))


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("name", few("llama-gqa"))
def test_an_import_against_a_dump_of_the_same_model(name: str) -> None:
    imported = ovp.read_model(gguf(name))
    with pytest.raises(ovp.StateError, match="--stateful"):
        compare_numbers(imported, dump(name, "stateless"))
    digest = structure_digest(imported.model)
    report = compare_numbers(imported, dump(name, "stateless"), stateful=True)
    assert report.equivalent, report
    assert "after the preset stateful" in report.a
    assert structure_digest(imported.model) == digest


@pytest.mark.needs_2026_4
def test_a_difference_between_two_importers_is_found() -> None:
    """llama.cpp's backend computes gemma's Gelu by erf, OpenVINO's frontend by tanh as ggml does."""
    report = compare_numbers(dump("gemma4-mixed", "stateful"), rewritten(ovp.read_model(gguf("gemma4-mixed"))))
    assert not report.equivalent
    assert {c.name for c in report.comparisons if not c.same} >= {"logits", "key of layer 1"}
    assert {c.name for c in report.comparisons if c.same} >= {"key of layer 0", "value of layer 0"}
    assert max(c.distance.nmse for c in report.comparisons) < 1e-6


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("name", few("llama-gqa"))
def test_a_dynamic_model_against_its_static_pair(name: str) -> None:
    imported = ovp.read_model(gguf(name))
    passes(rewritten(imported), static_pair(imported), "f16", (7, 1, 1))


SEQUENCES: dict[str, Callable[[ovp.ImportedModel], Models]] = {
    "batched": batched,
    "static pair": lambda imported: static_pair(imported, 4, context=64, sequences=2),
}


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("form", ["batched", pytest.param("static pair", marks=pytest.mark.slow)])
def test_several_sequences(form: str) -> None:
    original = dump("qwen35", "stateless-slots-2-of-4")
    report = passes(original, SEQUENCES[form](original), "f16", (7, 1, 1))
    assert {c.name for c in report.comparisons if c.kind == "output"} == {f"logits of sequence {n}" for n in range(4)}
    resting = [c.name for c in report.comparisons if c.kind == "output" and c.step == 1]
    assert "logits of sequence 1" not in resting
    assert "key of layer 3, sequence 0" in {c.name for c in report.comparisons}


@pytest.mark.slow
@pytest.mark.needs_2026_4
@pytest.mark.parametrize("name", FAMILIES)
def test_other_architectures(name: str) -> None:
    imported = ovp.read_model(RECORDED / f"families/{name}.gguf")
    passes(rewritten(imported), rewritten(imported, ovp.MakeKVStateful()), "f32", (40, 1, 1))
    if not name.endswith("-moe"):  # StaticTokens refuses its experts
        passes(rewritten(imported), static_pair(imported, context=64), "f16", (40, 1, 1))


@pytest.mark.slow
def test_a_real_model(smollm2: Path) -> None:
    imported = ovp.read_model(smollm2)
    report = compare_numbers(rewritten(imported), rewritten(imported, ovp.MakeKVStateful()))
    assert report.equivalent, report
    assert compare_numbers(rewritten(imported), static_pair(imported, 8, context=64)).equivalent
