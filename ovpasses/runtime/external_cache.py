"""The KV caches of a stateless graph, kept outside it: what a session feeds in and takes out at every inference."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from openvino import CompiledModel, InferRequest, Tensor

from ovpasses.errors import StateError
from ovpasses.ggml_names import CACHE_NAME

DEFAULT_CELLS = 256


class ExternalCache:
    """Cache tensors of a fixed number of cells; cell i holds position i.

    The slow way round (each step copies every cache), and the reference for what a stateful rewrite must compute.

    Args:
        compiled: a compiled stateless model that updates its caches by write index.
        ports: the cache inputs, by name.
        cells: how many tokens the caches hold, where the graph leaves it open.

    Raises:
        StateError: a cache's shape or output cannot be told.
    """

    def __init__(self, compiled: CompiledModel, ports: dict[str, Any], cells: int) -> None:
        self._outputs = {name: output_of(compiled, name) for name in ports}
        self._values = {name: _empty(name, port, cells) for name, port in ports.items()}
        self.cells = min(_cells(port, cells) for port in ports.values())

    def reset(self) -> None:
        """Forget every row."""
        for value in self._values.values():
            value.fill(0)

    def feed(self) -> dict[str, Tensor]:
        """The caches as inputs of the next inference."""
        return {name: Tensor(value) for name, value in self._values.items()}

    def take(self, request: InferRequest) -> None:
        """Keep the caches that an inference has written."""
        for name, output in self._outputs.items():
            np.copyto(self._values[name], request.get_tensor(output).data)


def _sequence_dim(port: Any) -> int:
    """The cells: dim 2 of ``[1, 1, cells, heads*size]``, dim 1 of ``[1, cells, heads, size]``."""
    shape = port.get_partial_shape()
    return 1 if shape[1].is_dynamic else 2


def _cells(port: Any, cells: int) -> int:
    dim = port.get_partial_shape()[_sequence_dim(port)]
    return dim.get_length() if dim.is_static else cells


def _empty(name: str, port: Any, cells: int) -> np.ndarray:
    shape = port.get_partial_shape()
    at = _sequence_dim(port)
    dims = [_cells(port, cells) if d == at else shape[d] for d in range(shape.rank.get_length())]
    if any(not isinstance(d, int) and d.is_dynamic for d in dims):
        raise StateError(f"cache input {name} is {shape}, wanted the cells as its only dynamic dim")
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
