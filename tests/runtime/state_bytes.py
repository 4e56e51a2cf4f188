"""State files taken apart and signed anew, written from the format's description and not with ovpasses' writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save
from xxhash import xxh3_128_hexdigest as digest

Change = Callable[[dict[str, str], dict[str, np.ndarray]], None]
BLANK = "0" * 32


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The table in a file's header, and the bytes after it."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def signed(table: dict[str, Any], data: bytes, *, digests: bool = True) -> bytes:
    """A file of this table and data whose checksum is right, and its digests too, if asked, where they can be."""
    metadata = {**table["__metadata__"], "checksum": BLANK}
    if digests:
        found = {name: digest(_bytes(entry, data)) for name, entry in table.items() if name != "__metadata__"}
        metadata["digests"] = json.dumps(found)
    text = json.dumps({**table, "__metadata__": metadata}, separators=(",", ":")).encode()
    return sealed(text + b" " * (-(8 + len(text)) % 64)) + data


def sealed(text: bytes) -> bytes:
    """A header with its length, the checksum in the place of zeros."""
    header = len(text).to_bytes(8, "little") + text
    return header.replace(f'"checksum":"{BLANK}"'.encode(), f'"checksum":"{digest(header)}"'.encode(), 1)


def _bytes(entry: Any, data: bytes) -> bytes:
    match entry:
        case {"data_offsets": [int(begin), int(end)]} if 0 <= begin <= end <= len(data):
            return data[begin:end]
    return b""


def edited(path: Path, target: Path, change: Change) -> Path:
    """A file with other metadata or tensors, all of it signed."""
    with safe_open(path, "np") as file:
        metadata = dict(file.metadata())
    tensors = load_file(path)
    change(metadata, tensors)
    target.write_bytes(signed(*split(save(tensors, metadata))))
    return target
