"""Tiny graphs in the forms that ggml exports: caches as states or as inputs and outputs, in every layout.

A layout is four letters in order: ``b`` batch, ``s`` sequence, ``h`` heads, ``d`` size of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from openvino import Dimension, Model, PartialShape, Type

from ovpasses._openvino import Node, Output, Parameter, Variable, VariableInfo, assign, ops, read_value

ROWS = "bshd"  # as projections make them
ATTENTION = "bhsd"  # as attention takes them

Grow = Callable[[int, str, Output], Output]


@dataclass(frozen=True)
class Decoder:
    """Knobs of the tiny decoder: ``x [1, tokens, width] f32 -> y``, attention over everything so far.

    Attributes:
        layers: number of layers.
        heads, size: key/value heads and their size, for all layers or one each.
        repeats: query heads per key/value head.
        dtype: element type of caches and attention.
        layout: of the caches, for all layers or one each.
        reader: what lies between a cache and attention. "transpose-expand" (llama.cpp's OpenVINO backend),
            "expand-transpose" (the GGUF frontend; caches with the sequence on dim 1 only).
        attention: "sdpa", or "matmul" for MatMul, Softmax, MatMul.
        initial: states have an initial value.
        split: key and value rows come from the second and third port of one VariadicSplit.
        width: size of x and y.
        seed: of the weights.
    """

    layers: int = 1
    heads: int | Sequence[int] = 2
    size: int = 4
    repeats: int = 1
    dtype: str = "f32"
    layout: str | Sequence[str] = ROWS
    reader: str = "transpose-expand"
    attention: str = "sdpa"
    initial: bool = True
    split: bool = False
    width: int = 8
    seed: int = 0

    def heads_of(self, layer: int) -> int:
        return self.heads if isinstance(self.heads, int) else self.heads[layer]

    def layout_of(self, layer: int) -> str:
        return self.layout if isinstance(self.layout, str) else self.layout[layer]


def stateful(knobs: Decoder) -> Model:
    """Caches as states: ``ReadValue -> Concat(rows) -> {Assign, attention}``, variable ``cache_k_l0cache_k_l0``."""
    sinks: list[Node] = []

    def grow(layer: int, kind: str, rows: Output) -> Output:
        layout, name = knobs.layout_of(layer), f"cache_{kind}_l{layer}"
        shape = cache_shape(layout, knobs.heads_of(layer), knobs.size)
        read, variable = state(name, shape, knobs.dtype, initial=knobs.initial)
        grown = ops.concat([read.output(0), transposed(rows, ROWS, layout)], axis=layout.index("s"))
        grown.set_friendly_name(f"{name}/grown")
        sinks.append(written(grown.output(0), variable))
        return grown.output(0)

    x, y = _decoder(knobs, grow)
    return Model([y], sinks, [x], "tiny_stateful")


def stateless(
    knobs: Decoder, names: tuple[str, str] = ("past_key_values.{layer}.{kind}", "present.{layer}.{kind}")
) -> Model:
    """Caches as inputs and outputs: ``past -> Concat(rows) -> {Result, attention}``.

    Args:
        knobs: the decoder.
        names: tensor names of a cache's input and output; ``{kind}`` is "key" or "value".
    """
    pasts: list[Node] = []
    presents: list[Node] = []

    def grow(layer: int, kind: str, rows: Output) -> Output:
        layout = knobs.layout_of(layer)
        into, out = (n.format(layer=layer, kind={"k": "key", "v": "value"}[kind]) for n in names)
        past = parameter(into, cache_shape(layout, knobs.heads_of(layer), knobs.size), knobs.dtype)
        grown = ops.concat([past.output(0), transposed(rows, ROWS, layout)], axis=layout.index("s"))
        pasts.append(past)
        presents.append(result(grown.output(0), out))
        return grown.output(0)

    x, y = _decoder(knobs, grow)
    return Model([y, *presents], [x, *pasts], "tiny_stateless")


def scattered(knobs: Decoder) -> Model:
    """Caches as the GGUF frontend imports them: rows flattened to ``[1,1,t*h,d]`` and scattered on the heads axis."""
    pasts: list[Node] = []
    presents: list[Node] = []
    index = parameter("inp_kv_idx", [-1], "i64")

    def grow(layer: int, kind: str, rows: Output) -> Output:
        name = f"cache_{kind}_l{layer}"
        cache = parameter(name, cache_shape(ROWS, knobs.heads_of(layer), knobs.size), knobs.dtype)
        flat = ops.reshape(rows, int_constant([1, 1, -1, knobs.size]), special_zero=False)
        update = ops.scatter_update(cache, index, flat, int_constant(2))
        pasts.append(cache)
        presents.append(ops.result(update))
        presents[-1].set_friendly_name(f"{name}_out")
        return update.output(0)

    x, y = _decoder(knobs, grow)
    return Model([y, *presents], [x, index, *pasts], "tiny_scattered")


def recurrent(
    layers: int = 1, channels: int = 4, window: int = 3, heads: int = 2, size: int = 2, seed: int = 0
) -> Model:
    """States that are replaced whole, two per layer, paired as the GGUF frontend pairs them (in rt_info).

    ``conv_state_l<N> [1, 1, channels, window]`` keeps the last columns of what went by,
    ``ssm_state_l<N> [1, heads, size, size]`` decays and takes up the mean of the new ones.
    """
    random = np.random.default_rng(seed)
    x = parameter("x", [1, 1, channels, -1], "f32")
    inputs, results, pairs, value = [x], [], [], x.output(0)
    for layer in range(layers):
        conv = parameter(f"conv_state_l{layer}", [1, 1, channels, window], "f32")
        ssm = parameter(f"ssm_state_l{layer}", [1, heads, size, size], "f32")
        seen = ops.concat([conv, value], axis=3)
        kept = ops.slice(seen, *(int_constant([v]) for v in (-window, np.iinfo(np.int64).max, 1, 3)))
        mean = ops.reduce_mean(seen, int_constant([2, 3]), keep_dims=True)
        decay = ops.constant(random.uniform(0.5, 0.9, (1, heads, size, size)).astype(np.float32))
        state_out = ops.add(ops.multiply(ssm, decay), mean)
        value = ops.add(value, ops.reduce_sum(state_out, int_constant([1, 2, 3]), keep_dims=True)).output(0)
        inputs += [conv, ssm]
        for into, out in ((conv, kept), (ssm, state_out)):
            name = into.get_friendly_name()
            results.append(result(out.output(0), f"{name}_out"))
            pairs += [name, f"{name}_out"]
    model = Model([result(value, "y"), *results], inputs, "tiny_recurrent")
    model.set_rt_info(pairs, ["gguf_recurrent_states"])
    return model


def _decoder(knobs: Decoder, grow: Grow) -> tuple[Node, Node]:
    """Layers of attention with a residual; ``grow`` adds rows to a cache and returns all of it."""
    random = np.random.default_rng(knobs.seed)
    x = parameter("x", [1, -1, knobs.width], "f32")
    value = x.output(0)
    for layer in range(knobs.layers):
        heads = knobs.heads_of(layer)
        queries = heads * knobs.repeats
        sizes = [count * knobs.size for count in (queries, heads, heads)]
        q, k, v = _projected(value, sizes, random, split=knobs.split)
        q = _heads(q, queries, knobs.size, knobs.dtype)
        keys = _read(knobs, layer, grow(layer, "k", _heads(k, heads, knobs.size, knobs.dtype)))
        values = _read(knobs, layer, grow(layer, "v", _heads(v, heads, knobs.size, knobs.dtype)))
        seen = _attention(knobs, transposed(q, ROWS, ATTENTION), keys, values)
        flat = ops.reshape(transposed(seen, ATTENTION, ROWS), int_constant([1, -1, sizes[0]]), special_zero=False)
        out = ops.matmul(converted(flat.output(0), "f32"), _weight(random, sizes[0], knobs.width), False, False)
        out.set_friendly_name(f"out_{layer}")
        value = ops.add(value, out).output(0)
    return x, result(value, "y")


def _projected(x: Output, sizes: Sequence[int], random: np.random.Generator, *, split: bool) -> list[Output]:
    width = x.get_partial_shape()[2].get_length()
    if split:
        joined = ops.matmul(x, _weight(random, width, sum(sizes)), False, False)
        return list(ops.variadic_split(joined, int_constant(2), int_constant(sizes)).outputs())
    return [ops.matmul(x, _weight(random, width, size), False, False).output(0) for size in sizes]


def _weight(random: np.random.Generator, rows: int, columns: int) -> Node:
    node: Node = ops.constant((random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32))
    return node


def _heads(x: Output, heads: int, size: int, dtype: str) -> Output:
    """``[1, t, heads*size]`` to ``[1, t, heads, size]``."""
    return converted(ops.reshape(x, int_constant([1, -1, heads, size]), special_zero=False).output(0), dtype)


def _read(knobs: Decoder, layer: int, cache: Output) -> Output:
    """A cache as attention takes it, its heads repeated for the queries."""
    layout, heads = knobs.layout_of(layer), knobs.heads_of(layer)
    if knobs.reader == "expand-transpose":
        return transposed(expanded(cache, layout, heads, knobs.size, knobs.repeats), layout, ATTENTION)
    return expanded(transposed(cache, layout, ATTENTION), ATTENTION, heads, knobs.size, knobs.repeats)


def _attention(knobs: Decoder, q: Output, k: Output, v: Output) -> Output:
    if knobs.attention == "sdpa":
        node: Node = ops.scaled_dot_product_attention(q, k, v)
        return node.output(0)
    scale = ops.constant(np.array(1 / np.sqrt(knobs.size)), dtype=q.get_element_type())
    scores = ops.softmax(ops.multiply(ops.matmul(q, k, False, True), scale), -1)
    return ops.matmul(scores, v, False, False).output(0)


def expanded(x: Output, layout: str, heads: int, size: int, repeats: int) -> Output:
    """Every head ``repeats`` times: ``Unsqueeze -> Broadcast -> Reshape`` behind the heads axis."""
    if repeats == 1:
        return x
    after = layout.index("h") + 1
    counts = [1] * 5
    counts[after] = repeats
    dims = [{"b": 0, "s": -1, "h": heads * repeats, "d": size}[letter] for letter in layout]
    unsqueezed = ops.unsqueeze(x, int_constant([after]))
    repeated = ops.broadcast(unsqueezed, int_constant(counts), broadcast_spec="BIDIRECTIONAL")
    return ops.reshape(repeated, int_constant(dims), special_zero=True).output(0)


def transposed(x: Output, layout: str, wanted: str) -> Output:
    """From one layout to another; nothing when they are the same."""
    if layout == wanted:
        return x
    return ops.transpose(x, int_constant([layout.index(letter) for letter in wanted])).output(0)


def converted(x: Output, dtype: str) -> Output:
    return x if x.get_element_type() == getattr(Type, dtype) else ops.convert(x, dtype).output(0)


def cache_shape(layout: str, heads: int, size: int) -> list[int]:
    """Shape of a cache, -1 for the sequence."""
    return [{"b": 1, "s": -1, "h": heads, "d": size}[letter] for letter in layout]


def state(
    name: str, shape: Sequence[int], dtype: str, *, initial: bool = True, suffix: str | None = None
) -> tuple[Node, Variable]:
    """A ReadValue (empty at first: -1 dims are 0) and its Variable, named as in llama.cpp's dumps."""
    info = VariableInfo()
    info.variable_id = name + (name if suffix is None else suffix)
    info.data_shape = partial_shape(shape)
    info.data_type = getattr(Type, dtype)
    variable = Variable(info)
    empty = ops.constant(np.zeros([max(0, d) for d in shape], np.float32), dtype=info.data_type)
    read = read_value(empty, variable) if initial else read_value(variable)
    read.set_friendly_name(name)
    read.output(0).get_tensor().set_names({name})
    return read, variable


def written(value: Output, variable: Variable) -> Node:
    """The Assign of a value (of an op with one output)."""
    return assign(value.get_node(), variable)


def parameter(name: str, shape: Sequence[int], dtype: str) -> Node:
    node = Parameter(getattr(Type, dtype), partial_shape(shape))
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node


def result(value: Output, name: str) -> Node:
    node: Node = ops.result(value)
    node.set_friendly_name(name)
    node.output(0).get_tensor().add_names({name})
    return node


def int_constant(value: Any) -> Node:
    node: Node = ops.constant(np.asarray(value, dtype=np.int64))
    return node


def partial_shape(shape: Sequence[int]) -> PartialShape:
    return PartialShape([Dimension(d) if d >= 0 else Dimension() for d in shape])
