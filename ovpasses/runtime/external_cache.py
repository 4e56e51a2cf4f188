"""The caches of a stateless graph, kept outside it: what a session feeds in and takes out at every inference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from openvino import CompiledModel, InferRequest, Tensor

from ovpasses.errors import StateError
from ovpasses.ggml_names import CACHE_NAME
from ovpasses.importers.graph_info import GraphInfo

DEFAULT_CELLS = 256

# Caches that hold a fixed size per sequence, in slots, and not a cell per token.
SLOT_KINDS = ("cache_r", "cache_s")


class ExternalCache:
    """Cache tensors of a fixed number of cells, for one sequence or several; cell i of a sequence holds position i.

    Recurrent caches ``[1, 1, slots, width]`` hold one slot per sequence. The slow way round (each step copies every
    cache), and the reference for what a stateful rewrite must compute.

    Args:
        compiled: a compiled stateless model that updates its caches by write index.
        ports: the cache inputs, by name.
        cells: how many tokens of a sequence the caches hold, where the graph leaves it open.

    Attributes:
        compiled: the model.
        cells, sequences: how many of each there are.
        users: who runs which sequence.

    Raises:
        StateError: a cache's shape or output cannot be told.
    """

    def __init__(self, compiled: CompiledModel, ports: dict[str, Any], cells: int) -> None:
        self.compiled = compiled
        # By sequence, as long as it lives.
        self.users: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._outputs = {name: output_of(compiled, name) for name in ports}
        rows = {name: port for name, port in ports.items() if not is_in_slots(name)}
        lengths = {name: _cells(port, self._outputs[name], cells) for name, port in rows.items()}
        self.cells = min(lengths.values(), default=cells)
        self.sequences = max((_sequences(port) for port in rows.values()), default=1)
        self._values = {
            name: _empty(name, port, lengths.get(name, self.sequences), _dim(name, port))
            for name, port in ports.items()
        }

    def views(self, slot: int = 0) -> dict[str, np.ndarray]:
        """What one sequence has in each cache, to read and to write: ``[1, 1, cells, heads*size]`` or, of a cache for
        one sequence, as the model takes it; ``[1, 1, 1, width]`` of a recurrent one."""
        chosen = slice(slot, slot + 1)
        several = {name: value[:, chosen] if self.sequences > 1 else value for name, value in self._values.items()}
        return {name: self._values[name][:, :, chosen] if is_in_slots(name) else v for name, v in several.items()}

    def feed(self) -> dict[str, Tensor]:
        """The caches as inputs of the next inference."""
        return {name: Tensor(value) for name, value in self._values.items()}

    def take(self, request: InferRequest) -> None:
        """Keep the caches that an inference has written."""
        for name, output in self._outputs.items():
            np.copyto(self._values[name], request.get_tensor(output).data)

    def value(self, name: str, slot: int = 0) -> np.ndarray:
        """A copy of what one sequence has in a cache: ``[cells, heads*size]``, or ``[width]`` of a recurrent one.

        Raises:
            StateError: there is no such cache.
        """
        value = named(self._values, name)
        if is_in_slots(name):
            return np.array(value[0, 0, slot])
        return np.array(value[0, slot] if self.sequences > 1 else value[0]).squeeze()


def default_cells(info: GraphInfo) -> int:
    """Tokens that caches outside a model hold when nobody says: 256, or the model's context when that is less."""
    return min(DEFAULT_CELLS, info.context_length or DEFAULT_CELLS)


def named(caches: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A cache by its name.

    Raises:
        StateError: there is none of that name.
    """
    if name not in caches:
        raise StateError(f"cache {name} is not there, wanted one of {', '.join(sorted(caches))}")
    return caches[name]


def is_in_slots(name: str) -> bool:
    """Whether a cache holds a fixed size per sequence, by its name."""
    found = CACHE_NAME.search(name)
    return found is not None and found["kind"] in SLOT_KINDS


def _dim(name: str, port: Any) -> int:
    """The cells: dim 2 of ``[1, sequences, cells, heads*size]``, dim 1 of ``[1, cells, heads, size]``; or the slots."""
    shape = port.get_partial_shape()
    return 1 if shape[1].is_dynamic and not is_in_slots(name) else 2


def _sequences(port: Any) -> int:
    """Dim 1 of ``[1, sequences, cells, heads*size]``, when the cells are dim 2."""
    shape = port.get_partial_shape()
    return int(shape[1].get_length()) if shape[1].is_static and shape[2].is_dynamic else 1


def _cells(port: Any, output: Any, cells: int) -> int:
    """The cells that the input has, else those that the graph has made of them where it leaves no choice."""
    at = 1 if port.get_partial_shape()[1].is_dynamic else 2
    for one in (port, output):
        shape = one.get_partial_shape()
        if shape.rank.is_static and shape.rank.get_length() == 4 and shape[at].is_static:
            return int(shape[at].get_length())
    return cells


def _empty(name: str, port: Any, length: int, at: int) -> np.ndarray:
    shape = port.get_partial_shape()
    dims = [length if d == at and shape[d].is_dynamic else shape[d] for d in range(shape.rank.get_length())]
    if any(not isinstance(d, int) and d.is_dynamic for d in dims):
        raise StateError(f"cache input {name} is {shape}, wanted the cells or slots as its only dynamic dim")
    known = [d if isinstance(d, int) else d.get_length() for d in dims]
    return np.zeros(known, dtype=port.get_element_type().to_dtype())


def output_of(compiled: CompiledModel, name: str) -> Any:
    """The output that carries the cache of an input on: ``name``, or ``name_out`` as StaticTokens calls it.

    Raises:
        StateError: there is none.
    """
    # An output that has its input's name gets a number behind it in a compiled model.
    same = re.compile(re.escape(name) + r"(_out)?(_\d+)?")
    for output in compiled.outputs:
        if any(same.fullmatch(n) for n in [*output.get_names(), output.get_node().get_friendly_name()]):
            return output
    raise StateError(f"no output carries cache {name} out again; run the preset stateful, or StaticTokens")


def is_cache_output(output: Any) -> bool:
    """True for an output that carries a cache, by its name."""
    names = [*output.get_names(), output.get_node().get_friendly_name()]
    return any(CACHE_NAME.search(name) for name in names)
