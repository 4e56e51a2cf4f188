"""Session: token ids in, logits out, over a compiled stateful model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from openvino import CompiledModel, Model, Tensor

from ovpasses.errors import DeviceError, StateError, one_line
from ovpasses.ggml_names import CACHE_NAME
from ovpasses.importers import ImportedModel
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.checkpoints import Checkpoint, Checkpoints
from ovpasses.runtime.external_cache import DEFAULT_CELLS, SLOT_KINDS, ExternalCache
from ovpasses.runtime.fingerprint import fingerprint_of
from ovpasses.runtime.inputs import MAKERS, ROW_INPUTS, Step
from ovpasses.runtime.ports import check_inputs, checked_ids, input_tensor, logits_port, run_in_pieces
from ovpasses.runtime.state_keeper import StateKeeper, checked_rotation
from ovpasses.runtime.states import States, Values


class Session:
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

    Raises:
        StateError: the model needs inputs that a session cannot make, still has its caches outside, or there is no such
            slot.
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
        self._ports = {port.get_any_name(): port for port in compiled.inputs}
        self._roles = {name: info.roles.get(name, name) for name in self._ports}
        caches = _cache_inputs(self._ports, self._roles)
        check_inputs(self._ports, self._roles, caches, info)
        default = min(DEFAULT_CELLS, info.context_length or DEFAULT_CELLS)
        self._cache = ExternalCache(compiled, caches, cells or default) if caches and beside is None else None
        self._cache = beside._cache if beside is not None else self._cache
        if not 0 <= slot < self.sequences:
            raise StateError(f"slot is {slot}, but the caches hold {self.sequences} sequence(s)")
        self._slot = slot
        self._logits = logits_port(compiled, info)
        self._picks_rows = any(role in ROW_INPUTS for role in self._roles.values())
        self._request = compiled.create_infer_request()
        self._position = 0
        self._failed = False
        self._keeper = StateKeeper(
            States(compiled, self._request), info, checked_rotation(rotation), fingerprint_of(compiled, model)
        )
        self._checkpoints = Checkpoints(checkpoints)

    @property
    def position(self) -> int:
        """Tokens run so far; the next one gets this position."""
        return self._position

    @property
    def sequences(self) -> int:
        """How many sequences the caches outside the model hold; 1 when they are inside."""
        return self._cache.sequences if self._cache is not None else 1

    def reset(self) -> None:
        """Forget everything: the next token is at position 0 again. Other sequences of the same caches go on."""
        self._request.reset_state()
        if self._cache is not None:
            self._cache.reset(self._slot)
        self._checkpoints.clear()
        self._position = 0
        self._failed = False

    def trim(self, n: int) -> int:
        """Keep the first ``n`` tokens and forget those after them; each state is cut along its own sequence axis.

        A recurrent state cannot be cut: then the session goes back to the latest checkpoint at or before ``n``, and the
        tokens from there to ``n`` are to be run again.

        Args:
            n: tokens to keep, at most :attr:`position`; all is nothing to do, 0 is a reset.

        Returns:
            The position now: ``n``, or that of the checkpoint.

        Raises:
            StateError: ``n`` is no such number, a recurrent state stands in the way and there is no checkpoint, or
                states cannot be read exactly. The session is as it was.
        """
        self._keeper.check_count(n, self._position)
        if n == self._position and not self._failed:
            return self._position
        if n == 0:
            self.reset()
            return 0
        self._check_inside("trim")
        checkpoint = self._checkpoints.at_or_before(n) if self._keeper.states.recurrent else None
        if checkpoint is not None:
            return self.restore(checkpoint)
        before = self._keeper.states.read(self._position)
        self._take(self._keeper.cut(before, int(n), self._position), before, int(n))
        self._checkpoints.went_back(n)
        return self._position

    def checkpoint(self) -> Checkpoint:
        """Copy all states, recurrent ones too.

        Returns:
            What :meth:`restore` takes, in this session or in another one of the same compiled model. The session keeps
            the newest ones itself, for :meth:`trim`.

        Raises:
            StateError: states cannot be read exactly, or are outside the model.
        """
        self._check_inside("checkpoint")
        values = self._keeper.states.read(self._position)
        found = Checkpoint(self._position, values, self._keeper.states.compiled)
        self._checkpoints.add(found)
        return found

    def save(self, path: str | os.PathLike[str], tokens: Sequence[int] | np.ndarray | None = None) -> None:
        """Write all states to a ``.safetensors`` file, whole or not at all.

        Args:
            path: the file; one that is there is replaced.
            tokens: the ids that were run, to be kept with them.

        Raises:
            StateError: states cannot be read exactly, or are outside the model; the weights' fingerprint is not known;
                there are more tokens or fewer than were run; or the file cannot be written.
        """
        self._check_inside("save")
        ids = None if tokens is None else np.asarray(tokens, dtype=np.int64).reshape(-1)
        if ids is not None and ids.size != self._position:
            raise StateError(f"{ids.size} tokens are given to save with the state, wanted the {self._position} run")
        self._keeper.save(path, self._position, ids)

    def restore(self, source: Checkpoint | str | os.PathLike[str]) -> int:
        """Take the states of a checkpoint or of a file in place of those that are; the next token costs one step.

        Args:
            source: from :meth:`checkpoint` or :meth:`save`. A file may come from another layout of the same model.

        Returns:
            The position now.

        Raises:
            StateError: the checkpoint is of another compiled model; the file cannot be read, is damaged, or is of
                another model, rotation, type or format version. The session is as it was.
        """
        self._check_inside("restore")
        before = self._keeper.states.read(self._position)
        if isinstance(source, Checkpoint):
            self._take(self._keeper.of_checkpoint(source), before, source.position)
            self._checkpoints.restored(source)
        else:
            values, position = self._keeper.of_file(source, before, self._position)
            self._take(values, before, position)
            self._checkpoints.clear()
        return self._position

    def _take(self, values: Values, before: Values, position: int) -> None:
        """Set all states; at position 0 they are those of a new session."""
        try:
            self._keeper.states.write(values if position else {}, before if self._position else {})
        except DeviceError:
            self._failed = True
            raise
        self._position = position

    def _check_inside(self, what: str) -> None:
        """Refuse what needs states inside the model, and that they are known."""
        if self._cache is not None:
            raise StateError(f"cannot {what}: the caches are outside the model; run the preset stateful first")
        if self._failed:
            raise StateError(f"cannot {what}: an earlier inference failed half way, states are not known; reset it")

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
        ids = self._checked(tokens)

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
        return self._infer(self._checked([token]), False)

    def _run(self, feed: dict[str, Tensor]) -> None:
        if self._failed:
            raise StateError("an earlier inference of this session failed half way, its states are not known; reset it")
        try:
            self._request.infer(feed)
        except RuntimeError as error:
            self._failed = True
            raise DeviceError(f"inference failed at position {self._position}: {one_line(error)}") from error

    def _checked(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
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
        step = Step(ids, self._position, rows, planes, window, slot=self._slot, first_cell=first)
        kept = self._cache.feed() if self._cache is not None else {}
        made = {n: input_tensor(n, MAKERS[self._roles[n]](step), p) for n, p in self._ports.items() if n not in kept}
        self._run({**made, **kept})
        if self._cache is not None:
            self._cache.take(self._request)
        self._position += ids.size
        output = np.array(self._request.get_tensor(self._logits).data, dtype=np.float32)
        logits = output.reshape(-1, output.shape[-1])
        return logits if self._picks_rows else logits[rows]


def _cache_inputs(ports: dict[str, Any], roles: dict[str, str]) -> dict[str, Any]:
    """The caches that a session can keep outside: of a graph that takes write indices, or a list of slots."""
    kinds = [*(("cache_k", "cache_v") if "kv_write_idx" in roles.values() else ())]
    kinds += SLOT_KINDS if "rs_s_copy" in roles.values() else ()
    return {n: p for n, p in ports.items() if (found := CACHE_NAME.search(n)) is not None and found["kind"] in kinds}
