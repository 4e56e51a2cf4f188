"""An inspection as tables for a person: what is alike is one row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ovpasses._tables import LAYER_COLUMNS, alike, layer_rows
from ovpasses.passes.report import PassReport

if TYPE_CHECKING:
    from ovpasses.inspection import Inspection

_KINDS = 3  # kinds of near misses, notes and settled candidates that a pass's row shows


@dataclass(frozen=True)
class Content:
    """Title, columns (all empty: none) and rows of a table."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]


def all_tables(found: Inspection) -> list[Content]:
    """Every table of an inspection, those without a row left out."""
    info = found.imported.info
    tables = [
        Content("", ("", ""), _summary(found)),
        Content("", ("inputs", "type", "shape"), _port_rows(found.inputs)),
        Content("", ("outputs", "type", "shape"), _port_rows(found.outputs)),
        Content("", ("states", "type", "layout", "sequence axis"), _state_rows(found.states)),
        Content("", LAYER_COLUMNS, layer_rows(info.layers)),
        Content("", ("sources that contradict each other",), [[line] for line in info.contradictions]),
        Content(found.report.name, ("pass", "would do"), [_pass_row(r, found.refused) for r in found.report.passes]),
    ]
    return [table for table in tables if table.rows]


def _summary(found: Inspection) -> list[list[str]]:
    info, weights = found.imported.info, found.weights
    least = sum(weights.sizes.values()) / 1000  # the shapes and axes of a graph are no weights
    largest = sorted(weights.sizes.items(), key=lambda item: -item[1])
    stored = ", ".join(f"{kind} {_bytes(size)}" for kind, size in largest if size > least)
    rows = {
        "model": str(found.imported.source or found.imported.model.get_friendly_name()),
        "architecture": info.architecture or "not known",
        "ops": str(len(found.imported.model.get_ops())),
        "parameters": f"{weights.parameters / 1e6:.1f} M; stored: {stored or 'nothing'}",
        "vocabulary": "not known" if info.n_vocab is None else f"{info.n_vocab} tokens",
        "context": "not known" if info.context_length is None else f"{info.context_length} tokens",
        "position planes": str(info.position_planes),
    }
    return [[name, value] for name, value in rows.items()]


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def _port_rows(ports: list[dict[str, Any]]) -> list[list[str]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for port in ports:
        groups.setdefault((port["type"], port["shape"]), []).append(port)
    return [
        [_names(same), kind, shape]
        for (kind, shape), of in groups.items()
        for same in alike(of, lambda p: str(p["name"]))
    ]


def _state_rows(states: list[dict[str, Any]]) -> list[list[str]]:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for state in states:
        axis = "none (recurrent)" if state["sequence_axis"] is None else str(state["sequence_axis"])
        groups.setdefault((state["type"], f"[{', '.join(state['layout'])}]", axis), []).append(state)
    return [[_names(same), *key] for key, of in groups.items() for same in alike(of, lambda s: str(s["name"]))]


def _names(same: list[dict[str, Any]]) -> str:
    names = sorted((str(one["name"]) for one in same), key=_natural)
    first, last = names[0], names[-1]
    return first if len(same) == 1 else f"{first} ... {last} ({len(same)})"


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts l9 before l10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _pass_row(report: PassReport, refused: dict[str, str]) -> list[str]:
    if report.candidates == 0:
        lines = [report.summary()]
    elif report.name in refused:
        lines = [f"refused: {refused[report.name].removeprefix(f'{report.name}: ')}"]
    else:
        lines = [f"{report.rewritten} of {report.candidates} would be rewritten"]
    misses = [
        (f"{count}x: {first.node}: step '{first.step}': {first.reason}", count) for first, count in report.near_misses()
    ]
    settled = [(f"{count}x {first.step}: {first}", count) for first, count in report.settled()]
    notes = [(group[0] if len(group) == 1 else f"{len(group)}x {group[0]}", 1) for group in alike(report.notes, str)]
    lines += _first_of(misses, "near miss ", "near misses")
    lines += _first_of(settled, "", "candidates that need nothing")
    return [report.name, "\n".join([*lines, *_first_of(notes, "", "notes")])]


def _first_of(lines: list[tuple[str, int]], prefix: str, kind: str) -> list[str]:
    """As many lines as fit, and how many of which kind are not shown."""
    shown = [prefix + line for line, _ in lines[:_KINDS]]
    hidden = sum(count for _, count in lines[_KINDS:])
    return [*shown, f"{hidden} more {kind} (all are in --json)"] if hidden else shown
