"""Recurrent states that llama.cpp's dumps keep in numbered slots, read by a list and written back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openvino import Model

from ovpasses._openvino import Node, Output
from ovpasses.importers._slot_rows import VIEWS, Rows, find_rows, folded
from ovpasses.importers._walk import consumers, port_name

SLOTS = 2  # the dim of [1, 1, slots, width] that counts slots


@dataclass(frozen=True)
class Reset:
    """What clears slots ``index .. index + count - 1`` before they are read: the inputs that take the two numbers."""

    index: tuple[Any, ...]
    count: tuple[Any, ...]


@dataclass(frozen=True)
class SlotRead:
    """``Gather(table, Slice(list, begin, end))``.

    Attributes:
        gather: the Gather.
        slots: the input that lists slots.
        begin, end: which part of the list; end is None where all of it is taken.
    """

    gather: Node
    slots: Node
    begin: Output | None
    end: Output | None

    @property
    def is_active(self) -> bool:
        """Whether it reads the slots of this call's sequences, which come first in the list."""
        return self.begin is None or folded(self.begin) == 0


@dataclass(frozen=True)
class SlotWrite:
    """``Concat(table[:begin], rows, table[begin + n:])`` or ``ScatterUpdate(table, list, rows)``, for a Result.

    Attributes:
        result: the Result.
        rows: what is written, without what surrounds it.
        begin: the first slot that is written; None where the list of slots says which.
    """

    result: Node
    rows: Output
    begin: Output | None

    @property
    def whole(self) -> Node:
        """What makes the new cache: the Concat or the ScatterUpdate."""
        return self.result.input_value(0).get_node()


@dataclass(frozen=True)
class SlotCache:
    """A cache ``[1, 1, slots, width]`` of which a call reads the slots that an input lists.

    Attributes:
        parameter: its input.
        table: the cache when the slots to clear are cleared, ``[1, 1, slots, width]``.
        reset: what clears them; None when nothing does.
        reads: the Gathers.
        writes: the Results with new rows: those of this call's sequences, and those that a defrag has moved.
        kept: the Results that carry the table out as it is.
    """

    parameter: Node
    table: Output
    reset: Reset | None
    reads: tuple[SlotRead, ...]
    writes: tuple[SlotWrite, ...]
    kept: tuple[Node, ...]

    @property
    def name(self) -> str:
        return port_name(self.parameter)

    @property
    def slots(self) -> int | None:
        """How many slots there are; None when the graph does not say."""
        dim = self.table.get_partial_shape()[SLOTS]
        return dim.get_length() if dim.is_static else None

    @property
    def width(self) -> int:
        """Elements of one slot."""
        return int(self.parameter.get_output_partial_shape(0)[3].get_length())

    @property
    def active(self) -> SlotRead | None:
        """The Gather of this call's sequences."""
        return next((read for read in self.reads if read.is_active), None)

    @property
    def remainders(self) -> list[SlotWrite]:
        """Writes of rows that are only moved: gathered from the cache itself."""
        moved = {read.gather for read in self.reads if not read.is_active}
        return [write for write in self.writes if behind_views(write.rows).get_node() in moved]

    @property
    def update(self) -> SlotWrite | None:
        """The write of the new state; None when the graph writes none, or several."""
        moved = {write.result for write in self.remainders}
        new = [write for write in self.writes if write.result not in moved]
        return new[0] if len(new) == 1 else None

    @property
    def rows(self) -> Rows | str:
        """Where the new state comes from, or the reason why that cannot be told."""
        update = self.update
        return find_rows(update.rows, self.width) if update else "nothing writes new rows into it, or several do"


def slot_caches(model: Model) -> Iterator[SlotCache]:
    """Every cache that is read by a list of slots, in the order of the model's inputs."""
    for parameter in model.get_parameters():
        shape = parameter.get_output_partial_shape(0)
        if shape.rank.is_dynamic or shape.rank.get_length() != 4 or shape[3].is_dynamic:
            continue
        if parameter.get_element_type().is_real():
            table, reset = _table(parameter.output(0))
            reads = tuple(_reads(table))
            if reads:
                writes, kept = _results(table)
                yield SlotCache(parameter, table, reset, reads, writes, kept)


def _table(cache: Output) -> tuple[Output, Reset | None]:
    """The cache behind the Multiply that clears slots, and what clears them."""
    for value in _views_of(cache):
        for reader in consumers(value):
            node = reader.get_node()
            if node.get_type_name() == "Multiply":
                reset = _reset(node.input_value(1 - reader.get_index()))
                if reset is not None:
                    return node.output(0), reset
    return cache, None


