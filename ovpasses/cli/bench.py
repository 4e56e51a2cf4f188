"""``ovpasses bench``: tokens per second by depth, arms alternating within one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from ovpasses.bench import Settings, benchmark, choose_arms
from ovpasses.bench.arms import ALL, CATALOG, DEFAULT, FORM
from ovpasses.cli._app import AsJson, InfoFile, Model, make_console
from ovpasses.cli._arguments import info_of, model_path
from ovpasses.cli._progress import TerminalProgress
from ovpasses.importers import read_model
from ovpasses.runtime.devices import device_name

_DEFAULTS = Settings()


def bench(
    model: Model,
    arms: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            help=f"{FORM}, with 'stateful', 'static' or 'genai' in place of passes, one of {', '.join(CATALOG)}, or "
            f"'{ALL}'; repeat it for several, the first is what others are compared with. Default: "
            f"{', '.join(DEFAULT)}.",
        ),
    ] = None,
    depths: Annotated[
        list[int] | None,
        typer.Option(
            "--depth",
            help=f"Tokens in the cache before; repeatable. Default: {', '.join(map(str, _DEFAULTS.depths))}.",
            min=0,
        ),
    ] = None,
    chunk: Annotated[int, typer.Option(help="Tokens of the prompt that is prefilled.", min=1)] = _DEFAULTS.chunk,
    tokens: Annotated[int, typer.Option(help="Tokens decoded per arm and round.", min=1)] = _DEFAULTS.tokens,
    rounds: Annotated[int, typer.Option(help="Rounds of all arms, per measure and depth.", min=1)] = _DEFAULTS.rounds,
    seconds: Annotated[
        float, typer.Option(help="After which no further round begins, per measure and depth; two always run.", min=0)
    ] = _DEFAULTS.seconds,
    threads: Annotated[int | None, typer.Option(help="INFERENCE_NUM_THREADS of all arms.", min=1)] = None,
    device: Annotated[str | None, typer.Option(help="CPU, GPU ...; default $GGML_OPENVINO_DEVICE, else CPU.")] = None,
    llama_bench: Annotated[
        Path | None, typer.Option(help="llama.cpp's llama-bench, to compare with llama.cpp on the same GGUF.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a plot, .svg or .png (needs matplotlib).")] = None,
    info: InfoFile = None,
    as_json: AsJson = False,
) -> None:
    """Tokens per second of prefill and decode by depth: pass combinations, GenAI, llama.cpp, in turns.

    Before anything is timed, all arms must give the same logits.
    """
    chosen = choose_arms(arms or [])
    settings = Settings(
        depths=tuple(depths or _DEFAULTS.depths),
        chunk=chunk,
        tokens=tokens,
        rounds=rounds,
        seconds=seconds,
        threads=threads,
        device=device_name(device),
    )
    if plot is not None:
        from ovpasses.bench.plot import check_plot, save_plot

        check_plot(plot)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with TerminalProgress(*columns, quiet=as_json) as shown:
        task = shown.add_task("reading the model", total=None)
        imported = read_model(model_path(model), info=info_of(info))
        report = benchmark(
            imported,
            chosen,
            settings,
            llama_bench=llama_bench,
            progress=lambda text: shown.update(task, description=text),
        )
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        make_console().print(report.table())
    if plot is not None:
        save_plot(report, plot)
