"""A tiny graph of one attention layer whose KV cache holds several sequences, as a dump from llama.cpp has it."""

from __future__ import annotations

import numpy as np
from openvino import Model, PartialShape, Type

from ovpasses._openvino import Node, Parameter, ops
from ovpasses.importers._slots import slot_caches

HEADS, SIZE, VOCAB = 2, 2, 8
WIDTH = HEADS * SIZE


def attention_of_sequences(
    *, sequences: int = 3, cells: int = 16, listed: bool = False, one_query: bool = False
) -> Model:
    """Tokens -> keys and values into the caches, attention over those of the sequences that run -> logits.

    Args:
        sequences: how many the caches hold.
        cells: cells of a sequence that the views of the dump have baked in.
        listed: the form that takes a list of sequences, written by hand.
        one_query: the queries are a batch of one whatever runs.
    """
    added: list[Node] = []

    def take(name: str, dtype: Type, shape: list[int]) -> Node:
        port = Parameter(dtype, PartialShape(shape))
        port.set_friendly_name(name)
        port.output(0).get_tensor().set_names({name})
        added.append(port)
        return port

    random = np.random.default_rng(3)
    tokens, rows = take("inp_tokens", Type.i32, [1, 1, 1, -1]), take("out_ids", Type.i32, [1, 1, 1, -1])
    mask = take("self_kq_mask", Type.f32, [-1, 1, -1, -1])
    table = ops.constant(random.standard_normal((VOCAB, WIDTH)).astype(np.float32))
    looked_up = ops.gather(table, ops.squeeze(tokens, integers([0, 1])), integers(0))
    x = ops.unsqueeze(looked_up, integers([0]))  # [1, 1, T, WIDTH]
    last = take("attention_size", Type.i64, [1])
    if listed:
        active = take("seq_active", Type.i64, [-1])
        count: Node = ops.shape_of(active)
    else:
        count = take("n_seq_active", Type.i64, [1])
        first, end = take("seq_active_start", Type.i64, [1]), take("seq_active_end", Type.i64, [1])
    results = []

    def seen(kind: str, new: Node) -> Node:
        """The cache with new rows, and what attention reads of it: ``[B, HEADS, cells, SIZE]``."""
        cache = take(f"cache_{kind}_l0", Type.f32, [1, sequences, -1, WIDTH])
        at = ops.squeeze(take(f"{kind}_idxs", Type.i64, [1, 1, 1, -1]), integers([0, 1, 2]))
        row = shaped(cache, [1, 1, -1 if listed else sequences * cells, WIDTH])
        whole = shaped(ops.scatter_update(row, at, new, integers(2)), [1, sequences, -1, WIDTH])
        whole.output(0).get_tensor().set_names({f"cache_{kind}_l0_out"})
        results.append(ops.result(whole))
        heads = shaped(whole, [sequences, -1 if listed else cells, HEADS, SIZE])
        step, sequence_axis = integers([1]), integers([0])
        chosen = ops.gather(heads, active, integers(0)) if listed else ops.slice(heads, first, end, step, sequence_axis)
        covered = ops.slice(chosen, integers([0]), last, step, integers([1]))
        return ops.transpose(covered, integers([0, 2, 1, 3]))

    target = ops.concat([integers([1]) if one_query else count, integers([-1, HEADS, SIZE])], axis=0)
    query = ops.transpose(ops.reshape(x, target, special_zero=False), integers([0, 2, 1, 3]))
    key, value = seen("k", ops.multiply(x, np.float32(0.5))), seen("v", ops.add(x, np.float32(0.25)))
    attended = ops.scaled_dot_product_attention(query, key, value, mask)
    out = shaped(ops.transpose(attended, integers([0, 2, 1, 3])), [-1, WIDTH])
    picked = ops.gather(out, ops.squeeze(rows, integers([0, 1, 2])), integers(0))
    logits = ops.matmul(picked, table, transpose_a=False, transpose_b=True)
    logits.output(0).get_tensor().set_names({"logits"})
    return Model([*results, ops.result(logits)], added, "sequences")


def integers(value: int | list[int]) -> Node:
    return ops.constant(np.asarray(value, dtype=np.int64))


def shaped(value: Node, target: list[int]) -> Node:
    return ops.reshape(value, integers(target), special_zero=False)


def write_odd_rows(model: Model) -> None:
    """Let a dump of slots write back what no pass knows, in layer 1's conv window: Relu of the rows."""
    update = next(c for c in slot_caches(model) if c.name == "cache_r_l1").update
    assert update is not None
    odd = ops.relu(update.rows)
    odd.set_friendly_name("odd")
    update.whole.input_value(1).get_node().input(1).replace_source_output(odd.output(0))
    model.validate_nodes_and_infer_types()
