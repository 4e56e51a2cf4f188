"""A model as something that is stepped: what it gives, and what its states are by meaning, after each step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from openvino import CompiledModel, Model, Tensor

from ovpasses.equivalence._canonical import tensor_names
from ovpasses.equivalence._inputs import Inputs
from ovpasses.equivalence._states import GraphStates
from ovpasses.errors import one_line
from ovpasses.runtime import compile_model
from ovpasses.runtime.states import Values

# What plugins choose on their own must not pass for a difference between the graphs.
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


@dataclass
class Outcome:
    """Of one step.

    Attributes:
        outputs: by name.
        states: by meaning.
        fault: why it did not run, or why its states cannot be told; "" when all went well.
    """

    outputs: Values = field(default_factory=dict)
    states: Values = field(default_factory=dict)
    fault: str = ""


class Run(Protocol):
    """A model that is stepped.

    Attributes:
        name: for messages.
        model: the graph that was compiled.
        logits: it takes tokens, and its outputs are rows of logits.
        types: element types of its states and caches, and of outputs that are no logits.
    """

    name: str
    model: Model
    logits: bool
    types: set[str]

    def step(self, inputs: Inputs, number: int, count: int) -> Outcome:
        """Run step ``number`` (from 1): ``count`` tokens, or once with dynamic dims of that size."""
        ...

    def reset(self) -> None:
        """Start again."""
        ...


class GraphRun:
    """A graph that no session runs, on random inputs; its states go on from step to step."""

    logits = False

    def __init__(self, name: str, model: Model) -> None:
        self.name, self.model = name, model
        compiled: CompiledModel = compile_model(model, "CPU", EXACT)
        self._numbers, self._outputs = (_by_name(ports) for ports in (model.inputs, model.outputs))
        self.ports = {name: compiled.inputs[i] for name, i in self._numbers.items()}
        self._request = compiled.create_infer_request()
        self._states = GraphStates(compiled, self._request)
        self.types = {info.dtype for info in self._states.infos.values()}
        self.types |= {port.get_element_type().get_type_name() for port in model.outputs}

    @property
    def has_states(self) -> bool:
        """Whether something goes on from step to step."""
        return bool(self._states.infos)

    def step(self, inputs: Inputs, number: int, count: int) -> Outcome:
        feed = {}
        for name, port in self.ports.items():
            dtype = np.dtype(port.get_element_type().to_dtype())
            feed[self._numbers[name]] = Tensor(inputs.value(name, dtype, number, count))
        try:
            self._request.infer(feed)
        except RuntimeError as error:
            shapes = ", ".join(f"{name} {list(feed[i].shape)}" for name, i in self._numbers.items())
            return Outcome(fault=f"does not run on inputs {shapes}: {one_line(error)}")
        outputs = {name: np.array(self._request.get_output_tensor(i).data) for name, i in self._outputs.items()}
        return Outcome(outputs, self._states.read())

    def call_as(self, other: GraphRun) -> None:
        """Call inputs and outputs as another model does, where the two have one of several names in common."""
        self._numbers, self._outputs = (
            _renamed(mine, self.model, theirs, other.model, side)
            for mine, theirs, side in (
                (self._numbers, other._numbers, "inputs"),
                (self._outputs, other._outputs, "outputs"),
            )
        )
        by_number = {number: name for name, number in self._numbers.items()}
        self.ports = {by_number[i]: port for i, port in enumerate(self.ports.values())}

    def reset(self) -> None:
        self._request.reset_state()


def _renamed(mine: dict[str, int], model: Model, theirs: dict[str, int], other: Model, side: str) -> dict[str, int]:
    free = {name: tensor_names(getattr(other, side)[i].get_node()) for name, i in theirs.items() if name not in mine}
    found = {}
    for name, number in mine.items():
        names = tensor_names(getattr(model, side)[number].get_node()) if name not in theirs else set()
        found[next((one for one, known in free.items() if names & set(known)), name)] = number
    return found


def _by_name(ports: Any) -> dict[str, int]:
    """Name to number of a model's inputs or outputs; those without a name of their own have the number in it."""
    names = [min(tensor_names(port.get_node()), default=f"number {i}") for i, port in enumerate(ports)]
    shared = {name for name, count in Counter(names).items() if count > 1}
    return {f"{name} (number {i})" if name in shared else name: i for i, name in enumerate(names)}
