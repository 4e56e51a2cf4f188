"""Session: token ids in, logits out, over a compiled stateful model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from openvino import CompiledModel, InferRequest, Model, Tensor

from ovpasses.errors import DeviceError, StateError, one_line
from ovpasses.ggml_names import CACHE_NAME
from ovpasses.importers import ImportedModel
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.cell_states import CellStates
from ovpasses.runtime.external_cache import SLOT_KINDS, ExternalCache, default_cells
from ovpasses.runtime.fingerprint import fingerprint_of
from ovpasses.runtime.inputs import MAKERS, ROW_INPUTS, Step
from ovpasses.runtime.ports import (
    check_inputs,
    checked_ids,
    input_tensor,
    logits_port,
    one_id,
    read_logits,
    run_in_pieces,
)
from ovpasses.runtime.request_states import RequestStates
from ovpasses.runtime.resumable import Resumable
from ovpasses.runtime.states import StateStore


class Session(Resumable):
    """A sequence of tokens being run through a model; makes positions, masks and slots itself.

    Sessions of one compiled model are independent: each has its own infer request, so its own states.

    Args:
        compiled: a compiled stateful model (of preset ``stateful``), or a llama.cpp dump as it is, whose caches are
            inputs and outputs: the session keeps them then.
        info: what :func:`ovpasses.read_model` found out about the model.
        step: most tokens that one inference takes; a longer prompt is run in several.
        cells: tokens that caches outside the model hold, 256 when not given (or the model's context when that is less).
        slot: which of the sequences that such caches hold.
        beside: a session of the same compiled model, for another of them, with which to share the caches.
        rotation: sizes in elements of the Hadamard rotation that the model gives its keys and its values, 0 for none;
            a saved state has them too, and they must be the same.
        checkpoints: how many of the newest checkpoints the session keeps for :meth:`trim`.
        model: what was compiled, where :func:`ovpasses.compile_model` did not; saving needs its weights' fingerprint.

    Attributes:
        hidden_cells: cells that masks cover beyond the tokens, hidden from all; 0 but in checks of such graphs.

    Raises:
        StateError: the model needs inputs that a session cannot make, still has its caches outside, or there is no such
            slot, or it is another session's; or ``beside`` is of another compiled model.
    """

    def __init__(
        self,
        compiled: CompiledModel,
        info: GraphInfo,
        *,
        step: int = 512,
        cells: int | None = None,
        slot: int = 0,
        beside: Session | None = None,
        rotation: tuple[int, int] = (0, 0),
        checkpoints: int = 4,
        model: ImportedModel | Model | None = None,
    ) -> None:
        if step < 1:
            raise StateError(f"step is {step}, wanted at least 1 token")
        if cells is not None and cells < 1:
            raise StateError(f"cells is {cells}, wanted at least 1")
        self.info = info
        self.step = step
        self.hidden_cells = 0
        self._ports = {port.get_any_name(): port for port in compiled.inputs}
        self._roles = {name: info.roles.get(name, name) for name in self._ports}
        caches = _cache_inputs(self._ports, self._roles)
        check_inputs(self._ports, self._roles, caches, info)
        self._cache = _opened_caches(compiled, caches, cells, info) if beside is None else _shared(beside, compiled)
        if not 0 <= slot < self.sequences:
            raise StateError(f"slot is {slot}, but the caches hold {self.sequences} sequence(s)")
        if self._cache is not None and self._cache.users.setdefault(slot, self) is not self:
            raise StateError(f"slot {slot} is another session's already, wanted one of its own")
        self._slot = slot
        self._logits = logits_port(compiled, info)
        self._picks_rows = any(role in ROW_INPUTS for role in self._roles.values())
        self._inside = RequestStates(compiled, compiled.create_infer_request())
        cells_held = self._cache.cells if self._cache is not None else None
        weights = fingerprint_of(compiled, model)
        super().__init__(self._states(compiled), info, cells_held, rotation, weights, checkpoints)

    @property
    def sequences(self) -> int:
        """How many sequences the caches outside the model hold; 1 when they are inside."""
        return self._cache.sequences if self._cache is not None else 1

    def _states(self, compiled: CompiledModel) -> StateStore:
        """Of the model, or of its caches outside; only running goes with both."""
        cache, slot = self._cache, self._slot
        self._mixed = cache is not None and bool(self._inside.infos)
        if cache is None:
            return self._inside
        return CellStates(compiled, lambda: cache.views(slot), cache.cells, self.info)

    @property
    def _request(self) -> InferRequest:
        return self._inside.request

    def reset(self) -> None:
        self._failed = True  # until all states and the position are those of the start
        self._inside.clear()
        super().reset()

    def _check_known(self, what: str) -> None:
        if self._mixed:
            raise StateError(f"cannot {what}: some states are outside the model, some inside; run the preset stateful")
        super()._check_known(what)

    def prefill(
        self,
        tokens: Sequence[int] | np.ndarray,
        all_logits: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Run tokens after those run so far.

        Args:
            tokens: token ids, at least one.
            all_logits: return a row for every token instead of the last one only.
            progress: called with the number of tokens done after each inference.

        Returns:
            Logits f32 ``[T, vocab]`` or ``[1, vocab]``.

        Raises:
            StateError: no tokens, an id outside the vocabulary, or more tokens than the context holds.
                Nothing has been run then.
            DeviceError: the device failed; the session must be reset before it goes on.
        """
        ids = self.checked(tokens)

        def run(begin: int, end: int) -> np.ndarray:
            return self._infer(ids[begin:end], all_logits)

        return run_in_pieces(ids.size, self.step, run, all_logits, progress)

    def decode(self, token: int) -> np.ndarray:
        """Run one token.

        Returns:
            Logits f32 ``[1, vocab]``.

        Raises:
            StateError: as :meth:`prefill`.
        """
        return self._infer(self.checked(one_id(token)), False)

    def _run(self, feed: dict[str, Tensor]) -> None:
        self._failed = True  # also when an interrupt comes between the states' step and that of the position
        try:
            self._request.infer(feed)
        except RuntimeError as error:
            raise DeviceError(f"inference failed at position {self._position}: {one_line(error)}") from error

    def checked(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """Token ids as int64 ``[T]``, if they can be run now.

        Raises:
            StateError: as :meth:`prefill`.
        """
        if self._failed:
            raise StateError("an earlier inference of this session failed or was interrupted; reset it")
        ids = checked_ids(tokens, self.info.n_vocab)
        context = self.info.context_length
        if context is not None and self._position + ids.size > context:
            raise StateError(
                f"{ids.size} tokens at position {self._position} go past the model's context of {context} tokens; "
                "shorten the prompt or reset the session"
            )
        if self._cache is not None and self._position + ids.size > self._cache.cells:
            raise StateError(
                f"{ids.size} tokens at position {self._position} go past the {self._cache.cells} cells of the caches; "
                "open the session with more cells"
            )
        return ids

    def _infer(self, ids: np.ndarray, all_logits: bool) -> np.ndarray:
        rows = np.arange(ids.size) if all_logits else np.array([ids.size - 1])
        window = self.info.windows[0] if self.info.windows else None
        first = self._slot * self._cache.cells if self._cache is not None else 0
        planes = self.info.position_planes
        step = Step(
            ids, self._position, rows, planes, window, slot=self._slot, first_cell=first, hidden=self.hidden_cells
        )
        kept = self._cache.feed() if self._cache is not None else {}
        made = {n: input_tensor(n, MAKERS[self._roles[n]](step), p) for n, p in self._ports.items() if n not in kept}
        self._run({**made, **kept})
        if self._cache is not None:
            self._cache.take(self._request)
        self._position += ids.size
        self._failed = False
        logits = read_logits(self._request, self._logits)
        return logits if self._picks_rows else logits[rows]


def _opened_caches(
    compiled: CompiledModel, caches: dict[str, Any], cells: int | None, info: GraphInfo
) -> ExternalCache | None:
    return ExternalCache(compiled, caches, cells or default_cells(info)) if caches else None


def _shared(beside: Session, compiled: CompiledModel) -> ExternalCache:
    cache = beside._cache
    if cache is None or cache.compiled is not compiled:
        raise StateError("beside is no session of this compiled model with its caches outside, wanted one")
    return cache


def _cache_inputs(ports: dict[str, Any], roles: dict[str, str]) -> dict[str, Any]:
    """The caches that a session can keep outside: of a graph that takes write indices, or a list of slots."""
    kinds = [*(("cache_k", "cache_v") if "kv_write_idx" in roles.values() else ())]
    kinds += SLOT_KINDS if "rs_s_copy" in roles.values() else ()
    return {n: p for n, p in ports.items() if (found := CACHE_NAME.search(n)) is not None and found["kind"] in kinds}
