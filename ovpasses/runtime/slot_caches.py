"""The caches of several sequences, kept outside a graph that takes a list of those it runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovpasses.errors import StateError
from ovpasses.runtime.external_cache import is_in_slots, named
from ovpasses.runtime.shared_caches import PairedTensors

# Dim of the sequences, and of the cells, in [1, sequences, cells, heads*size]; in [1, 1, slots, width] of the slots.
SEQUENCES, CELLS, SLOTS = 1, 2, 2


class SlotCaches(PairedTensors):
    """The caches of several sequences; cell i of a sequence holds position i.

    Args:
        ports: the caches of a compiled model, by name: the input and the output that carries it on.
        cells: tokens of a sequence that the caches hold, where the graph leaves it open.

    Raises:
        StateError: a shape leaves something else open, or caches hold different numbers of sequences or cells.
    """

    def __init__(self, ports: dict[str, tuple[Any, Any]], cells: int) -> None:
        shapes = {name: _known(name, port, cells) for name, (port, _) in ports.items()}
        rows = {name: shape for name, shape in shapes.items() if not is_in_slots(name)}
        held = {shape[SEQUENCES if name in rows else SLOTS] for name, shape in shapes.items()}
        lengths = {shape[CELLS] for shape in rows.values()} or {cells}
        if len(held) != 1 or len(lengths) != 1:
            found = ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items()))
            raise StateError(f"caches are {found}, wanted as many sequences and cells in all")
        self.sequences, self.cells = held.pop(), lengths.pop()
        super().__init__({name: port for name, (port, _) in ports.items()}, shapes)

    def check(self, ports: dict[str, tuple[Any, Any]]) -> None:
        """Make sure that another compiled model has the same caches.

        Raises:
            StateError: it has not.
        """
        for name in sorted(self._now.keys() | ports.keys()):
            wanted = tuple(self._now[name].shape) if name in self._now else None
            found = _known(name, ports[name][0], self.cells) if name in ports else None
            if found != wanted:
                raise StateError(
                    f"cache {name} is {wanted or 'not there'} in one model and {found or 'not there'} in the other; "
                    "rewrite both with one context"
                )

    def clear(self, slot: int) -> None:
        """Make all that one sequence has zero."""
        for name, array in self.arrays().items():
            _part(name, array, slot)[...] = 0

    def value(self, name: str, slot: int) -> np.ndarray:
        """A copy of what one sequence has in a cache: ``[cells, heads*size]``, or ``[width]`` of a recurrent one.

        Raises:
            StateError: there is no such cache.
        """
        return np.array(_part(name, named(self.arrays(), name), slot))


def _part(name: str, value: np.ndarray, slot: int) -> np.ndarray:
    part: np.ndarray = value[0, 0, slot] if is_in_slots(name) else value[0, slot]
    return part


def _known(name: str, port: Any, cells: int) -> tuple[int, ...]:
    shape = port.get_partial_shape()
    dims = [cells if d == CELLS and shape[d].is_dynamic else shape[d] for d in range(shape.rank.get_length())]
    if len(dims) != 4 or (is_in_slots(name) and shape.is_dynamic):
        raise StateError(f"cache input {name} is {shape}, wanted [1, sequences, cells, size] or [1, 1, slots, size]")
    if any(not isinstance(d, int) and d.is_dynamic for d in dims):
        raise StateError(f"cache input {name} is {shape}, wanted the cells as its only dynamic dim")
    return tuple(d if isinstance(d, int) else int(d.get_length()) for d in dims)
