"""What several passes edit on caches in slots, and what they leave there."""

from __future__ import annotations

from openvino import Model

from ovpasses._openvino import Node, ops
from ovpasses.importers._slot_rows import Rows
from ovpasses.importers._slots import SlotCache
from ovpasses.passes._cache_pairs import result_names
from ovpasses.passes._edit import const, like

TO_THE_END = 2**31 - 1


def end_of_rows(rows: Rows, slots: int, width: int, origin: Node) -> Node:
    """New rows ``[1, 1, slots, width]`` taken at the end of what a layer computes, whatever the number of tokens.

    Those that an input chooses (``chunk_valid_len``) stay as they are chosen.

    Args:
        rows: what they are the end of.
        slots: slots that are written.
        width: elements of one slot.
        origin: the node that they stand for.
    """
    cut = rows.cut
    if cut.get_type_name() == "Slice":
        start, stop, step = ([rows.start(slots)], [TO_THE_END], [1])
        cut = like(ops.slice(rows.source, const(start), const(stop), const(step), const([rows.axis])), rows.cut)
    return like(ops.reshape(cut, const([1, 1, slots, width]), special_zero=False), origin)


def whole_write(model: Model, cache: SlotCache) -> Node | None:
    """The Result of the cache's name that takes the new rows alone, without parts of the old value around them."""
    if cache.writes:
        return None
    own = {cache.parameter.get_friendly_name(), cache.name}
    found = [result for result in model.get_results() if result not in cache.kept and own & result_names(result)]
    return found[0] if found else None
