"""Edits that several passes make on caches in slots."""

from __future__ import annotations

from ovpasses._openvino import Node, ops
from ovpasses.importers._slot_rows import Rows
from ovpasses.passes._edit import const, like

TO_THE_END = 2**31 - 1


def end_of_rows(rows: Rows, slots: int, width: int, origin: Node) -> Node:
    """New rows ``[1, 1, slots, width]`` taken at the end of what a layer computes, whatever the number of tokens.

    Args:
        rows: what they are the end of.
        slots: slots that are written.
        width: elements of one slot.
        origin: the node that they stand for.
    """
    start, stop, step = ([rows.start(slots)], [TO_THE_END], [1])
    cut = ops.slice(rows.source, const(start), const(stop), const(step), const([rows.axis]))
    whole = ops.reshape(like(cut, rows.cut), const([1, 1, slots, width]), special_zero=False)
    return like(whole, origin)
