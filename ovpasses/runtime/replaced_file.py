"""A file that is written whole or not at all, whatever becomes of the writer."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: there what a killed writer leaves behind stays
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[FileIO]:
    """A new file beside the target, unbuffered, that takes the target's place when the block ends.

    It is ``.NAME.<16 hex digits>.tmp``, locked while its writer lives, and goes when the block raises. What a killed
    writer left behind, the next one removes. The target keeps its permissions, and a link to it stays a link.

    Args:
        path: the target, a regular file or none yet.

    Raises:
        OSError: it cannot be written or is no regular file; the target is as it was.
    """
    target = Path(os.path.realpath(path))
    mode = _mode(target)
    _remove_abandoned(target)
    file, name = _create(target)
    try:
        with file:
            yield file
            if mode is not None:
                os.chmod(name, mode)
            os.fsync(file.fileno())
            if fcntl is not None:
                os.replace(name, target)  # before its lock goes
        if fcntl is None:
            os.replace(name, target)  # Windows renames no open file
    except BaseException:
        with suppress(OSError):
            name.unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


def _mode(target: Path) -> int | None:
    """The permissions of the file that is there."""
    try:
        found = target.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is there and no regular file")
    return stat.S_IMODE(found.st_mode)


def _create(target: Path) -> tuple[FileIO, Path]:
    while True:
        name = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        file = open(name, "xb", buffering=0)  # noqa: SIM115 - closed by the caller
        if _locked(file) and name.exists():
            return file, name
        file.close()  # another writer took it for abandoned, and removes it


def _locked(file: FileIO) -> bool:
    """Whether this is the only process with the file, as far as the file system tells."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks; there nothing is ever removed
            pass
    return True


def _remove_abandoned(target: Path) -> None:
    if fcntl is None:
        return
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.tmp")
    found: list[Path] = []
    with suppress(OSError):  # a folder may be one to write to and not to list
        found = [path for path in target.parent.iterdir() if name.fullmatch(path.name)]
    for path in found:
        with suppress(OSError):  # its writer lives, or has just renamed it
            handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(handle)


def _flush_folder(folder: Path) -> None:
    """Make the new name last; the file is whole under one or the other in any case."""
    if os.name != "posix":
        return  # other systems do not open folders
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
