"""The header of a .safetensors file, made and read: its metadata, and where each tensor is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

# Far more than thousands of tensors need, and little enough to be read at once whatever is in it.
MOST_BYTES = 4 << 20

_TYPES: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
# The data begins at a multiple of this, in bytes, so every tensor is aligned to its type and the first to a cache line.
_ALIGNED = 64


@dataclass(frozen=True)
class TensorPlace:
    """One tensor of a file.

    Attributes:
        name: of the tensor.
        dtype: f16, f32 or i64.
        shape: in elements.
        begin, end: of its bytes, counted from the first byte after the header.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


def places(tensors: Iterable[tuple[str, np.dtype[Any], tuple[int, ...]]]) -> list[TensorPlace]:
    """One tensor after the other without a gap, the widest types first."""
    found: list[TensorPlace] = []
    for name, dtype, shape in sorted(tensors, key=lambda tensor: (-tensor[1].itemsize, tensor[0])):
        begin = found[-1].end if found else 0
        found.append(TensorPlace(name, dtype, shape, begin, begin + dtype.itemsize * prod(shape)))
    return found


def header_bytes(metadata: Mapping[str, str], tensors: Iterable[TensorPlace]) -> bytes:
    """What a file begins with: the length of the header, 8 bytes, and the header."""
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    for place in tensors:
        where = [place.begin, place.end]
        table[place.name] = {"dtype": _NAMES[place.dtype], "shape": list(place.shape), "data_offsets": where}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def read_header(header: bytes, size: int) -> tuple[dict[str, str], list[TensorPlace]]:
    """The metadata, and all tensors in the order of their bytes.

    Args:
        header: without its length.
        size: bytes that come after it.

    Raises:
        ValueError: it is none of :func:`header_bytes`, or its tensors are not exactly those bytes.
    """
    table = strict_json(header.decode())
    metadata = table.pop("__metadata__", None) if isinstance(table, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its header has no metadata, or other than text")
    found = sorted((_place(name, entry) for name, entry in table.items()), key=lambda place: (place.begin, place.end))
    end = 0
    for place in found:
        if place.begin != end:
            raise ValueError(f"tensor {shown(place.name)} begins at byte {place.begin}, wanted {end}")
        end = place.end
    if end != size:
        raise ValueError(f"{size} bytes of tensors, its header has {end}")
    return metadata, found


def _place(name: str, entry: Any) -> TensorPlace:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {shown(name)} is not described by dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = _TYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None or not are_sizes(shape) or not are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {shown(name)} is {shown(kind)} {shown(shape)} at {shown(offsets)}")
    begin, end = offsets
    if len(shape) > 8 or end - begin != dtype.itemsize * prod(shape):
        raise ValueError(f"tensor {shown(name)} is {kind} {shown(shape)} in {end - begin} bytes")
    return TensorPlace(name, dtype, tuple(shape), begin, end)


def are_sizes(value: Any) -> bool:
    """Whether it is a list of integers, 0 or more."""
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)


def shown(value: Any) -> str:
    """A value from a file in a message: on one line, however long it is."""
    text = value if isinstance(value, str) and value.isprintable() else ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def strict_json(text: str) -> Any:
    """What a JSON text says, if it says one thing only and ovpasses may have written it.

    Raises:
        ValueError: it is no JSON, has a key twice, a number that is no integer of 64 bits, or text that is no Unicode.
    """
    try:
        found = json.loads(
            text, object_pairs_hook=_unique, parse_int=_integer, parse_float=_refused, parse_constant=_refused
        )
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except RecursionError as error:
        raise ValueError("too deep a JSON text") from error
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a JSON text with a key twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > 19 or abs(int(digits)) >= 1 << 63:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _refused(number: str) -> Any:
    raise ValueError(f"the number {shown(number)}, wanted an integer")
