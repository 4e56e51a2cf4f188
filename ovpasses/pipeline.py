"""Pipelines: passes in order, verified after each, with one report."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openvino import Model
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ovpasses import passes
from ovpasses._tables import html_table
from ovpasses.errors import OvpassesError, RewriteError, one_line
from ovpasses.importers import ImportedModel
from ovpasses.passes import (
    BatchSequences,
    BeamReorder,
    ChunkValidLen,
    KVHeadSplit,
    KVStateSeqAxis,
    LowerGatedDeltaNet,
    MakeKVStateful,
    OneSequence,
    StaticSlotCopy,
    StaticTokens,
)
from ovpasses.passes.base import ReportedPass
from ovpasses.passes.report import PassReport

Hook = Callable[[ReportedPass, Model], None]


@dataclass
class PipelineReport:
    """What every pass of a pipeline did.

    Attributes:
        name: the pipeline's name.
        passes: one :class:`PassReport` per pass, in order.

    ``start`` is the graph before the run (it shares the weights) and ``steps`` are the passes, for pictures of what
    each did; ``start`` is None when the run kept none. They are no part of the report's data.
    """

    name: str
    passes: list[PassReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start: Model | None = None
        self.steps: tuple[ReportedPass, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "passes": self.passes, "start": None, "steps": ()}

    @property
    def rewritten(self) -> int:
        """Rewrites of all passes."""
        return sum(report.rewritten for report in self.passes)

    def __getitem__(self, name: str) -> PassReport:
        for report in self.passes:
            if report.name == name:
                return report
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"name": self.name, "passes": [report.to_dict() for report in self.passes]}

    def table(self) -> Table:
        """The report as a ``rich`` table."""
        table = Table(title=f"pipeline {self.name}", title_justify="left")
        for column in ("pass", "result", "ops", "ms"):
            table.add_column(column, justify="right" if column in ("ops", "ms") else "left", overflow="fold")
        for report in self.passes:
            details = [report.summary(), *report.notes, *report.skip_lines()]
            ops = f"{report.ops_before} -> {report.ops_after}"
            table.add_row(report.name, Text("\n".join(details)), ops, f"{1000 * report.seconds:.1f}")
        return table

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=110, color_system=None).print(self.table())
        return out.getvalue().rstrip()

    def _repr_html_(self) -> str:
        rows = []
        for report in self.passes:
            details = "\n".join([report.summary(), *report.notes, *report.skip_lines()])
            rows.append(
                [report.name, details, f"{report.ops_before} → {report.ops_after}", f"{1000 * report.seconds:.1f}"]
            )
        return html_table(f"pipeline {self.name}", ("pass", "result", "ops", "ms"), rows)


class Pipeline:
    """Passes in order, each verified before the next.

    Args:
        passes: the passes; a new report starts at every run.
        name: for the report.
        hook: called with each pass and the model after it, for dumps, timing or pictures.
    """

    def __init__(self, passes: Sequence[ReportedPass], name: str = "custom", *, hook: Hook | None = None) -> None:
        self.passes = list(passes)
        self.name = name
        self.hook = hook

    @classmethod
    def preset(cls, name: str, *, strict: bool = False, portable: bool = False, **options: Any) -> Pipeline:
        """A pipeline by name.

        Args:
            name: "stateful": caches and recurrent states inside the model, laid out for attention, with the
                ``beam_idx`` Gather that the CPU plugin fuses from. ``pairs`` names further caches, input to output.
                "static-prefill": every shape fixed for ``chunk`` tokens (256) and caches of ``context`` cells (see
                :class:`~ovpasses.StaticTokens`), which stay inputs and outputs; padding leaves recurrent states
                alone. ``rows`` tokens (1) of a chunk get logits. llama.cpp's dumps are taken too; a static one keeps
                its own sizes, and one of several sequences needs ``sequences``, how many of them run at a time:
                ``chunk``, ``context`` and ``rows`` are then those of each.
                "static-decode": the same for one token; options ``context`` and ``sequences``.
            strict: raise when a candidate must be skipped.
            portable: lower OpenVINO's internal ops too that this process could run as they are, so that the
                model can be saved and opened elsewhere. The stand-ins of an IR that was read are lowered in any case.
                The static presets lower all unless ``internal_ops=True``.
            options: those of the preset.

        Raises:
            RewriteError: no preset of that name, an option that it does not have, or a size that cannot be.
        """
        try:
            make = PRESETS[name]
        except KeyError:
            raise RewriteError(f"preset {name!r} is not known, wanted one of {', '.join(PRESETS)}") from None
        known = [p.name for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY]
        unknown = [option for option in options if option not in known]
        if unknown:
            raise RewriteError(
                f"preset {name} has no option {unknown[0]!r}, known are {', '.join(['strict', 'portable', *known])}"
            )
        return cls(make(strict, portable, **options), name)

    def run(self, imported: ImportedModel | Model, *, keep_graph: bool = True) -> PipelineReport:
        """Rewrite a model in place.

        Args:
            imported: the model.
            keep_graph: keep the graph as it was in the report, for pictures. It takes 2.5 kB per op and holds on to
                the weights as long as the report is there.

        Returns:
            The report, one entry per pass.

        Raises:
            RewriteError: a pass refused the model, which it has not changed then, or left an invalid graph; names the
                pass, and those before it that have changed the model. ``.reports`` holds what has run.
        """
        model = imported.model if isinstance(imported, ImportedModel) else imported
        report = PipelineReport(self.name)
        report.start, report.steps = model.clone() if keep_graph else None, tuple(self.passes)
        for step in self.passes:
            try:
                step.run_on_model(model)
            except OvpassesError as error:
                raise RewriteError(_refusal(report, step, error), (*report.passes, step.report)) from error
            except Exception as error:
                before = ", ".join(r.name for r in report.passes) or "none"
                raise RewriteError(
                    f"{type(step).__name__} (after {before}): left an invalid graph: {one_line(error)}",
                    (*report.passes, step.report),
                ) from error
            report.passes.append(step.report)
            if self.hook is not None:
                self.hook(step, model)
        return report

    def __repr__(self) -> str:
        return f"Pipeline([{', '.join(map(repr, self.passes))}], name={self.name!r})"


def _refusal(report: PipelineReport, step: ReportedPass, error: OvpassesError) -> str:
    """What a pass says, with its name, and with those that have changed the model before it."""
    text, name = str(error), type(step).__name__
    text = text if name in text else f"{name}: {text}"
    changed = [done.name for done in report.passes if done.rewritten]
    if not changed:
        return text
    text = text.removesuffix("; nothing was changed")
    return f"{text}; {', '.join(changed)} ran before it and changed the model, read that again"


def pass_by_name(name: str) -> type[ReportedPass]:
    """A pass by class name or command-line name (``KVStateSeqAxis``, ``kv-state-seq-axis``).

    Raises:
        RewriteError: no pass of that name.
    """
    for known, kind in PASSES.items():
        if name in (known, kind.cli_name()):
            return kind
    raise RewriteError(f"pass {name!r} is not known, wanted one of {', '.join(PASSES)}")


def _stateful(strict: bool, portable: bool, *, pairs: Mapping[str, str] | None = None) -> list[ReportedPass]:
    return [
        KVHeadSplit(strict=strict),
        MakeKVStateful(pairs, strict=strict),
        KVStateSeqAxis(strict=strict),
        BeamReorder(strict=strict),
        LowerGatedDeltaNet(native=portable, strict=strict),
    ]


def _static_prefill(
    strict: bool,
    portable: bool,
    *,
    chunk: int = 256,
    context: int | None = None,
    rows: int = 1,
    sequences: int | None = None,
    internal_ops: bool = False,
) -> list[ReportedPass]:
    return [
        *_sequences(strict, sequences),
        StaticTokens(tokens=chunk, context=context, rows=rows, strict=strict),
        # A state that padding reaches makes every prompt wrong that is no multiple of the chunk.
        ChunkValidLen(strict=True),
        LowerGatedDeltaNet(native=portable or not internal_ops, strict=strict),
    ]


def _static_decode(
    strict: bool,
    portable: bool,
    *,
    context: int | None = None,
    sequences: int | None = None,
    internal_ops: bool = False,
) -> list[ReportedPass]:
    # With several sequences, one that has no token to run fills a place in the batch: padding for a single token too.
    padded = [] if sequences is None else [ChunkValidLen(strict=True)]
    return [
        *_sequences(strict, sequences),
        StaticTokens(context=context, strict=strict),
        *padded,
        LowerGatedDeltaNet(native=portable or not internal_ops, strict=strict),
    ]


def _sequences(strict: bool, sequences: int | None) -> list[ReportedPass]:
    """What makes the number of sequences, and of slots, a constant."""
    if sequences is not None:
        return [BatchSequences(sequences=sequences, strict=True)]
    return [OneSequence(strict=strict), StaticSlotCopy(drop_empty=True, strict=strict)]


def _all_passes() -> dict[str, type[ReportedPass]]:
    found = {name: getattr(passes, name) for name in passes.__all__}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, ReportedPass)}


PASSES: dict[str, type[ReportedPass]] = _all_passes()

# Keyword-only parameters are the options of the preset.
PRESETS: dict[str, Callable[..., list[ReportedPass]]] = {
    "stateful": _stateful,
    "static-prefill": _static_prefill,
    "static-decode": _static_decode,
}
