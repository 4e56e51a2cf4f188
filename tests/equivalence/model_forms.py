"""The recorded models in every form that there is: as dumped, as imported, rewritten, as a static pair."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import ovpasses as ovp

RECORDED = Path(__file__).parents[2] / "models" / "recorded"
MODELS = ("llama-gqa", "gemma4-mixed", "qwen35")
WINDOWED = (70, 1, 1)  # past gemma4's window of 64 tokens

Models = ovp.ImportedModel | tuple[ovp.ImportedModel, ...]


def gguf(name: str) -> Path:
    return RECORDED / f"gguf/tiny-{name}.gguf"


@cache
def info_of(name: str) -> ovp.GraphInfo:
    """Windows, which dumps do not tell."""
    return ovp.read_model(gguf(name)).info


def dump(name: str, form: str, era: str = "after") -> ovp.ImportedModel:
    """A dump as it is; gemma4's with what its GGUF says of windows."""
    info = info_of(name) if name == "gemma4-mixed" else None
    return ovp.read_model(RECORDED / era / name / form / "model.xml", info=info)


def static_dump(name: str, era: str = "after") -> tuple[ovp.ImportedModel, ...]:
    """A static dump as it is."""
    folder, info = RECORDED / era / name / "static", info_of(name) if name == "gemma4-mixed" else None
    return tuple(ovp.read_model(folder / f"model_{part}.xml", info=info) for part in ("prefill", "decode"))


def rewritten(imported: ovp.ImportedModel, *passes: Any, preset: str = "stateful", **options: Any) -> ovp.ImportedModel:
    """A copy, rewritten by passes, or else by a preset."""
    copy = copied(imported)
    pipeline = ovp.Pipeline(list(passes)) if passes else ovp.Pipeline.preset(preset, **options)
    pipeline.run(copy)
    return copy


def copied(imported: ovp.ImportedModel) -> ovp.ImportedModel:
    return ovp.ImportedModel(imported.model.clone(), imported.info, imported.source)


def static_pair(imported: ovp.ImportedModel, chunk: int = 5, **options: Any) -> tuple[ovp.ImportedModel, ...]:
    """Prefill in chunks that prompts do not fill, and decode."""
    options = {"context": 128, **options}
    return (
        rewritten(imported, preset="static-prefill", chunk=chunk, **options),
        rewritten(imported, preset="static-decode", **options),
    )


def batched(imported: ovp.ImportedModel) -> ovp.ImportedModel:
    """A dump of several sequences, as one batch."""
    return rewritten(imported, ovp.BatchSequences(), ovp.ChunkValidLen(), ovp.LowerGatedDeltaNet())
