"""Saved states: one .safetensors file that says what a session must be to take them.

The header holds the digest of every tensor, XXH3's of 128 bits, and its own checksum: with zeros in the place of that,
the digest of the header. So a header is checked before anything that it says is believed, and a file larger than it
should be is never read. Digests find damage; who can write the file can write them too.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from typing import Any

import numpy as np
from xxhash import xxh3_128, xxh3_128_hexdigest

from ovpasses.errors import StateError, one_line
from ovpasses.runtime.background_flush import BackgroundFlush
from ovpasses.runtime.replaced_file import replacing
from ovpasses.runtime.state_header import StateHeader
from ovpasses.runtime.states import EXACT_TYPES, Values
from ovpasses.runtime.tensor_table import MOST_BYTES, TensorPlace, header_bytes, places, read_header, shown, strict_json

FORMAT, VERSION = "ovpasses-state", "3"

_BLANK = "0" * 32
TOKENS = "tokens"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class SavedState:
    """What a state file holds.

    Attributes:
        header: what the states belong to.
        values: the states by name, f16 or f32, in the layout that they were saved from; none at position 0.
        tokens: the token ids that were run, int64 ``[position]``, when they were given at saving.
        checkpoints: by position the recurrent states of each checkpoint, by name; none of one at position 0. Of the
            others a checkpoint has the first rows of ``values``.
    """

    header: StateHeader
    values: Mapping[str, np.ndarray]
    tokens: np.ndarray | None = None
    checkpoints: Mapping[int, Mapping[str, np.ndarray]] = field(default_factory=dict)

    def tensor(self, name: str) -> np.ndarray:
        """A tensor by its name in the file."""
        if name == TOKENS and self.tokens is not None:
            return self.tokens
        at, state = state_of(name)
        return self.values[state] if at is None else self.checkpoints[at][state]


def state_of(name: str) -> tuple[int | None, str]:
    """The state that a tensor of a file is, and the position of the checkpoint that it is of, None for none."""
    kind, _, rest = name.partition(".")
    if kind == "state":
        return None, rest
    position, _, state = rest.partition(".")
    return int(position), state


def write_state_file(path: str | os.PathLike[str], saved: SavedState) -> None:
    """Write a state file whole or not at all: beside the target, flushed to the disk, and renamed.

    Args:
        path: the file; one that is there is replaced.
        saved: what it is to hold. Each value is asked for once, when it is written.

    Raises:
        StateError: the file cannot be written, or a value is none of the header; what was there before is unchanged.
    """
    tensors = places((name, *kind) for name, kind in _described(saved.header, saved.tokens is not None).items())
    room = len(_signed(saved.header, tensors, {place.name: _BLANK for place in tensors}))
    digests = {}
    if room > MOST_BYTES:
        raise StateError(f"{path}: cannot be written: its header has {room} bytes, at most {MOST_BYTES} can be read")
    try:
        size = room + (tensors[-1].end if tensors else 0)
        with replacing(path) as file, BackgroundFlush(file, size) as flushed:
            file.seek(room)
            for place in tensors:
                value = np.asarray(saved.tensor(place.name), order="C")
                if (value.shape, value.dtype) != (place.shape, place.dtype):
                    wanted = f"{place.dtype} {list(place.shape)}"
                    raise StateError(f"{path}: {place.name} is {value.dtype} {list(value.shape)}, wanted {wanted}")
                if place.name == TOKENS:
                    _check_tokens(path, value)
                digest = xxh3_128()
                for chunk in _chunks(value):
                    digest.update(chunk)
                    flushed.write(chunk)
                digests[place.name] = digest.hexdigest()
            file.seek(0)
            flushed.write(memoryview(_signed(saved.header, tensors, digests)))
    except (OSError, ValueError, MemoryError, RuntimeError) as error:
        raise StateError(f"{path}: cannot be written: {_reason(error)}") from error


def _described(header: StateHeader, tokens: bool) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Type and shape of every tensor that a file with this header holds."""
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    if tokens:
        found[TOKENS] = (np.dtype(np.int64), (header.position,))
    if header.position:
        found |= {f"state.{state.name}": (EXACT_TYPES[state.dtype], tuple(state.shape)) for state in header.states}
    for position in header.checkpoints:
        for state in header.recurrent if position else ():
            found[f"checkpoint.{position}.{state.name}"] = (EXACT_TYPES[state.dtype], tuple(state.shape))
    return found


def _signed(header: StateHeader, tensors: list[TensorPlace], digests: Mapping[str, str]) -> bytes:
    """The header of a file, its checksum in its place."""
    fixed = {"format": FORMAT, "version": VERSION, "checksum": _BLANK}
    blank = header_bytes({**fixed, **header.to_metadata(), "digests": json.dumps(digests)}, tensors)
    return blank.replace(f'"checksum":"{_BLANK}"'.encode(), f'"checksum":"{_sum(blank)}"'.encode(), 1)


def _sum(blank: bytes) -> str:
    return xxh3_128_hexdigest(blank)


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or one_line(error)


