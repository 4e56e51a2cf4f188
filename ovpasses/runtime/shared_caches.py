"""Caches and states that two static models take and give, in tensors that both write to directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from openvino import CompiledModel, InferRequest, Tensor

from ovpasses.errors import StateError
from ovpasses.ggml_names import CACHE_NAME, PAST_NAME
from ovpasses.runtime.external_cache import named, output_of


def carried_ports(compiled: CompiledModel) -> dict[str, tuple[Any, Any]]:
    """The caches and states of a stateless model: input name to the input and the output that carries it on.

    Raises:
        StateError: a cache has no output, or its output has another type or shape.
    """
    found = {}
    for port in compiled.inputs:
        name = port.get_any_name()
        if CACHE_NAME.search(name) or PAST_NAME.match(name):
            output = output_of(compiled, name)
            if _kind(output) != _kind(port):
                raise StateError(f"cache {name} goes in as {_kind(port)} and comes out as {_kind(output)}")
            found[name] = (port, output)
    return found


def _kind(port: Any) -> str:
    return f"{port.get_element_type().get_type_name()} {port.get_partial_shape()}"


class PairedTensors:
    """Two tensors per cache: an inference reads one and writes the other, then they change places.

    Infer requests of several models may be bound to them in turn, so a cache passes from one to the other as it is. An
    inference that fails leaves what it read as it was.

    Args:
        ports: the input of each cache, by name.
        shapes: of each cache.
    """

    def __init__(self, ports: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        now, after = ({n: _zeros(ports[n], shape) for n, shape in shapes.items()} for _ in range(2))
        self._pair = now, after

    def bind(self, request: InferRequest, ports: dict[str, tuple[Any, Any]]) -> None:
        """Let a request read the caches as they are and write them as they will be."""
        now, after = self._pair
        for name, (port, output) in ports.items():
            request.set_tensor(port, now[name])
            request.set_tensor(output, after[name])

    def advance(self) -> None:
        """Take what the last inference wrote as what is."""
        self._pair = self._pair[::-1]  # one step, which an interrupt cannot leave half done

    def arrays(self) -> dict[str, np.ndarray]:
        """The caches as they are now, to read and to write."""
        return {name: tensor.data for name, tensor in self._pair[0].items()}


class SharedCaches(PairedTensors):
    """The caches of one sequence, which several static models have in turn.

    Args:
        models: the ports of each model, by cache name (see :func:`carried_ports`).

    Raises:
        StateError: the models do not have the same caches.
    """

    def __init__(self, *models: dict[str, tuple[Any, Any]]) -> None:
        first = {name: _kind(port) for name, (port, _) in models[0].items()}
        for other in models[1:]:
            second = {name: _kind(port) for name, (port, _) in other.items()}
            for name in sorted(first.keys() | second.keys()):
                if first.get(name) != second.get(name):
                    raise StateError(
                        f"cache {name} is {first.get(name, 'not there')} in the prefill model and "
                        f"{second.get(name, 'not there')} in the decode model; rewrite both with one context"
                    )
        ports = {name: port for name, (port, _) in models[0].items()}
        super().__init__(ports, {name: port.get_shape() for name, port in ports.items()})

    def value(self, name: str) -> np.ndarray:
        """A copy of a cache or state.

        Raises:
            StateError: there is none of that name.
        """
        return np.array(named(self.arrays(), name))


def _zeros(port: Any, shape: Sequence[int]) -> Tensor:
    tensor = Tensor(port.get_element_type(), list(shape))
    tensor.data[...] = 0
    return tensor
