"""The rewrites, one per file. Each is an ``openvino.passes`` pass that works alone in a ``Manager``."""

from ovpasses.passes.batch_sequences import BatchSequences
from ovpasses.passes.beam_reorder import BeamReorder
from ovpasses.passes.chunk_valid_len import ChunkValidLen
from ovpasses.passes.kv_head_split import KVHeadSplit
from ovpasses.passes.kv_state_seq_axis import KVStateSeqAxis
from ovpasses.passes.lower_gated_delta_net import LowerGatedDeltaNet
from ovpasses.passes.make_kv_stateful import MakeKVStateful
from ovpasses.passes.one_sequence import OneSequence
from ovpasses.passes.report import PassReport, Skip
from ovpasses.passes.static_slot_copy import StaticSlotCopy
from ovpasses.passes.static_tokens import StaticTokens

__all__ = [
    "BatchSequences",
    "BeamReorder",
    "ChunkValidLen",
    "KVHeadSplit",
    "KVStateSeqAxis",
    "LowerGatedDeltaNet",
    "MakeKVStateful",
    "OneSequence",
    "PassReport",
    "Skip",
    "StaticSlotCopy",
    "StaticTokens",
]
