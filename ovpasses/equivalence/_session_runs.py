"""A language model as something that is stepped: through the session that its form takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import CompiledModel, InferRequest, Model

from ovpasses.equivalence._inputs import Inputs
from ovpasses.equivalence._runs import EXACT, Outcome
from ovpasses.equivalence._states import session_states
from ovpasses.errors import DeviceError, StateError
from ovpasses.ggml_names import CACHE_NAME
from ovpasses.importers import GraphInfo, ImportedModel
from ovpasses.importers._walk import consumer_nodes
from ovpasses.passes import LowerGatedDeltaNet
from ovpasses.passes._states import states
from ovpasses.runtime import ChunkedSession, Session, SlotSessions, compile_model
from ovpasses.runtime.external_cache import default_cells, is_cache_output
from ovpasses.runtime.inputs import MAKERS, MASK_INPUTS, TOKEN_INPUTS
from ovpasses.runtime.ports import logits_port
from ovpasses.runtime.slot_sessions import Slot
from ovpasses.runtime.slot_stage import takes_batches
from ovpasses.runtime.states import StateInfo, Values

# Cells that masks cover beyond the tokens where a graph cuts them, as llama.cpp's padded masks do.
HIDDEN = 5


def is_language_model(imported: ImportedModel) -> bool:
    """True when a session can make its inputs: it takes tokens, of a vocabulary that is known, and has a past."""
    roles = {imported.info.roles.get(n, n) for port in imported.model.inputs for n in port.get_names()}
    tokens, others = roles & {*TOKEN_INPUTS}, roles - {*TOKEN_INPUTS}
    goes_on = bool(imported.model.get_variables()) or any(n in MAKERS or CACHE_NAME.search(n) for n in others)
    return imported.info.n_vocab is not None and bool(tokens) and goes_on


class SessionRun:
    """A language model, or a static pair; all sequences that its caches hold.

    Args:
        name: for messages.
        models: one, or prefill and decode of a static pair.
        tokens: how many of a sequence will be run.

    Attributes:
        windows: sliding layers and the tokens of their windows.
        reordered: states that ``beam_idx`` gathers, by meaning; None of a model without that input.
        left_out: outputs beside the logits that cannot be read.

    Raises:
        StateError: no session runs it as it is.
    """

    logits = True

    def __init__(self, name: str, *models: ImportedModel, tokens: int) -> None:
        self.name, self.model = name, models[0].model
        info = models[-1].info
        self.n_vocab = info.n_vocab
        self._compiled = [compile_model(_runnable(model), "CPU", EXACT) for model in models]
        self._several: SlotSessions | None = None
        self._sessions: list[Session | ChunkedSession | Slot]
        first, *decode = self._compiled
        if decode and not takes_batches(first):
            self._sessions = [ChunkedSession(first, decode[0], info)]
        else:
            cells = max(tokens, default_cells(info))
            self._several = SlotSessions(first, info, decode=decode[0] if decode else None, cells=cells)
            self._sessions = list(self._several)
        self.types = {found.dtype for found in self._sessions[0]._keeper.states.infos.values()}
        self.windows = {layer.index: layer.window for layer in info.layers if layer.window is not None}
        self.reordered = _reordered(self.model)
        others = _beside_logits(first, info)
        single = self._sessions[0] if len(self._sessions) == 1 else None
        self._others = others if isinstance(single, Session) else {}
        self.left_out = others.keys() - self._others.keys()
        if isinstance(single, Session) and cuts_masks(self.model, info):
            single.hidden_cells = HIDDEN

    @property
    def sequences(self) -> int:
        """How many its caches hold."""
        return len(self._sessions)

    @property
    def capacity(self) -> int | None:
        """Positions of a sequence; None without a limit, or where it shows only when they are used up."""
        first = self._sessions[0]
        return None if isinstance(first, Slot) else first.capacity

    def step(self, inputs: Inputs, number: int, count: int) -> Outcome:
        tokens = inputs.tokens(number, count)
        try:
            logits = self._run(tokens, decode=count == 1)
        except DeviceError as error:
            return Outcome(fault=f"does not run: {error}")
        several = inputs.sequences > 1
        found = Outcome({f"logits of sequence {slot}" if several else "logits": v for slot, v in logits.items()})
        for name, port in self._others.items():
            found.outputs[name] = np.array(self._request.get_tensor(port).data).squeeze()
        try:
            found.states = self._states(inputs.sequences)
        except StateError as error:
            found.fault = str(error)
        return found

    @property
    def _request(self) -> InferRequest:
        (session,) = self._sessions
        assert isinstance(session, Session)
        return session._request

    def reset(self) -> None:
        for session in self._sessions:
            session.reset()

    def _run(self, tokens: dict[int, np.ndarray], *, decode: bool) -> dict[int, np.ndarray]:
        if self._several is None:
            (session,) = self._sessions
            return {0: session.decode(int(tokens[0][0])) if decode else session.prefill(tokens[0], all_logits=True)}
        if decode:
            return self._several.decode({slot: int(ids[0]) for slot, ids in tokens.items()})
        return self._several.prefill(tokens, all_logits=True)

    def _states(self, sequences: int) -> Values:
        found: Values = {}
        for number, session in enumerate(self._sessions[:sequences]):
            suffix = f", sequence {number}" if sequences > 1 else ""
            found |= session_states(session, suffix)
        return found


def cuts_masks(model: Model, info: GraphInfo) -> bool:
    """Whether a graph takes masks wider than its tokens need, and cuts them: it must cut at the right place then."""
    named = {p: {info.roles.get(n, n) for n in p.output(0).get_names()} for p in model.get_parameters()}
    masks = [p.output(0) for p, names in named.items() if names & {*MASK_INPUTS}]
    readers = [node for mask in masks for node in consumer_nodes(mask, through=("Convert",))]
    return bool(masks) and all(node.get_type_name() in ("Convert", "Slice") for node in readers)


def _reordered(model: Model) -> set[str] | None:
    if not any("beam_idx" in port.get_names() for port in model.inputs):
        return None
    found = [StateInfo(state.name, "") for state in states(model) if state.beam_gather is not None]
    return {f"{one.kind} of layer {one.layer}" if one.layer is not None else one.label for one in found}


def _beside_logits(compiled: CompiledModel, info: GraphInfo) -> dict[str, Any]:
    """The outputs that are neither logits nor caches, by name."""
    logits = logits_port(compiled, info)
    return {
        str(min(port.get_names(), default=port.get_node().get_friendly_name())): port
        for port in compiled.outputs
        if port != logits and not is_cache_output(port)
    }


def _runnable(imported: ImportedModel) -> ImportedModel:
    """The model, or a copy with the internal op lowered that only a graph from a file has as a placeholder."""
    if not any(op.get_type_name() == "GatedDeltaNet" for op in imported.model.get_ops()):
        return imported
    copy = imported.model.clone()
    LowerGatedDeltaNet(strict=True).run_on_model(copy)
    return ImportedModel(copy, imported.info, imported.source)
