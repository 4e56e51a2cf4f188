"""A disk that is full, does not reserve, or fails while more is written."""

from __future__ import annotations

import errno
import os
from io import FileIO
from pathlib import Path

import pytest

from ovpasses.runtime import background_flush
from ovpasses.runtime.background_flush import BackgroundFlush

posix = pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system reserves no room")
DATA = bytes(range(256)) * 16


def _failing(code: int) -> object:
    def fails(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    return fails


@posix
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
def test_no_room_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "posix_fallocate", _failing(code))
    with FileIO(tmp_path / "file", "xb") as file, pytest.raises(OSError, match=os.strerror(code)):
        BackgroundFlush(file, 1 << 20)
    assert (tmp_path / "file").stat().st_size == 0


@posix
@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_disk_that_reserves_nothing_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "posix_fallocate", _failing(code))
    with FileIO(tmp_path / "file", "xb") as file, BackgroundFlush(file, len(DATA)) as flushed:
        flushed.write(memoryview(DATA))
    assert (tmp_path / "file").read_bytes() == DATA


@pytest.mark.parametrize("writes", [1, 4])
def test_an_error_of_one_flush_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """The system tells of each once only."""
    calls: list[int] = []

    def first_fails(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 1:
            raise OSError(errno.EIO, "disk broken")

    monkeypatch.setattr(background_flush, "EACH", 1)
    monkeypatch.setattr(os, "fsync", first_fails)

    def write() -> None:
        with FileIO(tmp_path / "file", "xb") as file, BackgroundFlush(file, writes * len(DATA)) as flushed:
            for _ in range(writes):
                flushed.write(memoryview(DATA))

    with pytest.raises(OSError, match="disk broken"):
        write()


def test_nothing_is_written_twice_or_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_flush, "EACH", 5000)
    with FileIO(tmp_path / "file", "xb") as file, BackgroundFlush(file, 30 * len(DATA)) as flushed:
        for _ in range(30):
            flushed.write(memoryview(DATA))
    assert (tmp_path / "file").read_bytes() == 30 * DATA
