"""Saved states: one .safetensors file that says what a session must be to take them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from ovpasses.errors import StateError
from ovpasses.runtime.state_header import StateHeader

FORMAT, VERSION = "ovpasses-state", "1"

# The checksum is of the whole file with zeros in its place, so no byte is left out.
_BLANK = b"0" * 64
_CHECKSUM = re.compile(rb'"checksum"\s*:\s*"([0-9a-f]{64})"')
_TOKENS = "tokens"


@dataclass(frozen=True)
class SavedState:
    """What a state file holds.

    Attributes:
        header: what the states belong to.
        values: the states by name, f16 or f32, in the layout that they were saved from; none at position 0.
        tokens: the token ids that were run, int64 ``[position]``, when they were given at saving.
    """

    header: StateHeader
    values: dict[str, np.ndarray]
    tokens: np.ndarray | None = None


def write_state_file(path: str | os.PathLike[str], saved: SavedState) -> None:
    """Write a state file whole or not at all: beside the target, flushed to the disk, and renamed.

    Args:
        path: the file; one that is there is replaced.
        saved: what it is to hold.

    Raises:
        StateError: the file cannot be written; what was there before is unchanged.
    """
    target = Path(path)
    metadata = {"format": FORMAT, "version": VERSION, "checksum": _BLANK.decode(), **saved.header.to_metadata()}
    tensors = {f"state.{name}": np.ascontiguousarray(value) for name, value in saved.values.items()}
    if saved.tokens is not None:
        tensors[_TOKENS] = saved.tokens.astype(np.int64)
    written = None
    try:
        handle, written = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
        save_file(tensors, written, metadata)
        with open(written, "r+b") as file:
            data = file.read()
            found = _CHECKSUM.search(data)
            assert found is not None, "the header holds the checksum"
            file.seek(found.start(1))
            file.write(hashlib.sha256(data).hexdigest().encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, target)
    except (OSError, SafetensorError) as error:
        if written is not None:
            Path(written).unlink(missing_ok=True)
        raise StateError(f"{target}: cannot be written: {error}") from error
    _flush_folder(target.parent)


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # other systems do not open folders
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_state_file(path: str | os.PathLike[str]) -> SavedState:
    """Read a state file, every byte of it checked.

    Args:
        path: the file.

    Raises:
        StateError: it is missing, of another format or version, damaged, or its parts do not fit each other.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {error.strerror or error}") from error
    metadata = _metadata(path, data)
    if metadata.get("format") != FORMAT:
        raise StateError(f"{path}: is a .safetensors file, but no state that ovpasses saved")
    if metadata.get("version") != VERSION:
        raise StateError(
            f"{path}: has format version {metadata.get('version', '(none)')}, wanted {VERSION}; save the state anew"
        )
    _check_sum(path, data)
    header = StateHeader.from_metadata(path, metadata)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path}: is damaged: {error}") from error
    tokens = tensors.pop(_TOKENS, None)
    values = {name.removeprefix("state."): value for name, value in tensors.items()}
    if tokens is not None and tokens.shape != (header.position,):
        raise StateError(f"{path}: holds {tokens.size} tokens at position {header.position}; save the state anew")
    _check_values(path, header, values)
    return SavedState(header, values, tokens)


def _metadata(path: str | os.PathLike[str], data: bytes) -> Mapping[str, Any]:
    length = int.from_bytes(data[:8], "little")
    try:
        if not 2 <= length <= len(data) - 8:
            raise ValueError(f"{len(data)} bytes, its header alone has {length}")
        found = json.loads(data[8 : 8 + length].decode())["__metadata__"]
        if not isinstance(found, dict):
            raise TypeError("its metadata is no table")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(f"{path}: is no .safetensors file with metadata, or damaged: {error}") from error
    return found


def _check_sum(path: str | os.PathLike[str], data: bytes) -> None:
    header = data[: 8 + int.from_bytes(data[:8], "little")]
    found = _CHECKSUM.search(header)
    if found is None:
        raise StateError(f"{path}: has no checksum; save the state anew")
    blank = hashlib.sha256(data[: found.start(1)] + _BLANK)
    blank.update(memoryview(data)[found.end(1) :])
    if blank.hexdigest().encode() != found[1]:
        raise StateError(f"{path}: is damaged, its checksum is not that of its bytes; save the state anew")


def _check_values(path: str | os.PathLike[str], header: StateHeader, values: Mapping[str, np.ndarray]) -> None:
    """The tensors are those that the header describes."""
    described = {state.name: state for state in header.states} if header.position else {}
    for name in sorted(described.keys() ^ values.keys()):
        where = "described and not there" if name in described else "there and not described"
        raise StateError(f"{path}: state {name} is {where}; save the state anew")
    names = {"f16": np.float16, "f32": np.float32}
    for name, state in described.items():
        value = values[name]
        if list(value.shape) != state.shape or value.dtype != names.get(state.dtype):
            raise StateError(
                f"{path}: state {name} is {value.dtype} {list(value.shape)}, described as {state.dtype} {state.shape}; "
                "save the state anew"
            )
        if state.axis is not None and value.shape[state.axis] != header.position:
            raise StateError(
                f"{path}: state {name} holds {value.shape[state.axis]} tokens, wanted {header.position}; "
                "save the state anew"
            )
