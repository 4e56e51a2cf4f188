"""A model as something that is stepped: what it gives, and what its states are by meaning, after each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from openvino import CompiledModel, Model, Tensor

from ovpasses.errors import ModelReadError, one_line
from ovpasses.importers import ImportedModel
from ovpasses.passes import LowerGatedDeltaNet
from ovpasses.runtime import ChunkedSession, Session, compile_model
from ovpasses.runtime.resumable import Resumable

# What plugins choose on their own must not pass for a difference between the graphs.
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
TOKEN_ROLES = ("inp_tokens", "input_ids")

# What a dynamic dim of a graph that is no language model is given.
DYNAMIC_SIZE = 3

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """Of one step: outputs by name, and states by meaning."""

    outputs: Values
    states: Values


class Run(Protocol):
    """A model that is stepped.

    Attributes:
        name: for messages.
        types: element types of its states and caches.
        logits: whether its outputs are rows of logits.
    """

    name: str
    types: set[str]
    logits: bool

    def step(self, count: int, random: np.random.Generator) -> Outcome:
        """Run ``count`` tokens, or once, on inputs that ``random`` makes."""
        ...


def is_language_model(imported: ImportedModel) -> bool:
    """True when a session can make its inputs: it takes tokens, of a vocabulary that is known."""
    roles = imported.info.roles
    names = [name for port in imported.model.inputs for name in port.get_names()]
    return imported.info.n_vocab is not None and any(roles.get(n, n) in TOKEN_ROLES for n in names)


class SessionRun:
    """A language model, or a static pair, through a session.

    Args:
        name: for messages.
        models: one, or prefill and decode of a static pair.
    """

    logits = True

    def __init__(self, name: str, *models: ImportedModel) -> None:
        self.name = name
        compiled = [compile_model(_runnable(model), "CPU", EXACT) for model in models]
        self._vocabulary = models[0].info.n_vocab
        info = models[-1].info
        self._session: Resumable = (
            ChunkedSession(compiled[0], compiled[1], info) if len(compiled) > 1 else Session(compiled[0], info)
        )
        self.types = {info.dtype for info in self._session._keeper.states.infos.values()}

    def step(self, count: int, random: np.random.Generator) -> Outcome:
        assert self._vocabulary is not None
        tokens = random.integers(0, self._vocabulary, count)
        session: Any = self._session
        logits = session.decode(int(tokens[0])) if count == 1 else session.prefill(tokens, all_logits=True)
        return Outcome({"logits": logits}, _by_meaning(self._session))


class GraphRun:
    """Any other graph, on random inputs of its own shapes; its states go on from step to step."""

    logits = False

    def __init__(self, name: str, model: Model) -> None:
        self.name = name
        self._compiled: CompiledModel = compile_model(model, "CPU", EXACT)
        self._inputs, self._outputs = (_by_name(ports) for ports in (model.inputs, model.outputs))
        self._request = self._compiled.create_infer_request()
        self.types = {state.state.element_type.get_type_name() for state in self._request.query_state()}

    def step(self, count: int, random: np.random.Generator) -> Outcome:
        made = {name: _random_input(self._compiled.inputs[i], random) for name, i in sorted(self._inputs.items())}
        feed = {self._inputs[name]: Tensor(value) for name, value in made.items()}
        try:
            self._request.infer(feed)
        except RuntimeError as error:
            raise ModelReadError(f"{self.name}: does not run on random inputs: {one_line(error)}") from error
        outputs = {n: np.array(self._request.get_output_tensor(i).data) for n, i in self._outputs.items()}
        states = {state.name: np.array(state.state.data) for state in self._request.query_state()}
        return Outcome(outputs, states)


def _runnable(imported: ImportedModel) -> ImportedModel:
    """The model, or a copy with the internal op lowered that only a graph from a file has as a placeholder."""
    if not any(op.get_type_name() == "GatedDeltaNet" for op in imported.model.get_ops()):
        return imported
    copy = imported.model.clone()
    LowerGatedDeltaNet(strict=True).run_on_model(copy)
    return ImportedModel(copy, imported.info, imported.source)


def _by_meaning(session: Resumable) -> Values:
    """States by kind and layer, the sequence in front: the same of any layout, of heads apart or together."""
    states, position = session._keeper.states, session.position
    found: Values = {}
    for name, value in states.read(position).items():
        info = states.infos[name]
        key = info.label if info.layer is None else f"{info.kind} of layer {info.layer}"
        if info.grows:
            value = np.moveaxis(value, states.axis(info, value.shape, position), 0)
            found[key] = value.reshape(position, -1)
        else:
            found[key] = value.reshape(-1)
    return found


def _by_name(ports: Any) -> dict[str, int]:
    """Name to number of a model's inputs or outputs; those without a name of their own are called by the number."""
    found = {}
    for i, port in enumerate(ports):
        made_up = {port.get_node().get_friendly_name()} if port.get_node().get_type_name() == "Result" else set()
        found[min(port.get_names() - made_up, default=f"number {i}")] = i
    return found


def _random_input(port: Any, random: np.random.Generator) -> np.ndarray:
    shape = [d.get_length() if d.is_static else DYNAMIC_SIZE for d in port.get_partial_shape()]
    dtype = port.get_element_type().to_dtype()
    if np.issubdtype(dtype, np.floating):
        return np.asarray(random.standard_normal(shape), dtype)
    return np.asarray(random.integers(0, 2, shape), dtype)
