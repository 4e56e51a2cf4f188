"""Session: token ids in, logits out, over a compiled stateful model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from openvino import CompiledModel, Tensor
from openvino import Type as ElementType

from ovpasses.errors import DeviceError, StateError, one_line
from ovpasses.ggml_names import CACHE_NAME, PAST_NAME
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.inputs import MAKERS, Step

ROW_INPUTS = ("inp_out_ids", "out_ids")


class Session:
    """A sequence of tokens being run through a model; makes positions, masks and slots itself.

    Sessions of one compiled model are independent: each has its own infer request, so its own states.

    Args:
        compiled: a compiled stateful model (of preset ``stateful``).
        info: what :func:`ovpasses.read_model` found out about the model.
        step: most tokens that one inference takes; a longer prompt is run in several.

    Raises:
        StateError: the model needs inputs that a session cannot make, or still has its caches outside.
    """

    def __init__(self, compiled: CompiledModel, info: GraphInfo, *, step: int = 512) -> None:
        if step < 1:
            raise StateError(f"step is {step}, wanted at least 1 token")
        self.info = info
        self.step = step
        self._ports = {port.get_any_name(): port for port in compiled.inputs}
        _check_inputs(self._ports, info)
        self._logits = _logits_port(compiled, info)
        self._picks_rows = any(name in self._ports for name in ROW_INPUTS)
        self._request = compiled.create_infer_request()
        self._position = 0
        self._failed = False

    @property
    def position(self) -> int:
        """Tokens run so far; the next one gets this position."""
        return self._position

    def reset(self) -> None:
        """Forget everything: the next token is at position 0 again."""
        self._request.reset_state()
        self._position = 0
        self._failed = False

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
        rows: list[np.ndarray] = []
        for begin in range(0, ids.size, self.step):
            piece = ids[begin : begin + self.step]
            logits = self._infer(piece, all_logits)
            rows = [*rows, logits] if all_logits else [logits]
            if progress is not None:
                progress(begin + piece.size)
        return np.concatenate(rows)

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
        ids = np.asarray(tokens).reshape(-1)
        if ids.size == 0:
            raise StateError("the prompt is empty, wanted at least one token")
        if not np.issubdtype(ids.dtype, np.integer):
            raise StateError(f"token ids are {ids.dtype}, wanted integers")
        ids = ids.astype(np.int64)
        vocab = self.info.n_vocab
        wrong = ids[(ids < 0) | (ids >= vocab)] if vocab is not None else ids[ids < 0]
        if wrong.size:
            known = f"0 to {vocab - 1}" if vocab is not None else "at least 0"
            raise StateError(f"token id {wrong[0]} is outside the vocabulary, wanted {known}")
        context = self.info.context_length
        if context is not None and self._position + ids.size > context:
            raise StateError(
                f"{ids.size} tokens at position {self._position} go past the model's context of {context} tokens; "
                "shorten the prompt or reset the session"
            )
        return ids

    def _infer(self, ids: np.ndarray, all_logits: bool) -> np.ndarray:
        rows = np.arange(ids.size) if all_logits else np.array([ids.size - 1])
        window = self.info.windows[0] if self.info.windows else None
        step = Step(ids, self._position, rows, self.info.position_planes, window)
        feed = {name: _tensor(MAKERS[name](step), port) for name, port in self._ports.items()}
        self._run(feed)
        self._position += ids.size
        output = np.array(self._request.get_tensor(self._logits).data, dtype=np.float32)
        logits = output.reshape(-1, output.shape[-1])
        return logits if self._picks_rows else logits[rows]


def _tensor(value: np.ndarray, port: Any) -> Tensor:
    """A value with the port's element type, and 1-dims in front up to its rank."""
    rank = port.get_partial_shape().rank.get_length()
    shape = (1,) * (rank - value.ndim) + value.shape
    return Tensor(np.ascontiguousarray(value.astype(_dtype(port)).reshape(shape)))


def _dtype(port: Any) -> Any:
    return port.get_element_type().to_dtype()


def _check_inputs(ports: dict[str, Any], info: GraphInfo) -> None:
    for name, port in ports.items():
        if name in MAKERS:
            continue
        shape = f"{port.get_element_type().get_type_name()} {port.get_partial_shape()}"
        if CACHE_NAME.search(name) or PAST_NAME.match(name):
            raise StateError(f"input {name} {shape} is a cache outside the model; run the preset stateful first")
        raise StateError(f"input {name} {shape} is none that a session can make, known are {', '.join(MAKERS)}")
    if "self_kq_mask_swa" in ports and len(info.windows) != 1:
        raise StateError(f"input self_kq_mask_swa needs one sliding window, the model's info has {info.windows}")


def _logits_port(compiled: CompiledModel, info: GraphInfo) -> Any:
    floats = [
        o for o in compiled.outputs if o.get_element_type() in (ElementType.f32, ElementType.f16, ElementType.bf16)
    ]
    wanted = [o for o in floats if _last_dim(o) == info.n_vocab]
    found = wanted or floats
    if not found:
        raise StateError("the model has no floating-point output, wanted logits")
    return found[-1]


def _last_dim(port: Any) -> int | None:
    shape = port.get_partial_shape()
    last = shape[shape.rank.get_length() - 1] if shape.rank.is_static and shape.rank.get_length() else None
    return last.get_length() if last is not None and last.is_static else None
