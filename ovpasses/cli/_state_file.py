"""What ``ovpasses inspect FILE.safetensors`` prints: a saved state, every byte of it checked first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ovpasses.cli._app import make_console
from ovpasses.runtime.state_file import FORMAT, VERSION, SavedState, read_state_file


def print_state_file(path: Path, as_json: bool) -> None:
    """Print what a state file holds.

    Args:
        path: the file.
        as_json: for machines.

    Raises:
        StateError: it cannot be read, is no state file, or is damaged.
    """
    saved = read_state_file(path)
    if as_json:
        print(json.dumps(_plain(path, saved)))
        return
    console = make_console()
    header = saved.header
    tokens = "not kept" if saved.tokens is None else f"{saved.tokens.size} ids"
    size = sum(value.nbytes for value in saved.values.values())
    console.print(
        f"{path}: {FORMAT} {VERSION}, checksum right; position {header.position}, tokens {tokens}, "
        f"{len(header.states)} states of {size / 1e6:.2f} MB, rotation K {header.rotation[0]}, V {header.rotation[1]}, "
        f"weights {header.fingerprint}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    table = Table("state", "kind", "layer", "layout", "type", "sequence axis", "window", "bytes")
    for state in sorted(header.states, key=lambda state: (state.layer is None, state.layer, state.kind)):
        layout = ", ".join(f"{name} {n}" for name, n in zip(state.layout, state.shape, strict=True))
        axis, window = ("-" if value is None else str(value) for value in (state.axis, state.window))
        layer = "-" if state.layer is None else str(state.layer)
        held = str(saved.values[state.name].nbytes) if state.name in saved.values else "0"
        table.add_row(Text(state.name), state.kind, layer, Text(f"[{layout}]"), state.dtype, axis, window, held)
    console.print(table)


def _plain(path: Path, saved: SavedState) -> dict[str, object]:
    header = saved.header
    return {
        "source": str(path),
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": header.fingerprint,
        "position": header.position,
        "rotation": {"n_rot_k": header.rotation[0], "n_rot_v": header.rotation[1]},
        "tokens": None if saved.tokens is None else saved.tokens.tolist(),
        "states": [
            {**asdict(state), "bytes": saved.values[state.name].nbytes if state.name in saved.values else 0}
            for state in header.states
        ],
    }
