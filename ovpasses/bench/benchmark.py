"""A bench from the arms to the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from openvino import Core

from ovpasses.bench.arms import Arm
from ovpasses.bench.check import check_numbers
from ovpasses.bench.genai import GenAIRunner
from ovpasses.bench.llama_bench import NAME as LLAMA_CPP
from ovpasses.bench.llama_bench import run_llama_bench
from ovpasses.bench.machine import machine_of
from ovpasses.bench.measure import Progress, Tokens, measure
from ovpasses.bench.report import ArmFacts, BenchReport
from ovpasses.bench.samples import Series
from ovpasses.bench.session_runner import SessionRunner, open_session
from ovpasses.bench.settings import BenchError, Settings
from ovpasses.bench.stopwatch import Stopwatch
from ovpasses.importers import ImportedModel
from ovpasses.runtime.device_names import is_npu
from ovpasses.runtime.devices import refuse_absent

STUCK = "past depth 0 a prefill is timed once, after decoding, since its states cannot be cut back"


def benchmark(
    imported: ImportedModel,
    arms: Sequence[Arm],
    settings: Settings,
    *,
    llama_bench: Path | None = None,
    progress: Progress = lambda text: None,
) -> BenchReport:
    """Time arms against each other.

    Args:
        imported: the model; every arm rewrites a copy of it.
        arms: the one that the others are compared with first.
        settings: what is measured.
        llama_bench: the program, to compare with llama.cpp; the model must be a GGUF.
        progress: told what is being done, one line each time.

    Raises:
        BenchError: an arm cannot be run or computes something else, or llama-bench fails.
        DeviceError: the device is not there.
    """
    core, vocabulary = Core(), imported.info.n_vocab
    if vocabulary is None:
        raise BenchError("the model's vocabulary is not known, so no tokens can be made; give --info")
    if is_npu(settings.device):
        raise BenchError(
            f"device {settings.device} takes static shapes only, which no arm is compiled for yet; wanted CPU"
        )
    refuse_absent(settings.device, core)
    gguf = imported.source if imported.source and imported.source.suffix.lower() == ".gguf" else None
    if llama_bench is not None and gguf is None:
        raise BenchError(f"{imported.source or 'the model'}: llama-bench takes a GGUF only")
    fitted, notes = settings.fitted(imported.info.context_length)
    tokens, spent = Tokens(fitted, vocabulary), Stopwatch()
    runners: list[SessionRunner | GenAIRunner] = []
    facts = []
    for arm in arms:
        progress(f"{arm.name}: rewriting and compiling")
        try:
            with spent.on("load") as took:
                runner = _open(arm, imported, gguf, fitted, core, _threads(fitted, runners))
        except BenchError as error:
            if not arm.optional:
                raise
            notes.append(f"left out: {error}")
        else:
            runners.append(runner)
            facts.append(_facts(runner, took()))
    if not runners:
        raise BenchError(f"no arm can be run: {'; '.join(notes)}")
    progress("comparing the numbers of all arms")
    with spent.on("check"):
        agreement = check_numbers(runners, tokens.warm_up, tokens.steps(0)[1:])
    notes += [f"{runner.name}: {STUCK} ({runner.stuck})" for runner in runners if runner.stuck]
    others: list[Series] = []
    if llama_bench is not None and gguf is not None:  # before minutes go into what its failure would lose
        progress("llama-bench")
        with spent.on("llama-bench"):
            other = run_llama_bench(llama_bench, gguf, fitted, _threads(fitted, runners))
        others = other.series
        facts.append(ArmFacts(LLAMA_CPP, "llama-bench", other.about, held=other.held, threads=other.threads))
    series = measure(runners, fitted, tokens, spent, progress)
    return BenchReport(
        model=str(imported.source or imported.model.get_friendly_name()),
        architecture=imported.info.architecture,
        machine=machine_of(settings.device, core),
        settings=fitted,
        arms=facts,
        agreement=agreement,
        series=[*series, *others],
        notes=notes,
        seconds=dict(spent),
    )


def _threads(settings: Settings, runners: Sequence[SessionRunner | GenAIRunner]) -> int | None:
    """For other programs: as many as were asked for, else as OpenVINO chose for the first arm."""
    chosen = (runner.threads for runner in runners if runner.threads is not None)
    return settings.threads or next(chosen, None)


def _open(
    arm: Arm, imported: ImportedModel, gguf: Path | None, settings: Settings, core: Core, threads: int | None
) -> SessionRunner | GenAIRunner:
    if not arm.is_genai:
        return open_session(arm, imported, settings, core)
    if gguf is None:
        raise BenchError(f"arm {arm.name}: GenAI is given GGUF files only, this is {imported.source or 'in memory'}")
    return GenAIRunner(arm, gguf, settings, threads)


def _facts(runner: SessionRunner | GenAIRunner, seconds: float) -> ArmFacts:
    passes: Counter[str] = Counter()
    if isinstance(runner, SessionRunner):
        for report in (report for pipeline in runner.reports for report in pipeline.passes):
            passes[report.name] += report.rewritten
    return ArmFacts(runner.name, runner.program, str(runner.arm), dict(passes), runner.held, runner.threads, seconds)