def _reset(keep: Output) -> Reset | None:
    """``slot < index or slot >= index + count`` as a factor of 0 or 1, for one index or for all of several."""
    either = behind_views(keep).get_node()
    if either.get_type_name() == "ReduceLogicalAnd":
        either = behind_views(either.input_value(0)).get_node()
    if either.get_type_name() != "LogicalOr":
        return None
    sides = {either.input_value(i).get_node().get_type_name(): either.input_value(i).get_node() for i in (0, 1)}
    if set(sides) != {"Less", "GreaterEqual"}:
        return None
    end = sides["GreaterEqual"].input_value(1).get_node()
    if end.get_type_name() != "Add":
        return None
    return Reset((sides["Less"].input(1), end.input(0)), (end.input(1),))


def _reads(table: Output) -> Iterator[SlotRead]:
    for value in _views_of(table):
        for reader in consumers(value):
            node = reader.get_node()
            if node.get_type_name() == "Gather" and reader.get_index() == 0:
                read = _read(node)
                if read is not None:
                    yield read


def _read(gather: Node) -> SlotRead | None:
    chosen = behind_views(gather.input_value(1)).get_node()
    begin = end = None
    if chosen.get_type_name() == "Slice":
        begin, end = chosen.input_value(1), chosen.input_value(2)
        chosen = behind_views(chosen.input_value(0)).get_node()
    is_list = chosen.get_type_name() == "Parameter" and chosen.get_element_type().is_integral_number()
    return SlotRead(gather, chosen, begin, end) if is_list else None


def _results(table: Output) -> tuple[tuple[SlotWrite, ...], tuple[Node, ...]]:
    writes, kept = {}, []
    for value in _views_of(table):
        for reader in consumers(value):
            node = reader.get_node()
            if node.get_type_name() == "Result":
                kept.append(node)
            found = [_listed_write(node)] if node.get_type_name() == "ScatterUpdate" else []
            around = consumers(node.output(0)) if node.get_type_name() == "Slice" else []
            found += [_write(consumer.get_node(), table) for consumer in around]
            writes.update({write.result: write for write in found if write is not None})
    return tuple(writes.values()), tuple(kept)


def _listed_write(scatter: Node) -> SlotWrite | None:
    axis = scatter.input_value(3).get_node()
    results = [i.get_node() for i in consumers(scatter.output(0)) if i.get_node().get_type_name() == "Result"]
    if axis.get_type_name() != "Constant" or int(axis.get_data().ravel()[0]) != SLOTS or len(results) != 1:
        return None
    return SlotWrite(results[0], scatter.input_value(2), None)


def _write(concat: Node, table: Output) -> SlotWrite | None:
    if concat.get_type_name() != "Concat" or _concat_axis(concat) != SLOTS or concat.get_input_size() != 3:
        return None
    results = [i.get_node() for i in consumers(concat.output(0)) if i.get_node().get_type_name() == "Result"]
    before, after = (concat.input_value(i).get_node() for i in (0, 2))
    around = all(n.get_type_name() == "Slice" and n.input_value(0) == table for n in (before, after))
    if not around or len(results) != 1:
        return None
    return SlotWrite(results[0], _whole_width(concat.input_value(1)), before.input_value(2))


def _concat_axis(concat: Node) -> int:
    return int(concat.get_attributes()["axis"]) % 4


def _whole_width(rows: Output) -> Output:
    """Rows without the columns before and after them, of which there are none: ``Concat(3, [..,0], rows, [..,0])``."""
    node = rows.get_node()
    if node.get_type_name() != "Concat" or _concat_axis(node) != 3 or node.get_input_size() != 3:
        return rows
    empty = all(node.input_value(i).get_partial_shape()[3] == 0 for i in (0, 2))
    return node.input_value(1) if empty else rows


def _views_of(value: Output) -> Iterator[Output]:
    """A value and the views of it."""
    pending = [value]
    while pending:
        here = pending.pop()
        yield here
        first = [i.get_node() for i in consumers(here) if i.get_index() == 0]
        pending += [node.output(0) for node in first if node.get_type_name() in VIEWS]


def behind_views(value: Output) -> Output:
    """What a value is a view of; an index that is broadcast is one too."""
    while value.get_node().get_type_name() in (*VIEWS, "Convert", "Broadcast"):
        value = value.get_node().input_value(0)
    return value
