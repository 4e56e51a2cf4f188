"""Time of the preset ``stateful`` by graph size, and the memory it takes on a model with 1 GB of weights.

``.venv/bin/python scripts/bench_scale.py`` (the graphs are synthetic: layers of attention in the form that the GGUF
frontend imports, each filled up with element-wise ops to 200, so that 20,000 ops are 100 layers).
"""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from openvino import Model, Type
from rich.console import Console
from rich.table import Table

import ovpasses as ovp
from ovpasses._openvino import ops

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.tiny_graphs import Decoder, scattered

OPS_PER_LAYER = 200


def main(
    sizes: Annotated[str, typer.Option(help="Op counts, comma separated.")] = "1000,5000,20000,40000",
    rounds: Annotated[int, typer.Option(help="Runs per size; the median counts.")] = 3,
    weights: Annotated[int, typer.Option(help="MB of weights of the model whose memory is measured.")] = 1024,
) -> None:
    table = Table("layers", "ops", "preset stateful, ms", "ms per 1,000 ops")
    for size in map(int, sizes.split(",")):
        times, ops_before, layers = [], 0, max(1, size // OPS_PER_LAYER)
        for _ in range(rounds):
            model = filled(layers, size)
            ops_before = len(model.get_ops())
            started = perf_counter()
            report = ovp.Pipeline.preset("stateful").run(model)
            times.append(1000 * (perf_counter() - started))
            assert report["MakeKVStateful"].rewritten == 2 * layers
        middle = median(times)
        table.add_row(str(layers), str(ops_before), f"{middle:.0f}", f"{1000 * middle / ops_before:.1f}")
    console = Console(width=100)
    console.print(table)
    console.print(f"peak memory: preset stateful on {weights} MB of weights adds {growth(100, weights):.1f} MB")


def filled(layers: int, size: int) -> Model:
    """A graph of about ``size`` ops: each layer's output goes through a chain of additions."""
    model = scattered(Decoder(layers=layers, heads=4, size=16, repeats=2, reader="expand-transpose", width=32))
    missing = (size - len(model.get_ops())) // (2 * layers)
    outputs = [op for op in model.get_ops() if op.get_friendly_name().startswith("out_")]
    for op in outputs:
        readers = list(op.output(0).get_target_inputs())
        value = op.output(0)
        for _ in range(missing):
            value = ops.add(value, ops.constant(0.5, dtype=Type.f32)).output(0)
        for reader in readers:
            reader.replace_source_output(value)
    model.validate_nodes_and_infer_types()
    return model


def growth(layers: int, megabytes: int) -> float:
    """MB by which the peak memory of the process grows while the preset runs on a model with big weights."""
    model = filled(layers, 5000)
    op = next(op for op in model.get_ops() if op.get_friendly_name() == "out_0")
    width = op.get_output_partial_shape(0)[2].get_length()
    table = np.ones((megabytes * 2**20 // (4 * width), width), dtype=np.float32)
    weights = ops.constant(table, shared_memory=True)
    used = ops.reduce_mean(weights, ops.constant(np.array([0])), keep_dims=True)
    readers = list(op.output(0).get_target_inputs())
    total = ops.add(op, used)
    for reader in readers:
        reader.replace_source_output(total.output(0))
    model.validate_nodes_and_infer_types()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ovp.Pipeline.preset("stateful").run(model)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


if __name__ == "__main__":
    typer.run(main)
