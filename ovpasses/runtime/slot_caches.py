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
        held = self.arrays()
        for name in sorted(held.keys() | ports.keys()):
            wanted = held[name].shape if name in held else None
            found = _known(name, ports[name][0], self.cells) if name in ports else None
            if found != wanted:
                raise StateError(
                    f"cache {name} is {wanted or 'not there'} in one model and {found or 'not there'} in the other; "
                    "rewrite both with one context"
                )

    def views(self, slot: int) -> dict[str, np.ndarray]:
        """What one sequence has in each cache, to read and to write: ``[1, 1, cells, heads*size]``, or
        ``[1, 1, 1, width]`` of a recurrent one."""
        chosen = slice(slot, slot + 1)
        return {n: a[:, :, chosen] if is_in_slots(n) else a[:, chosen] for n, a in self.arrays().items()}

    def value(self, name: str, slot: int) -> np.ndarray:
        """A copy of what one sequence has in a cache: ``[cells, heads*size]``, or ``[width]`` of a recurrent one.

        Raises:
            StateError: there is no such cache.
        """
        rows = named(self.views(slot), name)[0, 0]
        return np.array(rows[0] if is_in_slots(name) else rows)


def _known(name: str, port: Any, cells: int) -> tuple[int, ...]:
    shape = port.get_partial_shape()
    dims = [cells if d == CELLS and shape[d].is_dynamic else shape[d] for d in range(shape.rank.get_length())]
    if len(dims) != 4 or (is_in_slots(name) and shape.is_dynamic):
        raise StateError(f"cache input {name} is {shape}, wanted [1, sequences, cells, size] or [1, 1, slots, size]")
    if any(not isinstance(d, int) and d.is_dynamic for d in dims):
        raise StateError(f"cache input {name} is {shape}, wanted the cells as its only dynamic dim")
    return tuple(d if isinstance(d, int) else int(d.get_length()) for d in dims)
