"""Kills writers of a state file at random moments; ``python -m tests.runtime.killed_writer_process FOLDER COUNT``.

A process of its own, which has started no threads, so that it may fork. Prints what was found after each kill, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from ovpasses.errors import StateError
from ovpasses.runtime.state_file import SavedState, read_state_file, write_state_file
from ovpasses.runtime.state_header import SavedStateInfo, StateHeader

ROWS, WIDTH = 1024, 1024  # 4 MiB


def state(version: int) -> SavedState:
    """4 MiB of states that all hold the version."""
    names = ["batch", "heads", "seq", "size"]
    info = SavedStateInfo("cache_k_l0", "key", 0, names, 1, WIDTH, "f32", 2, [1, 1, ROWS, WIDTH], None)
    values = {info.name: np.full([1, 1, ROWS, WIDTH], version, dtype=np.float32)}
    return SavedState(StateHeader("0" * 32, ROWS, (0, 0), (info,)), values, np.full(ROWS, version, dtype=np.int64))


def version_of(path: Path) -> int | str:
    """The version that a file holds whole, else what is wrong with it."""
    try:
        saved = read_state_file(path)
    except StateError as error:
        return str(error)
    assert saved.tokens is not None
    found = {*np.unique(saved.values["cache_k_l0"]).tolist(), *np.unique(saved.tokens).tolist()}
    return int(found.pop()) if len(found) == 1 else f"holds {sorted(found)}"


def main(folder: Path, count: int) -> None:
    path, moments = folder / "state.safetensors", random.Random(0)
    states = [state(0), state(1)]
    write_state_file(path, states[0])
    began = time.perf_counter()
    for one in (*states, states[0]):
        write_state_file(path, one)
    duration = (time.perf_counter() - began) / 3
    found = []
    for _ in range(count):
        child = os.fork()
        if not child:
            while True:
                for one in states:
                    write_state_file(path, one)
        time.sleep(moments.uniform(0, 4 * duration))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found.append({"version": version_of(path), "left": len(list(folder.iterdir())) - 1})
    write_state_file(path, states[1])
    print(json.dumps({"kills": found, "last": version_of(path), "files": sorted(p.name for p in folder.iterdir())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
