"""What two graphs have in common, and what is removed, new, or changed in place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ovpasses.equivalence import structure_digest
from ovpasses.equivalence._canonical import attributes, bodies, constant_bytes
from ovpasses.visualize._view import Edge, View

KEPT, CHANGED, REMOVED, NEW = "kept", "changed", "removed", "new"

# An edge of either graph: source, output, reader, port, the ends as nodes of the union.
_UnionEdge = tuple[int, int, int, int]


@dataclass(frozen=True)
class Side:
    """One of two graphs, its nodes numbered as those of the union."""

    view: View
    number: list[int]  # position -> number in the union
    position: dict[int, int]  # number -> position


class Changes:
    """Two graphs laid over each other: nodes of one op and name are one node of the union.

    Args:
        before: the one graph.
        after: the other.
    """

    def __init__(self, before: View, after: View) -> None:
        named: dict[tuple[str, str], list[int]] = {}
        for i, kind in enumerate(before.kinds):
            named.setdefault((kind, before.name(i)), []).append(i)
        numbers, fresh = [], len(before.nodes)
        for j, kind in enumerate(after.kinds):
            same = named.get((kind, after.name(j)))
            numbers.append(same.pop(0) if same else fresh)  # several of one name are taken in order
            fresh += not same
        self.size = fresh
        self.before = Side(before, list(range(len(before.nodes))), {i: i for i in range(len(before.nodes))})
        self.after = Side(after, numbers, {number: j for j, number in enumerate(numbers)})
        self.sides = (self.before, self.after)
        self._carried = [{self.edge(side, e): side.view.carries(e) for e in _edges(side.view)} for side in self.sides]
        self.status = [self._status(number) for number in range(self.size)]

    def edge(self, side: Side, edge: Edge) -> _UnionEdge:
        return side.number[edge.source], edge.output, side.number[edge.reader], edge.port

    def edge_status(self, side: Side, edge: Edge) -> str:
        """What became of an edge: removed or new, or changed in what it carries."""
        mine, other = self._carried if side is self.before else self._carried[::-1]
        key = self.edge(side, edge)
        if key not in other:
            return REMOVED if side is self.before else NEW
        return KEPT if mine[key] == other[key] else CHANGED

    def differing(self) -> list[int]:
        """The nodes that are not kept, constants left out: those are part of what reads them."""
        return [n for n in range(self.size) if self.status[n] != KEPT and not self.is_constant(n)]

    def is_constant(self, number: int) -> bool:
        return all(s.view.constant[s.position[number]] for s in self.sides if number in s.position)

    def neighbours(self, number: int) -> set[int]:
        """What feeds a node or reads it, in either graph."""
        return {s.number[i] for s in self.sides if number in s.position for i in s.view.neighbours(s.position[number])}

    def feeds(self, number: int) -> set[int]:
        """What feeds a node, in either graph."""
        return {s.number[i] for s in self.sides if number in s.position for i in s.view.input_nodes(s.position[number])}

    def _status(self, number: int) -> str:
        i, j = self.before.position.get(number), self.after.position.get(number)
        if i is None:
            return NEW
        if j is None:
            return REMOVED
        folded = self.before.view.constant[i], self.after.view.constant[j]
        if folded[0] != folded[1]:
            return REMOVED if folded[1] else NEW  # where it is constant it is part of what reads it
        return KEPT if self._same(i, j) else CHANGED

    def _same(self, i: int, j: int) -> bool:
        """Whether two nodes are the same by themselves, with the constants they read."""
        before, after = self.before.view, self.after.view
        if len(before.inputs[i]) != len(after.inputs[j]) or not _same_op(before, i, after, j):
            return False
        for mine, theirs in zip(before.inputs[i], after.inputs[j], strict=True):
            constants = before.constant[mine.source], after.constant[theirs.source]
            if any(constants) and not (all(constants) and _same_constant(before, mine.source, after, theirs.source)):
                return False
        return True


def _edges(view: View) -> list[Edge]:
    return [edge for edges in view.inputs for edge in edges if not view.constant[edge.source]]


def _same_op(before: View, i: int, after: View, j: int) -> bool:
    a, b = before.nodes[i], after.nodes[j]
    if before.kinds[i] == "Constant":
        return _same_values(before, i, after, j)
    digests = [[structure_digest(body) for body, *_ in bodies(node)] for node in (a, b)]
    return attributes(a) == attributes(b) and digests[0] == digests[1]


def _same_constant(before: View, i: int, after: View, j: int) -> bool:
    if before.kinds[i] != after.kinds[j] or len(before.inputs[i]) != len(after.inputs[j]):
        return False
    pairs = zip(before.inputs[i], after.inputs[j], strict=True)
    return _same_op(before, i, after, j) and all(_same_constant(before, a.source, after, b.source) for a, b in pairs)


def _same_values(before: View, i: int, after: View, j: int) -> bool:
    a, b = before.nodes[i], after.nodes[j]
    if a.get_element_type() != b.get_element_type() or a.get_output_partial_shape(0) != b.get_output_partial_shape(0):
        return False
    mine, theirs = constant_bytes(a), constant_bytes(b)
    return mine.ctypes.data == theirs.ctypes.data or np.array_equal(mine, theirs)  # clones share their weights
