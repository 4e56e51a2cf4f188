"""The rewrites, one per file. Each is an ``openvino.passes`` pass that works alone in a ``Manager``."""

from ovpasses.passes.beam_reorder import BeamReorder
from ovpasses.passes.kv_state_seq_axis import KVStateSeqAxis
from ovpasses.passes.make_kv_stateful import MakeKVStateful
from ovpasses.passes.report import PassReport, Skip

__all__ = ["BeamReorder", "KVStateSeqAxis", "MakeKVStateful", "PassReport", "Skip"]
