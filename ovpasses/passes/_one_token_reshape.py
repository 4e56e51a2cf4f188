"""Reshapes captured with a single token, whose target has ones everywhere: which of them is the token axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from openvino import Model

from ovpasses._openvino import Node, Output
from ovpasses.passes._edit import const_value, consumers

# Ops of one operand that keep its shape, and of two that broadcast them against each other.
_UNARY = ("Convert", "Sigmoid", "Swish", "Relu", "Exp", "Negative", "Sqrt")
_BINARY = ("Add", "Multiply", "Subtract", "Divide")

# What a Slice to the end of a dim of unknown length has as its bound, or a little less.
_NO_BOUND = 2**30


@dataclass(frozen=True)
class OneToken:
    """A Reshape to ``target``, in which -1 stands on the token axis."""

    reshape: Node
    target: list[int]


def one_token_reshapes(model: Model) -> Iterator[tuple[str, OneToken | str]]:
    """Every Reshape to constant dims that hold fewer elements than come in, with its repair or why there is none."""
    for node in model.get_ordered_ops():
        target = const_value(node.input_value(1)) if node.get_type_name() == "Reshape" else None
        if target is None or (target <= 0).any():
            continue
        tokens = _tokens(node.input_value(0), prod(target.tolist()))
        if tokens is not None:
            yield node.get_friendly_name(), _repair(node, [int(d) for d in target], tokens)


def _tokens(value: Output, elements: int) -> int | None:
    """How many times the elements of the target may come in, as far as bounds tell; None when no more than once."""
    shape = value.get_partial_shape()
    if shape.rank.is_dynamic or shape.is_static:
        return None  # what is static has been checked by OpenVINO itself
    most = [int(shape[d].get_max_length()) for d in range(shape.rank.get_length())]
    if any(m < 0 or m > _NO_BOUND for m in most) or prod(most) <= elements or prod(most) % elements:
        return None
    return prod(most) // elements


def _repair(reshape: Node, target: list[int], tokens: int) -> OneToken | str:
    ones = [d for d, length in enumerate(target) if length == 1]
    row = _row(reshape.input_value(0), tokens)
    # The elements of one token stay together: as many lie behind the token axis as did before.
    fitting = [d for d in ones if prod(target[d + 1 :]) == row] if row is not None else ones
    told = _told_by_readers(reshape.output(0), len(target), tokens)
    axes = [d for d in fitting if d in told] or (fitting if len(fitting) == 1 else [])
    if len(axes) != 1:
        return f"{tokens} tokens come in, its target {target} has no axis for them that its surroundings tell"
    return OneToken(reshape, [-1 if d == axes[0] else length for d, length in enumerate(target)])


def _row(value: Output, tokens: int) -> int | None:
    """Elements behind the token axis of a value, which is its one dim that may be as long."""
    shape = value.get_partial_shape()
    most = [shape[d].get_max_length() for d in range(shape.rank.get_length())]
    dynamic = [d for d in range(len(most)) if shape[d].is_dynamic and most[d] == tokens]
    return prod(most[dynamic[0] + 1 :]) if len(dynamic) == 1 else None


def _told_by_readers(value: Output, rank: int, tokens: int) -> set[int]:
    """Axes on which something that is combined with the value elementwise has as many elements as there are tokens."""
    found: set[int] = set()
    pending, seen = [value], 0
    while pending and seen < 32:
        here, seen = pending.pop(), seen + 1
        for reader in consumers(here):
            node = reader.get_node()
            if node.get_type_name() in _UNARY:
                pending.append(node.output(0))
            elif node.get_type_name() in _BINARY:
                other = node.input_value(1 - reader.get_index()).get_partial_shape()
                behind = rank - other.rank.get_length() if other.rank.is_static else rank
                dims = range(other.rank.get_length()) if other.rank.is_static and behind >= 0 else []
                found |= {behind + d for d in dims if other[d] == tokens}
                pending.append(node.output(0))
    return found
