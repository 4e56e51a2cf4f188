"""OpenVINO graph-transformation passes for ggml-exported LLM graphs, and a runner for them."""

from ovpasses.equivalence import compare_structure
from ovpasses.errors import DeviceError, ModelReadError, OvpassesError, RewriteError, StateError
from ovpasses.importers import GraphInfo, ImportedModel, LayerInfo, read_model
from ovpasses.passes import (
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
from ovpasses.runtime import ChunkedSession, Session, SlotSessions, compile_model, device_config

__version__ = "0.1.0"

__all__ = [
    "BeamReorder",
    "ChunkValidLen",
    "ChunkedSession",
    "DeviceError",
    "GraphInfo",
    "ImportedModel",
    "KVHeadSplit",
    "KVStateSeqAxis",
    "LayerInfo",
    "LowerGatedDeltaNet",
    "MakeKVStateful",
    "ModelReadError",
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
    "compare_structure",
    "compile_model",
    "device_config",
    "read_model",
]
