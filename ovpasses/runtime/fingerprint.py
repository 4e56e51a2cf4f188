"""A fingerprint of a model's weights, the same wherever the file lies and whatever passes have run."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from openvino import CompiledModel, Model
from xxhash import xxh3_128, xxh3_128_hexdigest

from ovpasses.importers import ImportedModel

# Shapes, axes and permutations, of which passes add some and drop others.
NOT_WEIGHTS = ("i32", "i64", "u32", "u64", "boolean", "string")

_ATTRIBUTE = "ovpasses_fingerprint"
_START = 1 << 12  # bytes that tell of nearly every constant that it is not zero


def weights_fingerprint(model: Model) -> str:
    """A digest of the weights: of every constant that has several elements, is no integer for shapes, and is not zero.

    Bytes and type of each count; names, order, shapes and how often a constant is there do not, since passes change
    them. The digest is XXH3's of 128 bits, which runs as fast as memory is read.

    Args:
        model: a graph before or after passes.

    Returns:
        32 hex digits.
    """
    found = set()
    for node in model.get_ops():
        if node.get_type_name() != "Constant":
            continue
        kind = node.get_output_element_type(0).get_type_name()
        count = int(np.prod([int(d) for d in node.get_output_shape(0)]))
        if kind in NOT_WEIGHTS or count < 2:
            continue
        digest = _digest(np.asarray(node.data), kind, count)
        if digest is not None:
            found.add(digest)
    return xxh3_128_hexdigest(b"".join(sorted(found)))


def _digest(values: np.ndarray, kind: str, count: int) -> bytes | None:
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    if not data[:_START].any() and not data.any():
        return None
    made = xxh3_128(f"{kind} {count}".encode())
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
