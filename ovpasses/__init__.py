"""OpenVINO graph-transformation passes for ggml-exported LLM graphs, and a runner for them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ovpasses import visualize
    from ovpasses.equivalence import (
        CheckError,
        EquivalenceReport,
        NotEquivalentError,
        assert_equivalent,
        compare_numbers,
        compare_structure,
    )
    from ovpasses.errors import DeviceError, ModelReadError, OvpassesError, RewriteError, StateError
    from ovpasses.importers import GraphInfo, ImportedModel, LayerInfo, read_model
    from ovpasses.passes import (
        BatchSequences,
        BeamReorder,
        ChunkValidLen,
        KVHeadSplit,
        KVStateSeqAxis,
        LowerGatedDeltaNet,
        MakeKVStateful,
        OneSequence,
        PassReport,
        Skip,
        StaticSlotCopy,
        StaticTokens,
    )
    from ovpasses.pipeline import Pipeline, PipelineReport
    from ovpasses.runtime import Checkpoint, ChunkedSession, Session, SlotSessions, compile_model, device_config

__version__ = "0.1.0"

__all__ = [
    "BatchSequences",
    "BeamReorder",
    "CheckError",
    "Checkpoint",
    "ChunkValidLen",
    "ChunkedSession",
    "DeviceError",
    "EquivalenceReport",
    "GraphInfo",
    "ImportedModel",
    "KVHeadSplit",
    "KVStateSeqAxis",
    "LayerInfo",
    "LowerGatedDeltaNet",
    "MakeKVStateful",
    "ModelReadError",
    "NotEquivalentError",
    "OneSequence",
    "OvpassesError",
    "PassReport",
    "Pipeline",
    "PipelineReport",
    "RewriteError",
    "Session",
    "Skip",
    "SlotSessions",
    "StateError",
    "StaticSlotCopy",
    "StaticTokens",
    "assert_equivalent",
    "compare_numbers",
    "compare_structure",
    "compile_model",
    "device_config",
    "read_model",
    "visualize",
]

# Where the names above are looked up, when one is asked for: pytest imports this package for its plugin at every start,
# and OpenVINO takes more than a second.
_HOMES = ("errors", "importers", "passes", "pipeline", "runtime", "equivalence")
_PACKAGES = ("importers", "passes", "pipeline", "runtime", "equivalence", "visualize", "bench")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"ovpasses.{name}")
    if name in __all__:
        for home in _HOMES:
            found = getattr(import_module(f"ovpasses.{home}"), name, None)
            if found is not None:
                globals()[name] = found  # asked for once
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
