"""On the CPU every attention of the rewritten SmolLM2 is the plugin's fused operation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from openvino import CompiledModel

import ovpasses as ovp

LAYERS = 30


def layer_types(compiled: CompiledModel) -> Counter[str]:
    found: Counter[str] = Counter()
    for op in compiled.get_runtime_model().get_ops():
        kind = op.get_rt_info()["layerType"]
        found[str(getattr(kind, "value", kind))] += 1
    return found


def compiled(smollm2: Path, passes: list[ovp.Pipeline]) -> Counter[str]:
    imported = ovp.read_model(smollm2)
    ovp.Pipeline(passes).run(imported)
    return layer_types(ovp.compile_model(imported, "CPU"))


@pytest.mark.parametrize(
    "order",
    [
        ("MakeKVStateful", "KVStateSeqAxis", "BeamReorder"),
        ("MakeKVStateful", "BeamReorder", "KVStateSeqAxis"),
    ],
)
def test_every_attention_is_fused(smollm2: Path, order: tuple[str, ...]) -> None:
    found = compiled(smollm2, [getattr(ovp, name)() for name in order])
    assert found["ScaledDotProductAttention"] == LAYERS
    assert found["MatMul"] == 0
    assert found["Softmax"] == 0


def test_without_the_beam_gather_none_is(smollm2: Path) -> None:
    """Guards the test above: the names looked for are those that an unfused attention has."""
    found = compiled(smollm2, [ovp.MakeKVStateful(), ovp.KVStateSeqAxis()])
    assert found["ScaledDotProductAttention"] == 0
    assert found["MatMul"] == 2 * LAYERS
    assert found["Softmax"] == LAYERS
