"""Words for ops and for what distinguishes two of them."""

from __future__ import annotations

import numpy as np

from ovpasses._openvino import Constant
from ovpasses.equivalence._canonical import Graph, attributes, constant_bytes

# Inputs of one op that are named.
MOST_FEEDS = 6


def input_difference(a: Graph, b: Graph, from_a: tuple[int, int], from_b: tuple[int, int]) -> str:
    """What distinguishes two inputs, each a node and its output port."""
    one, other = a.nodes[from_a[0]], b.nodes[from_b[0]]
    if isinstance(one, Constant) and isinstance(other, Constant):
        return constant_difference(one, other)
    return f"{reference(a, *from_a)} in a, {reference(b, *from_b)} in b"


def constant_difference(one: Constant, other: Constant) -> str:
    """Type, shape or the first of the values in which two Constants differ."""
    kinds = [f"{c.get_element_type().get_type_name()}{list(c.get_output_shape(0))}" for c in (one, other)]
    if kinds[0] != kinds[1]:
        return f"Constant {kinds[0]} in a, {kinds[1]} in b"
    left, right = constant_bytes(one), constant_bytes(other)
    typed = one.get_element_type().get_type_name() in ("f16", "f32", "f64", "i32", "i64", "boolean", "u8", "i8")
    if typed:
        left, right = one.data.reshape(-1), other.data.reshape(-1)
    if typed and left.size <= 8:
        return f"Constant {kinds[0]} {one.data.tolist()} in a, {other.data.tolist()} in b"
    wrong = _unequal(left, right) if left.size == right.size else np.zeros(1, dtype=np.int64)
    first = int(wrong[0]) if wrong.size else 0
    unit = "values" if typed else "bytes"
    where = np.unravel_index(first, one.get_output_shape(0)) if typed else (first,)
    at = "[" + ", ".join(str(int(k)) for k in where) + "]"
    values = f"{left[first]} in a, {right[first]} in b"
    return f"Constant {kinds[0]}: {wrong.size} of {left.size} {unit} differ, the first at {at}: {values}"


def _unequal(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Where values differ in their bytes, as which they are compared: 0.0 is not -0.0, and NaN is NaN."""
    rows = [np.ascontiguousarray(one).view(np.uint8).reshape(one.size, -1) for one in (left, right)]
    return np.flatnonzero((rows[0] != rows[1]).any(axis=1))


def quoted(names: set[str]) -> str:
    """Names for a sentence."""
    return ", ".join(f'"{name}"' for name in sorted(names))


def name_of(graph: Graph, i: int) -> str:
    """The friendly name of an op, with the state it reads or writes."""
    state = graph.state_of.get(i)
    of_state = "" if state is None else f" of state {graph.states.ids[state]}"
    return f'"{graph.nodes[i].get_friendly_name()}"{of_state}'


def reference(graph: Graph, i: int, index: int) -> str:
    """An output of an op in short."""
    if graph.types[i] == "Constant":
        node = graph.nodes[i]
        kind = f"{node.get_element_type().get_type_name()}{list(node.get_output_shape(0))}"
        small = node.get_byte_size() <= 64 and kind[0] in "fi" and not kind.startswith(("f8", "f4", "i4"))
        return f"Constant {kind}" + (f" {node.data.tolist()}" if small else "")
    port = f".{index}" if len(graph.nodes[i].outputs()) > 1 else ""
    return f"{graph.types[i]}{port} {name_of(graph, i)}"


def describe(graph: Graph, i: int) -> str:
    """An op with what surrounds it: type, name, shape, inputs."""
    node = graph.nodes[i]
    shapes = ", ".join(f"{o.get_element_type().get_type_name()}{o.get_partial_shape()}" for o in node.outputs())
    known = ", ".join(f"{k}={v}" for k, v in attributes(node).items() if graph.types[i] != "Parameter")
    sources = graph.sources[i]
    feeds = ", ".join(reference(graph, *source) for source in sources[:MOST_FEEDS])
    feeds += f" and {len(sources) - MOST_FEEDS} more" if len(sources) > MOST_FEEDS else ""
    text = f"{graph.types[i]} {name_of(graph, i)} {shapes or 'sink'}"
    return text + (f" ({known})" if known else "") + (f" <- {feeds}" if feeds else "")
