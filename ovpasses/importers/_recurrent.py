"""Which caches of a layer are recurrent states, and of what heads and sizes, by what the graph does with them."""

from __future__ import annotations

from openvino import PartialShape

from ovpasses._openvino import Node, Output
from ovpasses.importers._head_counts import find_growth

DELTA_NETS = ("GatedDeltaNet", "Loop")

# What a state passes on its way into a delta net: views, the choice of its slot and of its beam, what clears it.
_ON_THE_WAY = ("Convert", "Gather", "Multiply", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_VIEWS = ("Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_LIMIT = 64


def growth_of(cache: Output) -> Node | None:
    """What adds rows to a cache, also where the cache is viewed as one long row of cells for that."""
    found = find_growth(cache)
    for reader in [] if found is not None else cache.get_target_inputs():
        if reader.get_index() == 0 and reader.get_node().get_type_name() == "Reshape":
            found = found or find_growth(reader.get_node().output(0))
    return found


def is_grown(cache: Output) -> bool:
    """Whether rows are added to a cache and all of it is kept; a conv window is joined with columns, then cut."""
    update = growth_of(cache)
    pending = [update.output(0)] if update is not None else []
    while pending:
        for reader in pending.pop().get_target_inputs():
            node = reader.get_node()
            if node.get_type_name() in ("Result", "Assign"):
                return True
            if node.get_type_name() in _VIEWS and reader.get_index() == 0:
                pending.extend(node.outputs())
    return False


def delta_net_state(cache: Output) -> PartialShape | None:
    """The shape ``[batch, heads, key size, value size]`` in which a state goes into a delta net; None when it does not.

    The recurrence of a single token has no op of its own when it is lowered; there the last view of rank 4 that holds
    the elements of one sequence counts.
    """
    pending, seen = [cache], 0
    viewed: PartialShape | None = None
    while pending and seen < _LIMIT:
        here, seen = pending.pop(), seen + 1
        for reader in here.get_target_inputs():
            node, shape = reader.get_node(), here.get_partial_shape()
            if node.get_type_name() in DELTA_NETS and shape.rank.is_static and shape.rank.get_length() == 4:
                return shape
            if node.get_type_name() in _ON_THE_WAY:
                pending.extend(node.outputs())
                viewed = viewed or _heads_view(node, cache)
    return viewed


def _heads_view(node: Node, cache: Output) -> PartialShape | None:
    """``[batch, heads, size, size]`` of a flat state ``[1, 1, slots, heads*size*size]``."""
    shape, flat = node.get_output_partial_shape(0), cache.get_partial_shape()
    ranks = [one.rank.get_length() if one.rank.is_static else None for one in (shape, flat)]
    if node.get_type_name() != "Transpose" or ranks != [4, 4]:
        return None
    dims = [shape[d].get_length() if shape[d].is_static else 0 for d in (1, 2, 3)]
    return shape if flat[3].is_static and dims[0] * dims[1] * dims[2] == flat[3].get_length() else None
