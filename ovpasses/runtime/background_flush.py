"""The disk at work on a file while more of it is written."""

from __future__ import annotations

import errno
import os
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from types import TracebackType

# Bytes written between two flushes: few enough that little is left for the last one.
EACH = 64 << 20


class BackgroundFlush:
    """Flushes a file on another thread again and again; an error of one is raised at the next write, or at the end.

    Args:
        file: unbuffered, open until the block ends.
        size: that it will have, in bytes. The disk gives them all at once, where it can, or says that it has not.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, file: FileIO, size: int) -> None:
        self._file = file
        _allocate(file, size)
        self._pool = ThreadPoolExecutor(1)
        self._flush: Future[None] | None = None
        self._written = 0

    def __enter__(self) -> BackgroundFlush:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown()
        if self._flush is not None and error is None:
            self._flush.result()

    def write(self, data: memoryview) -> None:
        """Write all bytes.

        Raises:
            OSError: they, or some before them, cannot be written.
        """
        self._written += len(data)
        while data:
            data = data[self._file.write(data) :]
        if self._written >= EACH and (self._flush is None or self._flush.done()):
            if self._flush is not None:
                self._flush.result()
            self._flush = self._pool.submit(os.fsync, self._file.fileno())
            self._written = 0


def _allocate(file: FileIO, size: int) -> None:
    if not hasattr(os, "posix_fallocate") or not size:
        return
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
