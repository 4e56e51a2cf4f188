"""Time one gated delta net layer on the CPU: the native op, the lowered one after saving, and step by step.

The arms of a row alternate within one run, so that a drifting clock hits all of them alike.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from openvino import CompiledModel, Core, InferRequest, Model, Tensor, save_model
from rich.console import Console
from rich.table import Table

from ovpasses import read_model
from ovpasses._openvino import Node, ops
from ovpasses.passes import LowerGatedDeltaNet

TINY = Path(__file__).resolve().parent.parent / "models" / "recorded" / "gguf" / "tiny-qwen35.gguf"


def shapes(tokens: int, heads: int, size: int) -> list[list[int]]:
    """Shapes of query, key, value, state, gate and beta; ``tokens`` may be -1."""
    rows = [1, tokens, heads, size]
    return [rows, rows, rows, [1, heads, size, size], rows[:3], rows[:3]]


def native(tokens: int, heads: int, size: int) -> Model:
    """A model of the native op alone, taken out of an imported GGUF: Python cannot make that op itself."""
    imported = read_model(TINY).model
    op = next(op for op in imported.get_ops() if op.get_type_name() == "GatedDeltaNet")
    parameters = [ops.parameter(shape, np.float32) for shape in shapes(tokens, heads, size)]
    op.set_arguments([p.output(0) for p in parameters])
    op.validate_and_infer_types()
    return Model([op.output(0), op.output(1)], parameters, "delta_net")


def step_by_step(lowered: Model) -> Model:
    """The same Loop with a constant for the scale, in which OpenVINO does not recognise the native op."""
    for op in lowered.get_ops():
        if op.get_type_name() == "Loop":
            scaled: Node = op.input_value(2).get_node()
            size = scaled.get_output_partial_shape(0)[3].get_length()
            scaled.set_arguments([scaled.input_value(0), ops.constant(np.float32(size**0.5)).output(0)])
    return lowered


def lowered(tokens: int, heads: int, size: int) -> Model:
    """The native op's model after :class:`LowerGatedDeltaNet`."""
    model = native(tokens, heads, size)
    LowerGatedDeltaNet().run_on_model(model)
    return model


def compiled(model: Model, *, saved: bool) -> CompiledModel:
    """Compile for the CPU in f32, after a round trip through a file if asked for."""
    core = Core()
    if saved:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.xml"
            save_model(model, path, compress_to_fp16=False)
            model = core.read_model(path)
            return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def data(tokens: int, heads: int, size: int) -> list[np.ndarray]:
    """Inputs as a model has them: keys of length 1, decaying gates, beta from 0 to 1."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in shapes(tokens, heads, size)]
    values[1] /= np.linalg.norm(values[1], axis=-1, keepdims=True)
    values[4] = -np.abs(values[4])
    values[5] = rng.random(values[5].shape, dtype=np.float32)
    return values


def median_ms(requests: dict[str, InferRequest], runs: int) -> dict[str, float]:
    """Median time of an inference per arm, the arms in turn."""
    times: dict[str, list[float]] = {name: [] for name in requests}
    for warm_up in (True, False):
        for _ in range(2 if warm_up else runs):
            for name, request in requests.items():
                started = perf_counter()
                request.infer()
                if not warm_up:
                    times[name].append(perf_counter() - started)
    return {name: 1e3 * float(np.median(values)) for name, values in times.items()}


def measure(tokens: int, heads: int, size: int, runs: int, *, dynamic: bool) -> dict[str, float]:
    """Median ms of every arm for one number of tokens."""
    declared = -1 if dynamic else tokens
    arms = {
        "native": compiled(native(declared, heads, size), saved=False),
        "lowered": compiled(lowered(declared, heads, size), saved=True),
        # With one static token there is no Loop to compare with.
        "steps": compiled(step_by_step(lowered(-1, heads, size)), saved=True),
    }
    requests = {name: arm.create_infer_request() for name, arm in arms.items()}
    for request in requests.values():
        for index, value in enumerate(data(tokens, heads, size)):
            request.set_input_tensor(index, Tensor(value))
    return median_ms(requests, runs)


def main(
    tokens: Annotated[list[int] | None, typer.Option(help="tokens per inference; may be repeated")] = None,
    heads: Annotated[int, typer.Option(help="heads of the layer")] = 32,
    size: Annotated[int, typer.Option(help="key and value size of a head")] = 128,
    runs: Annotated[int, typer.Option(help="inferences at one token; fewer for more tokens")] = 200,
) -> None:
    """Compare the arms for each number of tokens, with the token axis static and dynamic."""
    table = Table(title=f"gated delta net, {heads} heads x {size}, CPU, f32, median ms")
    for column in ("tokens", "token axis", "native", "lowered, saved", "lowered / native", "step by step"):
        table.add_column(column, justify="right")
    for count in tokens or [1, 64, 256]:
        for dynamic in (False, True):
            ms = measure(count, heads, size, max(8, runs // count), dynamic=dynamic)
            ratio = f"{ms['lowered'] / ms['native']:.2f}"
            axis = "dynamic" if dynamic else "static"
            table.add_row(str(count), axis, f"{ms['native']:.2f}", f"{ms['lowered']:.2f}", ratio, f"{ms['steps']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
