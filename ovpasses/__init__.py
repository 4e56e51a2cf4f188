"""OpenVINO graph-transformation passes for ggml-exported LLM graphs, and a runner for them."""

from ovpasses.errors import DeviceError, ModelReadError, OvpassesError, RewriteError, StateError
from ovpasses.importers import GraphInfo, ImportedModel, LayerInfo, read_model
from ovpasses.passes import BeamReorder, KVStateSeqAxis, MakeKVStateful, PassReport, Skip
from ovpasses.pipeline import Pipeline, PipelineReport
from ovpasses.runtime import Session, compile_model, device_config

__version__ = "0.1.0"

__all__ = [
    "BeamReorder",
    "DeviceError",
    "GraphInfo",
    "ImportedModel",
    "KVStateSeqAxis",
    "LayerInfo",
    "MakeKVStateful",
    "ModelReadError",
    "OvpassesError",
    "PassReport",
    "Pipeline",
    "PipelineReport",
    "RewriteError",
    "Session",
    "Skip",
    "StateError",
    "compile_model",
    "device_config",
    "read_model",
]
