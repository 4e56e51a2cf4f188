"""Decode speed by depth, with and without KVStateSeqAxis and BeamReorder, arms alternating in one run.

``.venv/bin/python scripts/bench_kv_layout.py [--depth 2048]``. Times on a shared machine drift; compare within one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import ovpasses as ovp
from ovpasses.cli._arguments import model_path
from ovpasses.passes.base import ReportedPass

ARMS: dict[str, Sequence[type[ReportedPass]]] = {
    "MakeKVStateful": (ovp.MakeKVStateful,),
    "+ KVStateSeqAxis": (ovp.MakeKVStateful, ovp.KVStateSeqAxis),
    "+ BeamReorder": (ovp.MakeKVStateful, ovp.BeamReorder),
    "+ KVStateSeqAxis, BeamReorder": (ovp.MakeKVStateful, ovp.KVStateSeqAxis, ovp.BeamReorder),
}


@dataclass
class Arm:
    """One pass combination: its session, and the seconds of its steps."""

    session: ovp.Session
    prefill: float = 0.0
    decode: list[float] = field(default_factory=list)

    def step(self, token: int) -> None:
        started = perf_counter()
        self.session.decode(token)
        self.decode.append(perf_counter() - started)


def main(
    model: Annotated[str, typer.Argument(help="A GGUF, or 'demo'.")] = "demo",
    depth: Annotated[int, typer.Option(help="Tokens in the cache before decoding.")] = 2048,
    rounds: Annotated[int, typer.Option(help="Rounds; every round decodes with every arm.")] = 5,
    tokens: Annotated[int, typer.Option(help="Tokens per arm and round.")] = 4,
    step: Annotated[int, typer.Option(help="Tokens per prefill inference.")] = 512,
) -> None:
    arms = {name: Arm(_session(model, passes, step)) for name, passes in ARMS.items()}
    prompt = np.random.default_rng(0).integers(0, arms["MakeKVStateful"].session.info.n_vocab, depth)
    for arm in arms.values():
        started = perf_counter()
        arm.session.prefill(prompt)
        arm.prefill = depth / (perf_counter() - started)
    for _ in range(rounds):
        for arm in arms.values():
            for token in prompt[:tokens]:
                arm.step(int(token))
    base = median(arms["MakeKVStateful"].decode)
    table = Table("passes", "prefill tokens/s", "decode ms (median)", "spread", "decode tokens/s", "times as fast")
    for name, arm in arms.items():
        middle = median(arm.decode)
        spread = f"{1000 * min(arm.decode):.1f} to {1000 * max(arm.decode):.1f}"
        speed = f"{1 / middle:.1f}"
        table.add_row(name, f"{arm.prefill:.0f}", f"{1000 * middle:.1f}", spread, speed, f"{base / middle:.2f}")
    Console(width=120).print(f"{model}, depth {depth}, CPU", table, sep="\n")


def _session(model: str, passes: Sequence[type[ReportedPass]], step: int) -> ovp.Session:
    imported = ovp.read_model(model_path(model))
    ovp.Pipeline([kind() for kind in passes]).run(imported)
    return ovp.Session(ovp.compile_model(imported, "CPU"), imported.info, step=step)


if __name__ == "__main__":
    typer.run(main)
