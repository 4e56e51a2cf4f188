"""What tables of models and reports share: rows of layers, runs of numbers, HTML for notebooks."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ovpasses.importers import LayerInfo

LAYER_COLUMNS = ("layers", "kind", "kv heads", "key size", "value size", "window")

_T = TypeVar("_T")


def alike(items: Iterable[_T], text: Callable[[_T], str]) -> list[list[_T]]:
    """Items in groups whose text is the same but for the numbers in it, in the order of the first of each.

    A number in a name may be of any length, any other only of as many digits: shapes that differ stay apart.
    """
    groups: dict[str, list[_T]] = {}
    for item in items:
        same = re.sub(r"\d", "#", re.sub(r"(?<=[A-Za-z_#.])\d+", "#", text(item)))
        groups.setdefault(same, []).append(item)
    return list(groups.values())


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as runs: ``0-4, 6-10, 12``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def layer_rows(layers: Iterable[LayerInfo]) -> list[list[str]]:
    """A row for all layers that are alike, in the order of ``LAYER_COLUMNS``."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for layer in layers:
        same = (layer.kind, layer.n_heads_kv, layer.key_size, layer.value_size, layer.window)
        groups.setdefault(same, []).append(layer.index)
    return [[ranges(of), *("-" if value is None else str(value) for value in same)] for same, of in groups.items()]


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are text; a line break in a cell is kept, ``<``, ``>`` and ``&`` are what they are."""
    head = "".join(f"<th style='text-align:left'>{_cell(name)}</th>" for name in columns)
    cells = ("".join(f"<td style='text-align:left'>{_cell(value)}</td>" for value in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    title = f"<caption style='text-align:left'>{_cell(caption)}</caption>" if caption else ""
    return f"<table>{title}<tr>{head}</tr>{body}</table>"


def _cell(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
