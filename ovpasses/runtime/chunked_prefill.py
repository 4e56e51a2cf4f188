"""ChunkedSession: token ids in, logits out, over a static pair of models for prefill and decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from openvino import CompiledModel, Model

from ovpasses.errors import DeviceError, StateError, one_line
from ovpasses.importers import ImportedModel
from ovpasses.importers.graph_info import RECURRENT, GraphInfo
from ovpasses.runtime.cell_states import CellStates
from ovpasses.runtime.fingerprint import pair_fingerprint
from ovpasses.runtime.inputs import MAKERS, MASK_INPUTS, POSITION_INPUTS, ROW_INPUTS, TOKEN_INPUTS, VALID_INPUT, Step
from ovpasses.runtime.ports import (
    check_inputs,
    checked_ids,
    input_tensor,
    last_dim,
    logits_port,
    one_id,
    read_logits,
    run_in_pieces,
)
from ovpasses.runtime.resumable import Resumable
from ovpasses.runtime.shared_caches import SharedCaches, carried_ports


class ChunkedSession(Resumable):
    """A sequence of tokens being run through a static pair: prompts in chunks, then token by token.

    The last chunk of a prompt is padded. Its padding is hidden by the masks, leaves recurrent states alone
    (``chunk_valid_len``), and its rows in the caches are overwritten by the next tokens. Both models read and write
    the same tensors, so nothing is copied between them or between calls.

    A chunk that would pad beyond the last cell is run token by token with the decode model. With ``all_logits``, a
    prefill model that gives fewer rows than it takes tokens is run once per group of rows.

    Args:
        prefill: a compiled model of preset ``static-prefill``.
        decode: a compiled model of preset ``static-decode``, of the same context.
        info: what :func:`ovpasses.read_model` found out about the model.
        pad_token: id that chunks are padded with; what it is makes no difference to any result.
        rotation, checkpoints, model: as :class:`Session` takes them.

    Raises:
        StateError: a model is not static or needs inputs that a session cannot make, the two do not fit each other or
            have other weights, or padding would reach the states of recurrent layers.
    """

    def __init__(
        self,
        prefill: CompiledModel,
        decode: CompiledModel,
        info: GraphInfo,
        *,
        pad_token: int = 0,
        rotation: tuple[int, int] = (0, 0),
        checkpoints: int = 4,
        model: ImportedModel | Model | None = None,
    ) -> None:
        self.info = info
        self._pad = int(checked_ids([pad_token], info.n_vocab)[0])
        self._prefill, self._decode = _Stage(prefill, info), _Stage(decode, info)
        if self._decode.tokens != 1:
            raise StateError(f"the decode model takes {self._decode.tokens} tokens, wanted 1")
        if self._prefill.cells != self._decode.cells:
            raise StateError(
                f"the prefill model has {self._prefill.cells} cells, the decode model {self._decode.cells}; "
                "rewrite both with one context"
            )
        recurrent = [layer.index for layer in info.layers if layer.kind == RECURRENT]
        if recurrent and self._prefill.tokens > 1 and not self._prefill.knows_padding:
            raise StateError(
                f"layer {recurrent[0]} is recurrent and the prefill model has no input {VALID_INPUT}, so padding "
                "would reach its state; run ChunkValidLen"
            )
        self._caches = SharedCaches(self._prefill.carried, self._decode.carried)
        states = CellStates(prefill, self._caches.arrays, self._prefill.cells, info)
        weights = pair_fingerprint(prefill, decode, model)
        super().__init__(states, info, self._prefill.cells, rotation, weights, checkpoints)

    @property
    def chunk(self) -> int:
        """Tokens of one prefill inference."""
        return self._prefill.tokens

    def state(self, name: str) -> np.ndarray:
        """A copy of a cache or recurrent state by its input name (``cache_k_l0``: only ``position`` cells count).

        Raises:
            StateError: there is none of that name.
        """
        return self._caches.value(name)

    def prefill(
        self,
        tokens: Sequence[int] | np.ndarray,
        all_logits: bool = False,
        progress: Callable[[int], None] | None = None,
        *,
        positions: np.ndarray | None = None,
    ) -> np.ndarray:
        """Run tokens after those run so far.

        Args:
            tokens: token ids, at least one.
            all_logits: return a row for every token instead of the last one only.
            progress: called with the number of tokens done after each chunk.
            positions: what the rotary embedding gets instead of the positions of text, int ``[planes, T]``.

        Returns:
            Logits f32 ``[T, vocab]`` or ``[1, vocab]``.

        Raises:
            StateError: no tokens, an id outside the vocabulary, positions of another shape, or more tokens than the
                context holds. Nothing has been run then.
            DeviceError: the device failed; the session must be reset before it goes on.
        """
        ids = self._checked(tokens)
        given = None if positions is None else self._checked_positions(positions, ids.size)

        def run(begin: int, end: int) -> np.ndarray:
            return self._piece(ids[begin:end], all_logits, None if given is None else given[:, begin:end])

        return run_in_pieces(ids.size, self.chunk, run, all_logits, progress)

    def decode(self, token: int) -> np.ndarray:
        """Run one token.

        Returns:
            Logits f32 ``[1, vocab]``.

        Raises:
            StateError: as :meth:`prefill`.
            DeviceError: as :meth:`prefill`.
        """
        return self._infer(self._decode, self._checked(one_id(token)), False, None)

    def _piece(self, ids: np.ndarray, all_logits: bool, given: np.ndarray | None) -> np.ndarray:
        cells = self._prefill.cells
        if cells is None or self._position + self.chunk <= cells:
            return self._infer(self._prefill, ids, all_logits, given)
        rows = [  # the padding has no cells left to go to
            self._infer(self._decode, ids[i : i + 1], True, None if given is None else given[:, i : i + 1])
            for i in range(ids.size)
        ]
        return np.concatenate(rows if all_logits else rows[-1:])

    def _infer(self, stage: _Stage, ids: np.ndarray, all_logits: bool, given: np.ndarray | None) -> np.ndarray:
        if self._failed:
            raise StateError("an earlier inference of this session failed or was interrupted; reset it")
        padded = np.concatenate([ids, np.full(stage.tokens - ids.size, self._pad)])
        wanted = np.arange(ids.size) if all_logits else np.array([ids.size - 1])
        groups = np.array_split(wanted, np.arange(stage.rows, wanted.size, stage.rows))
        self._caches.bind(stage.request, stage.carried)
        try:
            # Until the caches advance, an inference may be repeated: it reads what the one before it has read.
            logits = [stage.infer(padded, self._position, ids.size, rows, given) for rows in groups]
        except RuntimeError as error:
            self._failed = True
            raise DeviceError(f"inference failed at position {self._position}: {one_line(error)}") from error
        self._failed = True  # until the position goes with the caches again, whatever interrupts it
        self._caches.advance()
        self._position += ids.size
        self._failed = False
        return np.concatenate(logits)

    def _checked(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        ids = checked_ids(tokens, self.info.n_vocab)
        capacity = self.capacity
        if capacity is not None and self._position + ids.size > capacity:
            raise StateError(
                f"{ids.size} tokens at position {self._position} go past the context of {capacity} tokens; "
                "shorten the prompt, reset the session, or rewrite both models with a larger context"
            )
        return ids

    def _checked_positions(self, positions: np.ndarray, count: int) -> np.ndarray:
        given = np.asarray(positions)
        wanted = (self._prefill.planes, count)
        if given.shape != wanted or not np.issubdtype(given.dtype, np.integer):
            raise StateError(f"positions are {given.dtype} {list(given.shape)}, wanted integers {list(wanted)}")
        return given.astype(np.int64)


class _Stage:
    """One of the two models: its ports, and how many tokens, rows and cells they have."""

    def __init__(self, compiled: CompiledModel, info: GraphInfo) -> None:
        self._info = info
        ports = {port.get_any_name(): port for port in compiled.inputs}
        self._roles = {name: info.roles.get(name, name) for name in ports}
        for name, port in ports.items():
            if port.get_partial_shape().is_dynamic:
                raise StateError(
                    f"input {name} {port.get_partial_shape()} is dynamic, wanted a model of the preset "
                    "static-prefill or static-decode"
                )
        self.carried = carried_ports(compiled)
        check_inputs(ports, self._roles, self.carried, info)
        self._made = {name: port for name, port in ports.items() if name not in self.carried}
        self._logits = logits_port(compiled, info)
        tokens = self._last(TOKEN_INPUTS)
        if tokens is None:
            raise StateError(f"the model has no input for tokens, wanted one of {', '.join(TOKEN_INPUTS)}")
        self.tokens = tokens
        self.cells = self._last(MASK_INPUTS)
        self.planes = (self._last(POSITION_INPUTS) or tokens) // tokens
        self._row_count = self._last(ROW_INPUTS)
        self.rows = self._row_count or tokens
        self.knows_padding = VALID_INPUT in self._roles.values()
        self.request = compiled.create_infer_request()

    def _last(self, roles: tuple[str, ...]) -> int | None:
        return next((last_dim(port) for name, port in self._made.items() if self._roles[name] in roles), None)

    def infer(
        self, tokens: np.ndarray, start: int, real: int, rows: np.ndarray, given: np.ndarray | None
    ) -> np.ndarray:
        """Run one chunk; the logits of its ``rows``, f32 ``[R, vocab]``."""
        window = self._info.windows[0] if self._info.windows else None
        filled = np.concatenate([rows, np.full(self.rows - rows.size, rows[-1])])
        step = Step(tokens, start, filled, self.planes, window, real, self.cells, given)
        self.request.infer({n: input_tensor(n, MAKERS[self._roles[n]](step), p) for n, p in self._made.items()})
        logits = read_logits(self.request, self._logits)
        return logits[: rows.size] if self._row_count else logits[rows]
