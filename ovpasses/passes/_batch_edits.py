"""What BatchSequences edits: the list of sequences, what reads it, and where new rows go."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from openvino import Model, PartialShape, Type

from ovpasses._openvino import Node, Output, ops
from ovpasses.importers._sequence_caches import CELLS, SequenceCache
from ovpasses.importers._slot_rows import Rows, attention_slices
from ovpasses.importers._slots import SLOTS, Reset, SlotCache, behind_views, slot_caches
from ovpasses.importers._walk import port_name
from ovpasses.importers.input_roles import input_roles
from ovpasses.passes._edit import (
    const,
    const_value,
    consumers,
    drop_unread_parameters,
    like,
    parameter,
    redirect,
    rewire,
    set_shape,
)
from ovpasses.passes._recurrent_sites import DeltaNet
from ovpasses.passes._slot_edits import TO_THE_END
from ovpasses.passes.report import PassReport

INPUT = "seq_active"

# Inputs, by role or name, with an element for each sequence of the batch.
OF_SEQUENCES = (INPUT, "cache_rs_reset_idx", "cache_rs_reset_len", "chunk_valid_len")

# Inputs of a GatedDeltaNet that have tokens: q, k, v, gate, beta.
_OF_TOKENS = (0, 1, 2, 4, 5)


@dataclass(frozen=True)
class Batch:
    """All that changes together: recurrent caches, KV caches, delta nets, and the inputs that count sequences."""

    slots: list[SlotCache]
    attended: list[SequenceCache]
    nets: list[DeltaNet]
    counts: list[Node]


def sequence_list(model: Model) -> Node | None:
    """The input that lists the sequences of a batch; None in a graph that runs one."""
    return next((p for p in model.get_parameters() if INPUT in p.output(0).get_names()), None)


def batch_sequences(model: Model, batch: Batch, sequences: int | None, report: PassReport) -> None:
    """Edit the graph; all of ``batch`` has been checked.

    Args:
        model: the graph.
        batch: what there is to change.
        sequences: how many run in one inference; None leaves it open.
        report: gets a note on inputs and outputs that come and go.
    """
    length = PartialShape([-1 if sequences is None else sequences])
    active = parameter(model, INPUT, Type.i64, length)
    count = ops.shape_of(active).output(0)  # [1]
    for counted in batch.counts:
        redirect(counted.output(0), count, only=consumers(counted.output(0)))
    for attended in batch.attended:
        _choose(attended, active.output(0))
    resets = [(cache, cache.reset) for cache in batch.slots if cache.reset is not None]
    gone = [name for cache in batch.slots for name in _write_to_slots(model, cache, count)]
    _reset_each(resets, length)
    for net in batch.nets:
        _fold_out(net, count)
    if sequences is not None:
        fix_sequences(model, sequences)
    dropped = drop_unread_parameters(model)
    report.notes.append(f"added input {INPUT} i64 {length}")
    report.notes.append(f"removed unread inputs {', '.join(dropped)}")
    if gone:
        report.notes.append(f"removed outputs {', '.join(gone)}, as no row is moved to another slot")


def fix_sequences(model: Model, sequences: int) -> None:
    """Let a graph that takes a list of sequences take so many; a list of slots gets as long as there are slots."""
    roles = input_roles(model)
    reads = [(cache.active, cache.slots) for cache in slot_caches(model)]
    slots = {read.slots.get_friendly_name(): count for read, count in reads if read is not None}
    for one in model.get_parameters():
        shape = one.get_output_partial_shape(0)
        if one.get_friendly_name() in slots and shape.is_dynamic:
            set_shape(one, PartialShape([*[1] * (shape.rank.get_length() - 1), slots[one.get_friendly_name()]]))
        elif roles.get(port_name(one), port_name(one)) in OF_SEQUENCES:
            set_shape(one, PartialShape([sequences]))


def _choose(cache: SequenceCache, active: Output) -> None:
    """Gather the listed sequences, of as many cells as the cache comes in with."""
    for view in cache.views if cache.parameter.get_output_partial_shape(0)[CELLS].is_dynamic else ():
        rewire(view.input(1), const(_any_cells(view, cache)).output(0))
    new = ops.gather(cache.chosen.input_value(0), active, const(0))
    redirect(cache.chosen.output(0), like(new, cache.chosen).output(0))


def _any_cells(view: Node, cache: SequenceCache) -> list[int]:
    """The target of a Reshape with -1 for the cells, of one sequence or of all, where a number was captured."""
    known = const_value(view.input_value(1))
    assert known is not None
    target = [int(d) for d in known]
    row = cache.parameter.get_output_partial_shape(0)[3].get_length()
    behind = [prod(target[d + 1 :]) for d in range(len(target))]
    at = next((d for d, size in enumerate(behind) if size == row and target[d] > 0), None)
    return target if at is None or -1 in target else [-1 if d == at else n for d, n in enumerate(target)]


def _write_to_slots(model: Model, cache: SlotCache, count: Output) -> list[str]:
    """Let new rows go to the slots that they were read from; returns the outputs for moved ones, which are removed."""
    read, rows, update, slots = cache.active, cache.rows, cache.update, cache.slots
    assert read is not None
    assert isinstance(rows, Rows)
    assert update is not None
    begin = const([-rows.per_slot]).output(0)
    if rows.kind == "state":  # those of all sequences, one after the other
        begin = ops.multiply(begin, count).output(0)
        for cut in attention_slices(rows.source):
            rewire(cut.input(2), begin)
    last = like(ops.slice(rows.source, begin, const([TO_THE_END]), const([1]), const([rows.axis])), rows.cut)
    new = ops.reshape(last, const([1, 1, -1, cache.width]), special_zero=False)
    listed = ops.reshape(read.gather.input_value(1), const([-1]), special_zero=False)
    others = [*(write.result for write in cache.remainders), *cache.kept]
    whole = ops.scatter_update(cache.table, listed, new, const(SLOTS))
    redirect(update.whole.output(0), like(whole, update.whole).output(0))
    cache.parameter.set_partial_shape(PartialShape([1, 1, slots, cache.width]))
    for result in others:
        model.remove_result(result)
    return [result.get_friendly_name() for result in others]


def _reset_each(resets: list[tuple[SlotCache, Reset]], length: PartialShape) -> None:
    """Clear a range of slots for every sequence, where there was one range for all."""
    made: dict[tuple[str, str, str], Output] = {}
    for cache, reset in resets:
        index, size = (behind_views(i[0].get_source_output()).get_node() for i in (reset.index, reset.count))
        table = cache.table.get_node()
        key = (index.get_friendly_name(), size.get_friendly_name(), str(table.get_output_element_type(0)))
        if key not in made:
            for ranged in (index, size):
                set_shape(ranged, length)
            made[key] = _kept(index, size, cache)
        at = next(i for i in (0, 1) if _is_mask(table.input_value(i), reset))
        rewire(table.input(at), made[key])


def _is_mask(factor: Output, reset: Reset) -> bool:
    either = behind_views(factor).get_node()
    compared = [reader.get_node() for reader in consumers(reset.index[0].get_node().output(0))]
    return any(node is either for node in compared)


def _kept(index: Node, size: Node, cache: SlotCache) -> Output:
    """1 for a slot outside all ranges, else 0: ``[slots, 1]``."""
    slot = const(np.arange(cache.table.get_partial_shape()[SLOTS].get_length()))  # [S]
    begin, long = (ops.unsqueeze(one, const([1])) for one in (index, size))  # [B, 1]
    outside = ops.logical_or(ops.less(slot, begin), ops.greater_equal(slot, ops.add(begin, long)))  # [B, S]
    kept = ops.reduce_logical_and(outside, const([0]), keep_dims=False)  # [S]
    factor = ops.convert(kept, cache.table.get_element_type().get_type_name())
    return ops.unsqueeze(factor, const([1])).output(0)


def _fold_out(net: DeltaNet, count: Output) -> None:
    """Tokens of all sequences in one row to a row for each: ``[1,B*T,..]`` to ``[B,T,..]``."""
    for port in _OF_TOKENS:
        value = net.node.input_value(port)
        shape = value.get_partial_shape()
        if shape[0].is_dynamic:
            continue
        behind = [d.get_length() for d in list(shape)[2:]]
        target = ops.concat([count, const([-1, *behind])], axis=0)
        rewire(net.node.input(port), ops.reshape(value, target, special_zero=False).output(0))
