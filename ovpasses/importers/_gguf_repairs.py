"""What OpenVINO's GGUF frontend gets wrong, put right at import."""

from __future__ import annotations

import logging

import numpy as np
from openvino import Model, PartialShape

from ovpasses._openvino import Node, ops

log = logging.getLogger(__name__)


def repair_single_head_rope(model: Model) -> list[str]:
    """Give the keys of a layer with one KV head their head axis before the rotary embedding.

    The frontend leaves out the reshape to ``[1, T, heads, size]`` when there is one head (in ggml it changes
    nothing), so that ``[1, 1, T, size]`` meets cosines of ``[1, T, 1, size]`` and broadcasts to T x T rows:
    seen on 2026.4.1 with llama's rotary order; the other order is transposed right.

    Returns:
        Friendly names of the repaired multiplications.
    """
    repaired = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Multiply" or not _is_outer(node):
            continue
        tokens_last = next(i for i in node.inputs() if i.get_partial_shape()[1] == 1)
        size = tokens_last.get_partial_shape()[3].get_length()
        order = ops.constant(np.array([1, -1, 1, size], dtype=np.int64))
        split = ops.reshape(tokens_last.get_source_output(), order, special_zero=False)
        split.set_friendly_name(f"{node.get_friendly_name()}/head_axis")
        tokens_last.replace_source_output(split.output(0))
        repaired.append(node.get_friendly_name())
    if repaired:
        model.validate_nodes_and_infer_types()
        log.info("gave %d rotary multiplications their head axis: %s", len(repaired), ", ".join(repaired))
    return repaired


def _is_outer(node: Node) -> bool:
    """``[1, 1, T, size] * [1, T, 1, size]``: two token axes, which no layer means."""
    return {_pattern(i.get_partial_shape()) for i in node.inputs()} == {(1, "T", 1), (1, 1, "T")} and _same_size(node)


def _pattern(shape: PartialShape) -> tuple[int | str, ...]:
    if shape.rank.is_dynamic or shape.rank.get_length() != 4:
        return ()
    return tuple("T" if shape[d].is_dynamic else shape[d].get_length() for d in range(3))


def _same_size(node: Node) -> bool:
    sizes = [i.get_partial_shape()[3] for i in node.inputs()]
    return bool(sizes[0].is_static and sizes[0] == sizes[1])
