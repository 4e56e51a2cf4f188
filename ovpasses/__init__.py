"""OpenVINO graph-transformation passes for ggml-exported LLM graphs, and a runner for them."""

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
