"""Speed and memory of saving and restoring a session, beside a plain copy of the file, in turns in one run.

``.venv/bin/python scripts/bench_state_file.py [--gigabytes 1]``. Times on a shared machine drift: compare within a run.
The states are those of the model with made-up rows in its caches, more of them than its context, and no token is run.
Memory is the highest resident size of the process while it saves or restores, less what it had before and, where a new
session gets states that it had not, less those.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import ovpasses as ovp
from ovpasses.cli._arguments import model_path


@dataclass
class Arm:
    """One of the things compared: the seconds that it took, and the memory beyond what it had to have, in bytes."""

    run: Callable[[], object]
    own: int = 0
    made: Path | None = None  # is not there when it is to be made, as making room for it is not its cost
    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def step(self) -> None:
        if self.made is not None:
            self.made.unlink(missing_ok=True)
        before = _settled()
        started = perf_counter()
        self.run()
        self.seconds.append(perf_counter() - started)
        self.memory.append(_status("VmHWM") - before - self.own)


def main(
    model: Annotated[str, typer.Argument(help="A GGUF, or 'demo'.")] = "demo",
    gigabytes: Annotated[float, typer.Option(help="Size of all states, in 10^9 bytes.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="Rounds; every round saves, restores and copies.")] = 11,
    folder: Annotated[Path, typer.Option(help="Where to write: on the disk that is to be measured.")] = Path(),
) -> None:
    if sys.platform != "linux":
        sys.exit("the highest resident size of a process is read from Linux' /proc")
    imported = ovp.read_model(model_path(model))
    ovp.Pipeline.preset("stateful").run(imported)
    compiled = ovp.compile_model(imported, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16"})
    info = replace(imported.info, context_length=None)
    used = ovp.Session(compiled, info)
    size = _fill(used, int(gigabytes * 1e9))
    with tempfile.TemporaryDirectory(dir=folder) as made:
        file, copy = Path(made) / "state.safetensors", Path(made) / "copy.safetensors"
        arms = {
            "save": Arm(lambda: used.save(file), made=file),
            "copy of the file": Arm(lambda: _copy(file, copy), made=copy),
            "restore, session with states": Arm(lambda: used.restore(file)),
            "restore, new session": Arm(lambda: ovp.Session(compiled, info).restore(file), own=size),
            "read of the file": Arm(lambda: _read(file)),
        }
        used.save(file)
        order = Random(0)
        for _ in range(rounds):
            for arm in order.sample(list(arms.values()), len(arms)):  # memory just given back is faster than other
                arm.step()
    table = Table("", "GB/s (median)", "spread", "memory / size of the states")
    for name, arm in arms.items():
        speeds = [size / seconds / 1e9 for seconds in arm.seconds]
        memory = f"{max(arm.memory) / size:.2f}"
        table.add_row(name, f"{median(speeds):.2f}", f"{min(speeds):.2f} to {max(speeds):.2f}", memory)
    states = f"{size / 1e9:.2f} GB of states at position {used.position}, {os.cpu_count()} processors"
    Console(width=120).print(f"{model}, {states}", table, sep="\n")


def _fill(session: ovp.Session, size: int) -> int:
    """Give a session rows until its states have about this size; their size now, in bytes."""
    session.prefill([1])
    one = session.rows()
    session.reset()
    each = sum(rows.nbytes for rows in one.values() if rows.ndim == 2)
    count = max(1, (size - sum(rows.nbytes for rows in one.values() if rows.ndim == 1)) // each)
    random = np.random.default_rng(0)
    rows = {
        name: random.integers(0, 0x7C00, (count, value.shape[1]), dtype=np.uint16).view(np.float16)
        if value.ndim == 2
        else value
        for name, value in one.items()
    }
    session.seed(rows)
    return sum(value.nbytes for value in rows.values())


def _copy(file: Path, copy: Path) -> None:
    """What a plain copy costs that is on the disk when it is done, as a saved state is."""
    shutil.copyfile(file, copy)
    with copy.open("rb+") as written:
        os.fsync(written.fileno())


def _read(file: Path) -> None:
    """What reading the file costs, a piece after the other into the same memory."""
    piece = bytearray(4 << 20)
    with file.open("rb", buffering=0) as opened:
        while opened.readinto(piece):
            pass


def _settled() -> int:
    """Free what can be, forget the highest resident size so far, and say what it is now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(key: str) -> int:
    found = re.search(rf"^{key}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, f"Linux gives {key} of every process"
    return 1024 * int(found[1])


if __name__ == "__main__":
    typer.run(main)
