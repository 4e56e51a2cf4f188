"""``ovpasses run``: import, rewrite, compile, generate."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from openvino import Core
from rich.table import Table
from rich.text import Text

from ovpasses.cli._app import AsJson, InfoFile, Model, Pairs, Passes, Preset, Strict, make_console
from ovpasses.cli._arguments import info_of, key_values, model_path, pipeline_of
from ovpasses.cli._stages import Stages
from ovpasses.errors import StateError, one_line
from ovpasses.importers import ImportedModel, read_model
from ovpasses.runtime.devices import device_name, refuse_absent
from ovpasses.runtime.plan import RunPlan, plan_run
from ovpasses.runtime.text import TextLayer

DEMO_PROMPT = "The capital of France is"


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
    restore_state: Annotated[
        Path | None, typer.Option(help="Go on from the state in this .safetensors; --prompt or --tokens come after it.")
    ] = None,
    save_state: Annotated[
        Path | None,
        typer.Option(help="Write the state after the run; the last token generated has not been run and is not in it."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be compiled, and stop.")] = False,
    info: InfoFile = None,
    as_json: AsJson = False,
) -> None:
    """Import, rewrite, compile, generate. An NPU gets a static pair; so do others with $GGML_OPENVINO_FORCE_STATIC."""
    if prompt is not None and tokens is not None:
        raise StateError("both --prompt and --tokens are given, wanted one")
    if restore_state is not None and prompt is None and tokens is None:
        raise StateError("--restore-state is given without what comes after it, wanted --prompt or --tokens too")
    for written in (save_state, logits):
        if written is not None and not written.absolute().parent.is_dir():
            raise StateError(f"{written}: cannot be written: there is no folder {written.absolute().parent}")
    properties = key_values(config, "--config", "KEY=VALUE")
    figures: dict[str, float] = {}
    path = model_path(model)
    core = Core()
    if not dry_run:
        refuse_absent(device_name(device), core)
    with Stages(figures, quiet=as_json) as stages:
        imported = stages.timed("load", lambda: read_model(path, info=info_of(info)))
        text, ids, before = None, np.zeros(0, dtype=np.int64), _Before()
        if not dry_run:
            before = _Before() if restore_state is None else _read_before(restore_state)
            text = _text_layer(path, tokens)
            ids = _prompt_ids(text, prompt, tokens, begin=not before.position)
            _check_context(imported, before.position, ids.size, count)
        chosen = passes or pairs or preset not in (None, "stateful")
        pipeline = pipeline_of(preset, passes, pairs, strict) if chosen else None
        plan = stages.timed(
            "rewrite",
            lambda: plan_run(imported, device, properties, pipeline=pipeline, context=context, strict=strict),
        )
        if dry_run:
            _print_plan(plan, as_json)
            return
        session = stages.timed("compile", lambda: plan.session(core))
        if restore_state is not None:
            stages.timed("restore", lambda: session.restore(restore_state))
        generated, rows = stages.generate(session, ids, count, text.end_token if text else None)
    if logits is not None:
        with logits.open("wb") as file:
            np.save(file, np.concatenate(rows))
    result = {
        "model": str(path),
        "device": plan.device,
        "architecture": imported.info.architecture,
        "restored_tokens": before.position,
        "prompt_tokens": ids.tolist(),
        "tokens": generated,
        "text": text.decode(generated) if text else None,
        "position": session.position,
        "figures": figures,
        "report": next(iter(plan.reports.values())).to_dict(),
        "reports": {name: report.to_dict() for name, report in plan.reports.items()},
    }
    if as_json:
        print(json.dumps(result))
    else:
        _print_run(result, plan, prompt or DEMO_PROMPT if text else None)
    if save_state is not None:  # last, so that a full disk takes nothing of the above
        fed = [*ids, *generated[: len(rows) - 1]]
        session.save(save_state, None if before.tokens is None else [*before.tokens, *fed])


@dataclass(frozen=True)
class _Before:
    """What was run before the prompt: how many tokens, and which, None when the file does not hold them."""

    position: int = 0
    tokens: np.ndarray | None = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def _read_before(path: Path) -> _Before:
    """Before anything is compiled, so that a file that cannot be read is refused at once."""
    from ovpasses.runtime.state_file import open_state_file

    with open_state_file(path) as file:
        return _Before(file.header.position, file.tokens())


def _print_plan(plan: RunPlan, as_json: bool) -> None:
    if as_json:
        print(json.dumps(plan.to_dict()))
        return
    console = make_console()
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
    console = make_console()
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
    if "restore_s" in figures:
        table.add_row("restore", f"{figures['restore_s']:.2f} s", f"{result['restored_tokens']} tokens")
    for stage in ("prefill", "decode"):
        tokens, speed = figures[f"{stage}_tokens"], figures[f"{stage}_tokens_per_s"]
        table.add_row(stage, f"{figures[f'{stage}_s']:.2f} s", f"{tokens} tokens, {speed:.1f} tokens/s")
    console.print(table)


def _text_layer(path: Path, tokens: Path | None) -> TextLayer | None:
    if tokens is not None:
        return None
    if path.suffix.lower() != ".gguf":
        raise StateError(f"{path}: only a GGUF carries a tokenizer; give token ids with --tokens FILE.npy")
    return TextLayer(path)


def _prompt_ids(text: TextLayer | None, prompt: str | None, tokens: Path | None, *, begin: bool) -> np.ndarray:
    if text is not None:
        ids = text.encode(DEMO_PROMPT if prompt is None else prompt, begin=begin)
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


def _check_context(imported: ImportedModel, restored: int, prompt: int, count: int) -> None:
    context, begin = imported.info.context_length, restored + prompt
    if context is not None and begin <= context < begin + count - 1:
        after = f" after {restored} restored ones" if restored else ""
        raise StateError(
            f"{prompt} prompt tokens{after} and {count} to generate go past the model's context of {context} tokens; "
            "lower -n"
        )
