"""The caches of several sequences, kept outside a graph that takes a list of those it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import InferRequest, Tensor

from ovpasses.errors import StateError
from ovpasses.runtime.external_cache import is_in_slots

# Dim of the sequences, and of the cells, in [1, sequences, cells, heads*size]; in [1, 1, slots, width] of the slots.
SEQUENCES, CELLS, SLOTS = 1, 2, 2


class SlotCaches:
    """Two tensors per cache: an inference reads one and writes the other, then they change places.

    An inference that fails leaves what it read as it was. Cell i of a sequence holds position i.

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
        self._now = {name: _zeros(ports[name][0], shape) for name, shape in shapes.items()}
        self._next = {name: _zeros(ports[name][0], shape) for name, shape in shapes.items()}

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

    def bind(self, request: InferRequest, ports: dict[str, tuple[Any, Any]]) -> None:
        """Let a request read the caches as they are and write them as they will be."""
        for name, (port, output) in ports.items():
            request.set_tensor(port, self._now[name])
            request.set_tensor(output, self._next[name])

    def advance(self) -> None:
        """Take what the last inference wrote as what is."""
        self._now, self._next = self._next, self._now

    def clear(self, slot: int) -> None:
        """Make all that one sequence has zero."""
        for name, tensor in self._now.items():
            _part(name, tensor.data, slot)[...] = 0

    def value(self, name: str, slot: int) -> np.ndarray:
        """A copy of what one sequence has in a cache: ``[cells, heads*size]``, or ``[width]`` of a recurrent one.

        Raises:
            StateError: there is no such cache.
        """
        if name not in self._now:
            raise StateError(f"cache {name} is not there, wanted one of {', '.join(sorted(self._now))}")
        return np.array(_part(name, self._now[name].data, slot))


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


def _zeros(port: Any, shape: tuple[int, ...]) -> Tensor:
    tensor = Tensor(port.get_element_type(), list(shape))
    tensor.data[...] = 0
    return tensor
