"""A fingerprint of a model's weights, the same wherever the file lies and whatever passes have run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import prod

import numpy as np
from openvino import CompiledModel, Model, Tensor, Type
from xxhash import xxh3_128, xxh3_128_hexdigest

from ovpasses._openvino import Node
from ovpasses.errors import StateError
from ovpasses.importers import ImportedModel
from ovpasses.importers._walk import all_ops

# Shapes, axes and permutations, of which passes add some and drop others.
NOT_WEIGHTS = ("i32", "i64", "u32", "u64", "boolean", "string")

# Elements of a constant of which others may be made: the frequencies of a rope and the like, no weights of a layer.
SMALL = 1 << 12

_ATTRIBUTE = "ovpasses_fingerprint"
_START = 1 << 12  # bytes that tell of nearly every constant that it is not zero


def weights_fingerprint(model: Model) -> str:
    """A digest of the weights: of every constant that has several elements, is no integer for shapes, and is not zero.

    Those in the bodies of loops and branches are among them. Bytes and type of each count; names, order, shapes and how
    often a constant is there do not, since passes change them. What small constants alone compute counts in their
    place, since one exporter writes the frequencies of a rope, and another what they are made of. The digest is XXH3's
    of 128 bits, which runs as fast as memory is read.

    Args:
        model: a graph before or after passes.

    Returns:
        32 hex digits.
    """
    found = set()
    for node, value in _constants(model):
        kind = node.get_output_element_type(0).get_type_name()
        if kind not in NOT_WEIGHTS and value.size > 1:
            found.add(_digest(value, kind))
    return xxh3_128_hexdigest(b"".join(sorted(digest for digest in found if digest is not None)))


def _constants(model: Model) -> Iterator[tuple[Node, np.ndarray]]:
    """Every constant and its value, but for those of which others are made: in their place what they make."""
    found: dict[str, tuple[Node, np.ndarray]] = {}
    small: dict[str, np.ndarray] = {}
    made: set[str] = set()
    for node in all_ops(model):
        if node.get_type_name() == "Constant":
            value, name = _value(node), node.get_name()
            found[name] = node, value
            if value.size <= SMALL and _is_of(value, node):
                small[name] = value
            continue
        made_here = _made(node, small)
        if made_here is not None:
            found[node.get_name()] = node, made_here
            small[node.get_name()] = made_here
            made.add(node.get_name())
    for name, (node, value) in found.items():
        readers = [port.get_node().get_name() for port in node.output(0).get_target_inputs()] if name in small else []
        if not readers or not made.issuperset(readers):
            yield node, value


def _value(node: Node) -> np.ndarray:
    """What a constant holds (bytes where NumPy lacks the type); of no elements, or text, nothing."""
    if not prod(node.get_output_shape(0)) or node.get_output_element_type(0) == Type.string:
        return np.empty(0, np.uint8)
    return np.asarray(node.data)


def _is_of(value: np.ndarray, node: Node) -> bool:
    """Whether NumPy has the constant's type: bf16 comes as the f16 of the same bits, u4 as bytes."""
    return bool(Tensor(value.reshape(-1)).element_type == node.get_output_element_type(0))


def _made(node: Node, small: dict[str, np.ndarray]) -> np.ndarray | None:
    """What a node makes of small constants; None when it reads anything else, or makes other than a few floats."""
    known = []
    for number in range(node.get_input_size()):
        value = small.get(node.input_value(number).get_node().get_name())
        if value is None:  # mostly the first
            return None
        known.append(value)
    if not known or node.get_output_size() != 1 or node.get_output_partial_shape(0).is_dynamic:
        return None
    kind, shape = node.get_output_element_type(0), node.get_output_shape(0)
    if kind.get_type_name() in NOT_WEIGHTS or prod(shape) > SMALL:
        return None
    made = Tensor(kind, shape)
    with suppress(RuntimeError):  # an op that is computed by devices only
        if node.evaluate([made], [Tensor(np.ascontiguousarray(value)) for value in known]):
            return np.array(made.data)
    return None


def _digest(values: np.ndarray, kind: str) -> bytes | None:
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    if not data[:_START].any() and not data.any():
        return None
    made = xxh3_128(f"{kind} {values.size}".encode())
    made.update(data.data)
    return made.digest()


def keep_fingerprint(compiled: CompiledModel, model: Model) -> None:
    """Let a compiled model carry the fingerprint of what it was made from; the weights cannot be read off it."""
    with suppress(AttributeError):  # what stands in for a compiled model in a test may take no attributes
        setattr(compiled, _ATTRIBUTE, weights_fingerprint(model))


def fingerprint_of(compiled: CompiledModel, model: ImportedModel | Model | None = None) -> str | None:
    """The fingerprint of a compiled model: of ``model`` when that is given, else what it carries, else None."""
    if model is not None:
        return weights_fingerprint(model.model if isinstance(model, ImportedModel) else model)
    carried: str | None = getattr(compiled, _ATTRIBUTE, None)
    return carried


def pair_fingerprint(prefill: CompiledModel, decode: CompiledModel, model: ImportedModel | Model | None) -> str | None:
    """The fingerprint that both models of a static pair have.

    Raises:
        StateError: they have other weights.
    """
    first, second = fingerprint_of(prefill, model), fingerprint_of(decode, model)
    if first is not None and second is not None and first != second:
        raise StateError(f"the prefill model has weights {first}, the decode model {second}, wanted one model")
    return first or second