class StateFile:
    """A state file whose header has been read and found whole.

    Attributes:
        header: what the states belong to.
    """

    def __init__(self, path: str | os.PathLike[str], file: FileIO) -> None:
        self._path = path
        self._file = file
        self.header, self._tensors, self._digests = _read_header(path, file)
        self._begin = file.tell()

    def read(self) -> SavedState:
        """The states, every byte checked, each in memory of its own.

        Raises:
            StateError: the file is damaged, or there is no memory for it.
        """
        tokens = None
        values: Values = {}
        checkpoints: dict[int, Values] = {at: {} for at in self.header.checkpoints}
        for name, value in self.tensors():
            if name == TOKENS:
                tokens = value
                continue
            at, state = state_of(name)
            (values if at is None else checkpoints[at])[state] = value
        return SavedState(self.header, values, tokens, checkpoints)

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and value of every tensor in the order of the file, each checked, and in memory of its own.

        Raises:
            StateError: as :meth:`read`, when the tensor is asked for; some may have been given by then.
        """
        for place in self._tensors:
            yield place.name, self._read(place)

    def tokens(self) -> np.ndarray | None:
        """The token ids that were run, int64 ``[position]``, if it holds them; nothing else is read.

        Raises:
            StateError: as :meth:`read`.
        """
        place = next((place for place in self._tensors if place.name == TOKENS), None)
        return None if place is None else self._read(place)

    def _read(self, place: TensorPlace) -> np.ndarray:
        digest = xxh3_128()
        try:
            self._file.seek(self._begin + place.begin)
            value = np.empty(place.shape, place.dtype)
            for chunk in _chunks(value):
                _fill(self._path, self._file, chunk)
                digest.update(chunk)
        except (OSError, MemoryError, RuntimeError) as error:
            raise StateError(f"{self._path}: cannot be read: {_reason(error)}") from error
        if digest.hexdigest() != self._digests[place.name]:
            raise StateError(f"{self._path}: is damaged in {place.name}; save the state anew")
        if place.name == TOKENS:
            _check_tokens(self._path, value)
        return value


@contextmanager
def open_state_file(path: str | os.PathLike[str]) -> Iterator[StateFile]:
    """Open a state file and check its header.

    Args:
        path: the file.

    Raises:
        StateError: it is missing, no regular file, of another format or version, damaged, or its parts do not fit each
            other.
    """
    # Without O_NONBLOCK a pipe that nobody writes to would be waited for.
    flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        file = FileIO(os.fspath(path), "rb", opener=lambda name, mode: os.open(name, mode | flags))
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: cannot be read: {_reason(error)}") from error
    with file:
        yield StateFile(path, file)


def read_state_file(path: str | os.PathLike[str]) -> SavedState:
    """Read a state file, every byte of it checked.

    Args:
        path: the file.

    Raises:
        StateError: as :func:`open_state_file` and :meth:`StateFile.read`.
    """
    with open_state_file(path) as file:
        return file.read()


def _read_header(
    path: str | os.PathLike[str], file: FileIO
) -> tuple[StateHeader, list[TensorPlace], Mapping[str, str]]:
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise StateError(f"{path}: cannot be read: it is no regular file")
    start = bytearray(8)
    if found.st_size >= len(start):
        _fill(path, file, memoryview(start))
    length, most = int.from_bytes(start, "little"), min(found.st_size - 8, MOST_BYTES)
    if not 2 <= length <= most:
        raise StateError(
            f"{path}: is no .safetensors file, or damaged: it has {found.st_size} bytes, and its header alone {length}"
        )
    header = bytearray(length)
    _fill(path, file, memoryview(header))
    try:
        metadata, tensors = read_header(bytes(header), found.st_size - 8 - length)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: is no .safetensors file with metadata, or damaged: {error}") from error
    if metadata.get("format") != FORMAT:
        raise StateError(f"{path}: is a .safetensors file, but no state that ovpasses saved")
    version = shown(metadata.get("version", "(none)"))
    if version != VERSION:
        raise StateError(f"{path}: has format version {version}, wanted {VERSION}; save the state anew")
    _check_sum(path, bytes(start + header), metadata.get("checksum", ""))
    try:
        described = StateHeader.from_metadata(metadata)
        digests = strict_json(metadata.get("digests", "null"))
        _check_tensors(described, tensors, digests)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: cannot be used: {error}; save the state anew") from error
    return described, tensors, digests


def _check_sum(path: str | os.PathLike[str], header: bytes, checksum: str) -> None:
    written = f'"checksum":"{checksum}"'.encode()
    if len(checksum) != len(_BLANK) or header.count(written) != 1:
        raise StateError(f"{path}: has no checksum; save the state anew")
    if _sum(header.replace(written, f'"checksum":"{_BLANK}"'.encode())) != checksum:
        raise StateError(f"{path}: is damaged, its header's checksum is not that of its bytes; save the state anew")


def _check_tensors(header: StateHeader, tensors: list[TensorPlace], digests: Any) -> None:
    """The tensors are those that the header describes, each with a digest."""
    found = {place.name: (place.dtype, place.shape) for place in tensors}
    described = _described(header, TOKENS in found)
    for name in sorted(described.keys() ^ found.keys()):
        where = "described and not there" if name in described else "there and not described"
        raise ValueError(f"{shown(name)} is {where}")
    for name, (dtype, shape) in described.items():
        if found[name] != (dtype, shape):
            kind, is_shape = found[name]
            raise ValueError(f"{shown(name)} is {kind} {list(is_shape)}, described as {dtype} {shown(list(shape))}")
    if not isinstance(digests, dict) or digests.keys() != described.keys():
        raise ValueError("has no digests, or others than tensors")


def _chunks(array: np.ndarray) -> Iterator[memoryview]:
    """The bytes of a contiguous array, so few at a time that a processor's cache holds them; none of an empty array."""
    data = array.reshape(-1).view(np.uint8).data
    for begin in range(0, len(data), _CHUNK):
        yield data[begin : begin + _CHUNK]


def _check_tokens(path: str | os.PathLike[str], tokens: np.ndarray) -> None:
    if tokens.size and tokens.min() < 0:
        raise StateError(f"{path}: holds the token {tokens.min()}, wanted ids, 0 or more")


def _fill(path: str | os.PathLike[str], file: FileIO, data: memoryview) -> None:
    while data:
        count = file.readinto(data)
        if not count:
            raise StateError(f"{path}: is damaged, it ends while it is read")
        data = data[count:]
