"""ggml's cache rows to a session's states, and back."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from ovpasses.errors import StateError
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.states import StateInfo, StateStore, Values, rows_first

# ggml's name for each kind of state. It keeps a delta net's state with the value dim first; so do graphs made from
# it, which transpose the state where they use it.
GGML_NAMES = {"key": "cache_k", "value": "cache_v", "conv": "cache_r", "delta-net": "cache_s"}


def to_ggml_rows(states: StateStore, values: Values, position: int) -> dict[str, np.ndarray]:
    """States in ggml's layout: ``[position, heads*size]``, or ``[width]`` of a recurrent one.

    Args:
        states: what is known of them.
        values: all of them by their own names.
        position: tokens that have been run.

    Raises:
        StateError: ggml has no such state, or its sequence axis cannot be told.
    """
    found = {}
    for name, info in _ggml_names(states).items():
        value = values[info.name]
        axis = states.axis(info, value.shape, position) if info.grows else None
        found[name] = np.ascontiguousarray(rows_first(value, axis))
    return found


def from_ggml_rows(
    rows: Mapping[str, np.ndarray], states: StateStore, empty: Values, graph: GraphInfo, position: int | None = None
) -> tuple[Values, int]:
    """States from ggml's layout, each in its own axis order and type, and how many tokens they are of.

    Args:
        rows: by ggml's names.
        states: what is known of them.
        empty: all of them at position 0, by their own names.
        graph: tells the layers' windows.
        position: how many tokens the rows are of, where the caller knows.

    Raises:
        StateError: the rows are not those of the states; says which, found and wanted.
    """
    infos = _ggml_names(states)
    given = _checked_names(rows, infos)
    axes = {n: states.axis(info, empty[info.name].shape, 0) if info.grows else None for n, info in infos.items()}
    for name, info in infos.items():
        _check_array(name, given[name], info, [n for d, n in enumerate(empty[info.name].shape) if d != axes[name]])
    counts = {name: len(given[name]) for name, axis in axes.items() if axis is not None}
    count = _checked_count(counts, position)
    _check_windows(count, infos, graph)
    values = {}
    for name, info in infos.items():
        like, axis = empty[info.name], axes[name]
        if axis is None:
            value = given[name].reshape(like.shape)
        else:
            rest = [n for d, n in enumerate(like.shape) if d != axis]
            value = np.moveaxis(given[name].reshape(count, *rest), 0, axis)
        values[info.name] = _converted(name, value, info, like.dtype)
    return values, count


def _ggml_names(states: StateStore) -> dict[str, StateInfo]:
    """The states by ggml's names, layer by layer."""
    found: dict[str, StateInfo] = {}
    for info in sorted(states.infos.values(), key=lambda i: (i.layer or 0, i.label)):
        name = f"{GGML_NAMES.get(info.kind)}_l{info.layer}"
        if info.kind not in GGML_NAMES or info.layer is None or name in found:
            raise StateError(f"state {info.label} has no name of its own in ggml's cache; save and restore it instead")
        found[name] = info
    return found


def _checked_names(rows: Mapping[str, np.ndarray], infos: Mapping[str, StateInfo]) -> dict[str, np.ndarray]:
    missing, extra = [n for n in infos if n not in rows], [n for n in rows if n not in infos]
    if missing:
        recurrent = [name for name in missing if not infos[name].grows]
        why = (
            f"; layer {infos[recurrent[0]].layer} is recurrent and cannot start without its state" if recurrent else ""
        )
        raise StateError(f"cannot seed: the rows of {(recurrent or missing)[0]} are missing{why}")
    if extra:
        raise StateError(f"cannot seed: {extra[0]} is none of the model's caches, wanted {', '.join(infos)}")
    return {name: np.asarray(value) for name, value in rows.items()}


def _check_array(name: str, value: np.ndarray, info: StateInfo, dims: list[int]) -> None:
    """``dims``: all of the state's but for its sequence."""
    if not np.issubdtype(value.dtype, np.floating):
        raise StateError(f"cannot seed: {name} is {value.dtype}, wanted {info.dtype} or floats of another width")
    width = prod(dims)
    if value.ndim != (2 if info.grows else 1) or value.shape[-1] != width:
        wanted = f"[tokens, {width}]" if info.grows else f"[{width}]"
        made = " x ".join(str(n) for n in dims if n != 1)
        raise StateError(f"cannot seed: {name} is {list(value.shape)}, wanted {wanted} (of {made or 1} elements)")


def _checked_count(counts: Mapping[str, int], position: int | None) -> int:
    """The number of tokens that all rows agree on."""
    if position is not None and (isinstance(position, bool) or not isinstance(position, int | np.integer)):
        raise StateError(f"cannot seed: position is {position!r}, wanted an integer")
    if not counts and position is None:
        raise StateError("cannot seed: no state has a row per token; give the position that the states stand at")
    first, count = next(iter(counts.items()), ("position", position))
    assert count is not None
    for name, other in counts.items():
        if other != count:
            raise StateError(f"cannot seed: {name} has {other} rows and {first} {count}, wanted the same number")
    if position is not None and position != count:
        raise StateError(f"cannot seed: {first} has {count} rows, which end at position {count} and not at {position}")
    if count < 1:
        raise StateError(f"cannot seed: {first} has {count} rows, wanted at least 1")
    return int(count)


def _check_windows(count: int, infos: Mapping[str, StateInfo], graph: GraphInfo) -> None:
    """Past its window a sliding layer's cache has dropped positions, and row i may not be position i."""
    windows = {layer.index: layer.window for layer in graph.layers}
    for name, info in infos.items():
        window = windows.get(info.layer) if info.layer is not None else None
        if window is not None and count > window:
            raise StateError(
                f"cannot seed: {name} is of sliding layer {info.layer} with a window of {window} tokens, and at "
                f"position {count} ggml's cache has dropped some; give {window} rows at most, or restore a saved state"
            )


def _converted(name: str, value: np.ndarray, info: StateInfo, dtype: np.dtype[Any]) -> np.ndarray:
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(value, dtype=dtype)
    if not np.isfinite(found).all():
        raise StateError(f"cannot seed: {name} holds values that are not finite in {info.dtype}")
    return found
