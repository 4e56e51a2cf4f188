"""SHA-256 of large arrays while they are read or written, on threads of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np

CHUNK = 4 << 20


class ChunkDigest:
    """The digest of an array: SHA-256 of the SHA-256 of each of its 4 MiB chunks, the last one shorter.

    Chunks are digested on other threads, so the array must stay as it is until :meth:`digest` returns.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
        self._parts: list[bytes | Future[bytes]] = []

    def __enter__(self) -> ChunkDigest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, chunk: memoryview) -> None:
        """The next chunk."""
        small = len(chunk) < CHUNK // 16  # not worth a thread
        self._parts.append(_sha256(chunk) if small else self._pool.submit(_sha256, chunk))

    def digest(self) -> str:
        """Of all chunks since the last call, 64 hex digits."""
        parts, self._parts = self._parts, []
        done = [part if isinstance(part, bytes) else part.result() for part in parts]
        return hashlib.sha256(b"".join(done)).hexdigest()


def chunks(array: np.ndarray) -> Iterator[memoryview]:
    """The bytes of a contiguous array, chunk by chunk, to read and to write; none of an empty array."""
    data = array.reshape(-1).view(np.uint8).data
    for begin in range(0, len(data), CHUNK):
        yield data[begin : begin + CHUNK]


def _sha256(chunk: memoryview) -> bytes:
    return hashlib.sha256(chunk).digest()
