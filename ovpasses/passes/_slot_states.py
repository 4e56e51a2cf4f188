"""Recurrent states in slots as states of one sequence: a dump that has one slot reads and writes all of it."""

from __future__ import annotations

from collections.abc import Iterable

from openvino import Model, PartialShape

from ovpasses._openvino import ops
from ovpasses.importers._slot_rows import Rows, attention_slices, folded
from ovpasses.importers._slots import SlotCache
from ovpasses.passes._cache_pairs import CachePair, NoPair
from ovpasses.passes._edit import const, consumers, like, redirect, rewire
from ovpasses.passes._slot_edits import end_of_rows
from ovpasses.passes.report import PassReport


def slot_pairs(caches: Iterable[SlotCache]) -> dict[str, CachePair | NoPair]:
    """What becomes of every cache in slots, by name: all of them become states, or none does."""
    pairs = {cache.name: _slot_pair(cache) for cache in caches}
    first = next((pair for pair in pairs.values() if isinstance(pair, NoPair)), None)
    if first is None:
        return pairs
    together = f"the caches in slots become states together, but {first.name}: {first.reason}"
    return {
        name: NoPair(pair.parameter, first.step, together) if isinstance(pair, CachePair) else pair
        for name, pair in pairs.items()
    }


def _slot_pair(cache: SlotCache) -> CachePair | NoPair:
    """A cache in slots as a pair that is replaced whole (after :func:`use_one_slot`), or why it cannot be one."""
    rows, update = cache.rows, cache.update
    if cache.slots != 1:
        found = "unknown" if cache.slots is None else cache.slots
        return NoPair(cache.parameter, "slots", f"its number of slots is {found}, wanted 1: a state is one sequence's")
    if cache.active is None:
        return NoPair(cache.parameter, "slots", "nothing reads it by the head of a slot list")
    if isinstance(rows, str) or update is None:
        return NoPair(cache.parameter, "rows", str(rows))
    return CachePair(cache.parameter, update.result)


def use_one_slot(model: Model, cache: SlotCache, report: PassReport) -> None:
    """Let the layer read the whole cache ``[1, 1, 1, width]``, and let the Result take the whole new one.

    What cleared the slot goes away with it: a state is zero when it is reset. Outputs for the slots of other sequences,
    of which there are none, are removed.
    """
    active, rows, update = cache.active, cache.rows, cache.update
    assert active is not None
    assert isinstance(rows, Rows)
    assert update is not None
    cache.parameter.set_partial_shape(PartialShape([1, 1, 1, cache.width]))
    cache.parameter.validate_and_infer_types()
    one = ops.reshape(cache.parameter, const([1, 1, cache.width]), special_zero=False)
    redirect(active.gather.output(0), like(one, active.gather).output(0))
    for cut in attention_slices(rows.source) if rows.kind == "state" else []:
        if folded(cut.input_value(2)) != rows.start(1):
            rewire(cut.input(2), const([rows.start(1)]).output(0))
    redirect(update.whole.output(0), end_of_rows(rows, 1, cache.width, update.whole).output(0))
    counted = active.end.get_node() if active.end is not None else None
    if counted is not None and counted.get_type_name() == "Parameter":
        redirect(counted.output(0), like(const([1]), counted).output(0), only=consumers(counted.output(0)))
    others = [*(write.result for write in cache.remainders), *cache.kept]
    for result in others:
        model.remove_result(result)
    names = ", ".join(result.get_friendly_name() for result in others)
    if names:
        report.notes.append(f"removed output {names} of other sequences' slots")
