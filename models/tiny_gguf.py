"""Builders of tiny GGUF files with random weights (package ``gguf``), for what no recorded file has."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def write_llama(
    path: Path,
    *,
    architecture: str = "llama",
    layers: int = 1,
    heads: int = 2,
    heads_kv: int = 1,
    size: int = 8,
    vocabulary: int = 64,
    context: int = 64,
    seed: int = 0,
) -> Path:
    """A GGUF of the llama layout: weights f32, vocabulary of ``vocabulary`` made-up pieces.

    Args:
        path: the file to write.
        architecture: general.architecture; anything may be claimed.
        layers, heads, heads_kv, size: of the attention; the embedding is heads * size wide.
        vocabulary: number of tokens.
        context: context length in tokens.
        seed: of the weights.
    """
    random = np.random.default_rng(seed)
    width, inner = heads * size, 2 * heads * size

    def weights(*shape: int) -> np.ndarray:
        values: np.ndarray = random.standard_normal(shape) / np.sqrt(shape[-1])
        return values.astype(np.float32)

    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads_kv)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{i}>" for i in range(vocabulary)])
    writer.add_token_scores([0.0] * vocabulary)
    writer.add_token_types([1] * vocabulary)
    writer.add_tensor("token_embd.weight", weights(vocabulary, width))
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    writer.add_tensor("output.weight", weights(vocabulary, width))
    for layer in range(layers):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(width, dtype=np.float32))
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", np.ones(width, dtype=np.float32))
        writer.add_tensor(f"blk.{layer}.attn_q.weight", weights(width, width))
        writer.add_tensor(f"blk.{layer}.attn_k.weight", weights(heads_kv * size, width))
        writer.add_tensor(f"blk.{layer}.attn_v.weight", weights(heads_kv * size, width))
        writer.add_tensor(f"blk.{layer}.attn_output.weight", weights(width, width))
        writer.add_tensor(f"blk.{layer}.ffn_gate.weight", weights(inner, width))
        writer.add_tensor(f"blk.{layer}.ffn_up.weight", weights(inner, width))
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", weights(width, inner))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
