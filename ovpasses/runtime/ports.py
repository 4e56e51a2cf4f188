"""What sessions ask of a compiled model's inputs and outputs, and how a value becomes an input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from openvino import CompiledModel, InferRequest, Tensor
from openvino import Type as ElementType

from ovpasses.errors import StateError, one_line
from ovpasses.ggml_names import CACHE_NAME, PAST_NAME
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.external_cache import is_cache_output
from ovpasses.runtime.inputs import MAKERS

ASK = "give the info of the model's GGUF to read_model (info=, on the command line --info)"

# Of ggml's graphs, and of what Hugging Face exports.
LOGITS_NAMES = {"result_output", "logits"}


def run_in_pieces(
    count: int,
    size: int,
    run: Callable[[int, int], np.ndarray],
    all_logits: bool,
    progress: Callable[[int], None] | None,
) -> np.ndarray:
    """Run ``count`` tokens in pieces of at most ``size``.

    Args:
        count: tokens, at least one.
        size: tokens that one piece takes.
        run: runs the tokens from one index to another; returns their logits ``[rows, vocab]``.
        all_logits: keep the rows of all pieces instead of those of the last one.
        progress: called with the number of tokens done after each piece.

    Returns:
        Logits ``[rows, vocab]``.
    """
    rows: list[np.ndarray] = []
    for begin in range(0, count, size):
        end = min(begin + size, count)
        logits = run(begin, end)
        if not all_logits:
            rows.clear()
        rows.append(logits)
        if progress is not None:
            progress(end)
    return np.concatenate(rows)


def checked_ids(tokens: Sequence[int] | np.ndarray, n_vocab: int | None) -> np.ndarray:
    """Token ids as int64 ``[T]``.

    Args:
        tokens: at least one id.
        n_vocab: number of ids there are; None when not known.

    Raises:
        StateError: there is none, one is no integer, or one is outside the vocabulary.
    """
    ids = integer_ids(tokens)
    if ids.size == 0:
        raise StateError("the prompt is empty, wanted at least one token")
    wrong = ids[(ids < 0) | (ids >= n_vocab)] if n_vocab is not None else ids[ids < 0]
    if wrong.size:
        known = f"0 to {n_vocab - 1}" if n_vocab is not None else "at least 0"
        raise StateError(f"token id {wrong[0]} is outside the vocabulary, wanted {known}")
    return ids


def one_id(token: int) -> np.ndarray:
    """A token id for an inference of one token, as int64 ``[1]``.

    Raises:
        StateError: it is no integer, or there are several.
    """
    ids = integer_ids(np.asarray(token))
    if ids.size != 1:
        raise StateError(f"{ids.size} tokens are given to decode, wanted 1; prefill takes several")
    return ids


def integer_ids(tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """Integers as int64 ``[T]``, none too.

    Raises:
        StateError: one is no integer.
    """
    try:
        ids = np.asarray(tokens).reshape(-1)
    except ValueError as error:
        raise StateError(f"token ids are no list of integers: {one_line(error)}") from error
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise StateError(f"token ids are {ids.dtype}, wanted integers")
    return ids.astype(np.int64)


def input_tensor(name: str, value: np.ndarray, port: Any) -> Tensor:
    """A value with the port's element type, and 1-dims in front up to its rank.

    Args:
        name: of the input, for the message.
        value: integers for an integer input, floats of any width for a floating-point one.
        port: the compiled model's input.

    Raises:
        StateError: integers for a floating-point input or the other way round.
    """
    element = port.get_element_type()
    if np.issubdtype(value.dtype, np.floating) != element.is_real():
        raise StateError(f"input {name} is {element.get_type_name()}, given {value.dtype}; convert it first")
    rank = port.get_partial_shape().rank.get_length()
    shape = (1,) * (rank - value.ndim) + value.shape
    return Tensor(np.ascontiguousarray(value.astype(element.to_dtype()).reshape(shape)))


def read_logits(request: InferRequest, port: Any) -> np.ndarray:
    """A copy of the logits of the last inference, f32 ``[rows, vocab]``."""
    output = np.array(request.get_tensor(port).data, dtype=np.float32)
    return output.reshape(-1, output.shape[-1])


def check_inputs(
    ports: dict[str, Any], roles: dict[str, str], kept: Collection[str], info: GraphInfo, *, several: bool = False
) -> None:
    """Make sure that a session can make every input.

    Args:
        ports: the inputs by name.
        roles: input name to role.
        kept: names of the caches that the session keeps outside the model.
        info: of the model.
        several: the session runs several sequences in a batch.

    Raises:
        StateError: an input is none of those, needs a sliding window that ``info`` does not tell, or lists a fixed
            number of sequences for a session of one.
    """
    listed = next((port for name, port in ports.items() if roles[name] == "seq_active"), None)
    if listed is not None and not several and last_dim(listed) not in (None, 1):
        raise StateError(f"the model runs {last_dim(listed)} sequences in a batch, this session one; use SlotSessions")
    for name, port in ports.items():
        if roles[name] in MAKERS or name in kept:
            continue
        shape = f"{port.get_element_type().get_type_name()} {port.get_partial_shape()}"
        if CACHE_NAME.search(name) or PAST_NAME.match(name):
            static = port.get_partial_shape().is_static
            hint = (
                "give both models of the static pair to ChunkedSession" if static else "run the preset stateful first"
            )
            raise StateError(f"input {name} {shape} is a cache outside the model; {hint}")
        raise StateError(f"input {name} {shape} is none that a session can make, known are {', '.join(MAKERS)}")
    sliding = [name for name, role in roles.items() if role == "self_kq_mask_swa"]
    if sliding and len(info.windows) != 1:
        raise StateError(f"input {sliding[0]} needs one sliding window, the model's info has {info.windows}; {ASK}")
    full = [name for name, role in roles.items() if role == "self_kq_mask"]
    if full and info.windows and not sliding:
        raise StateError(
            f"layers have a sliding window of {info.windows} tokens, but {full[0]} is the only mask; "
            f"{ASK}, which then gives them a mask of their own"
        )


def logits_port(compiled: CompiledModel, info: GraphInfo) -> Any:
    """The output that holds the logits: floating-point, no cache, and as wide as the vocabulary where that is known.

    Of several such the one with the name of logits, else the last.

    Raises:
        StateError: there is none.
    """
    floats = [
        o for o in compiled.outputs if o.get_element_type() in (ElementType.f32, ElementType.f16, ElementType.bf16)
    ]
    floats = [o for o in floats if not is_cache_output(o)]
    wanted = [o for o in floats if last_dim(o) == info.n_vocab]
    found = wanted or floats
    if not found:
        raise StateError("the model has no floating-point output, wanted logits")
    return next((o for o in found if LOGITS_NAMES & _names(o)), found[-1])


def _names(port: Any) -> set[str]:
    """All names of an output, without the number that a dump puts behind one."""
    return {name.split("#")[0] for name in (*port.get_names(), port.get_node().get_friendly_name())}


def last_dim(port: Any) -> int | None:
    """The last dim of a port's shape, None when it is dynamic or there is none."""
    shape = port.get_partial_shape()
    last = shape[shape.rank.get_length() - 1] if shape.rank.is_static and shape.rank.get_length() else None
    return last.get_length() if last is not None and last.is_static else None
