"""A small ONNX decoder with real attention and its caches outside: ``past_key_values.N.key``, ``present.N.key``."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FAR_BELOW = np.float32(-1e9)


class _Graph:
    """Nodes and weights as they are added."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        out = name or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=f"/{out}", **attributes))
        return out

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    def length(self, x: str, axis: int) -> str:
        """The extent of one axis, a scalar."""
        return self.op("Gather", self.op("Shape", x), self.constant(axis))


def decoder(
    layout: str = "bhsd",
    *,
    layers: int = 2,
    heads: int = 2,
    size: int = 4,
    vocab: int = 17,
    attention_mask: bool = True,
    seed: int = 0,
) -> Any:
    """Build the model.

    Args:
        layout: of the caches, "bhsd" or "bshd" (batch, heads, sequence, size); batch and sequence are dynamic.
        layers, heads, size, vocab: what they say.
        attention_mask: take ``attention_mask [batch, past + sequence]`` beside ``input_ids [batch, sequence]``.
        seed: of the weights.

    Returns:
        An ``onnx.ModelProto`` that passes ``onnx.checker``; output ``logits [batch, sequence, vocab]``.
    """
    graph = _Graph(seed)
    width, seq_axis = heads * size, layout.index("s")
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    inputs: list[Any] = [ids]
    outputs: list[Any] = []
    if attention_mask:
        inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]))
    mask = _mask(graph, seq_axis, attention_mask)
    x = graph.op("Gather", graph.weight(vocab, width), "input_ids")
    for layer in range(layers):
        grown = []
        for kind in ("key", "value"):
            past, present = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
            rows = _heads(graph, graph.op("MatMul", x, graph.weight(width, width)), heads, size)
            rows = rows if layout == "bshd" else graph.op("Transpose", rows, perm=[0, 2, 1, 3])
            graph.op("Concat", past, rows, name=present, axis=seq_axis)
            grown.append(present if layout == "bhsd" else graph.op("Transpose", present, perm=[0, 2, 1, 3]))
            for name, length, found in ((past, "past", inputs), (present, "total", outputs)):
                dims = {"b": "batch", "s": length, "h": heads, "d": size}
                found.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [dims[c] for c in layout]))
        queries = _heads(graph, graph.op("MatMul", x, graph.weight(width, width)), heads, size)
        seen = _attention(graph, graph.op("Transpose", queries, perm=[0, 2, 1, 3]), grown[0], grown[1], mask, size)
        flat = graph.op("Reshape", graph.op("Transpose", seen, perm=[0, 2, 1, 3]), graph.constant([0, 0, width]))
        x = graph.op("Add", x, graph.op("MatMul", flat, graph.weight(width, width)))
    graph.op("MatMul", x, graph.weight(width, vocab), name="logits")
    outputs.insert(0, helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", vocab]))
    proto = helper.make_graph(graph.nodes, "tiny_decoder", inputs, outputs, initializer=graph.weights)
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def _heads(graph: _Graph, x: str, heads: int, size: int) -> str:
    """``[b, s, heads*size]`` to ``[b, s, heads, size]``."""
    return graph.op("Reshape", x, graph.constant([0, 0, heads, size]))


def _attention(graph: _Graph, q: str, k: str, v: str, mask: str, size: int) -> str:
    scores = graph.op("MatMul", q, graph.op("Transpose", k, perm=[0, 1, 3, 2]))
    scaled = graph.op("Mul", scores, graph.constant(1 / np.sqrt(size), np.float32))
    return graph.op("MatMul", graph.op("Softmax", graph.op("Add", scaled, mask), axis=-1), v)


def _mask(graph: _Graph, seq_axis: int, attention_mask: bool) -> str:
    """0 where a token may look (at itself, at what came before, where ``attention_mask`` is 1), else far below."""
    past, tokens = graph.length("past_key_values.0.key", seq_axis), graph.length("input_ids", 1)
    total, one = graph.op("Add", past, tokens), graph.constant(1)
    query = graph.op("Unsqueeze", graph.op("Range", past, total, one), graph.constant([1]))
    key = graph.op("Unsqueeze", graph.op("Range", graph.constant(0), total, one), graph.constant([0]))
    seen = graph.op("LessOrEqual", key, query)
    if attention_mask:
        there = graph.op("Cast", "attention_mask", to=TensorProto.BOOL)
        seen = graph.op("And", seen, graph.op("Unsqueeze", there, graph.constant([1, 2])))
    return graph.op("Where", seen, graph.constant(0, np.float32), graph.constant(FAR_BELOW, np.float32))
