"""StaticSlotCopy: recurrent states in slots, read by a list, without a dynamic or an empty value."""

from __future__ import annotations

from typing import ClassVar

from openvino import Model, PartialShape, Type

from ovpasses._openvino import Node
from ovpasses.importers._slot_rows import Rows, attention_slices, folded
from ovpasses.importers._slots import SlotCache, SlotWrite, slot_caches
from ovpasses.passes._edit import Input, const, const_value, deferred, parameter, redirect, rewire, set_shape
from ovpasses.passes._one_token_reshape import OneToken, one_token_reshapes
from ovpasses.passes._slot_edits import end_of_rows, whole_write
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport

RESET_INDEX, RESET_COUNT = "cache_rs_reset_idx", "cache_rs_reset_len"


class StaticSlotCopy(ReportedPass):
    """Make the slots of recurrent states static in a dump for an NPU, and right for any number of tokens.

    A slot list of unknown length makes convolution, delta net and attention dynamic behind it, and numbers of
    the call in which the graph was captured (tokens, the slot to clear) are baked into it.

    Before::

        cache [1,1,1,w] * (slot not cleared: constants) = table -> Gather(list [1,1,1,?] [0:1]) -> layer
        table[:0], Gather(table, list[1:]) [1,1,..,w], table[..:] -> Concat -> Result
        table[:0], Slice(layer's packed result, 34..end), table[..:] -> Concat -> Result

    After::

        cache [1,1,1,w] * (slot not cleared: inputs) = table -> Gather(list [1,1,1,1] [0:1]) -> layer
        Slice(layer's packed result [1,1,rows,h*s], -s..end) -> Reshape [1,1,1,w] -> Result

    Applies when (per slot list, clearing, defrag, write-back, attention slice and reshape):
        list: all caches that the list indexes have the same known number of slots.
        active: a call works on all slots there are, and their number is a constant.
        reset: the first slot to clear and how many are i64 ``[1]`` constants.
        rows: the new rows are taken from the joined columns of a convolution, or from the packed result
            ``[attention | state]`` of a delta net.
        token: the token axis of a Reshape that was captured with one token can be told from what reads it.

    Leaves alone: sites that are right already ("already"); caches that are not read by a list of slots.
    Keeps: names of inputs and outputs. The output of a defrag that moves no row has no bytes in ggml, so it is removed.
        Inputs ``cache_rs_reset_idx`` and ``cache_rs_reset_len``, i64 ``[1]``, are added where their values were baked
        in: 0 and 1 in the first call of a sequence, a length of 0 in all others.
    Numerics: bit-exact, where the graph before is defined.
    Source: the static graphs that llama.cpp's OpenVINO backend makes for an NPU, recorded before and after this was
        fixed there in ``models/recorded/before|after/qwen35/static``.

    Args:
        drop_empty: rewrite a write-back that is right as well, when parts without rows are left around its new rows;
            plugins fold them, a check for empty values counts them.
        strict: see :class:`ReportedPass`.
    """

    looked_for: ClassVar[str] = "cache that is read by a list of slots"

    def __init__(self, *, drop_empty: bool = False, strict: bool = False) -> None:
        super().__init__(strict=strict)
        self.drop_empty = drop_empty

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        caches = list(slot_caches(model))
        reshapes = dict(one_token_reshapes(model)) if caches else {}
        unclear = next((name for name, found in reshapes.items() if not isinstance(found, OneToken)), None)
        edits = _lists(caches, unclear, report)
        for cache in caches:
            edits += _reset(model, cache, report)
        for cache in caches:
            edits += _writes(model, cache, self.drop_empty, report)
        return edits + _reshapes(reshapes, report)

    def _options(self) -> list[str]:
        return ["drop_empty=True"] if self.drop_empty else []


def _lists(caches: list[SlotCache], unclear: str | None, report: PassReport) -> list[Edit]:
    edits: list[Edit] = []
    lists: dict[str, tuple[Node, set[int | None]]] = {}
    for cache in caches:
        for read in cache.reads:
            lists.setdefault(read.slots.get_friendly_name(), (read.slots, set()))[1].add(cache.slots)
    for name, (node, lengths) in lists.items():
        shape = node.get_output_partial_shape(0)
        if shape.is_static:
            report.skip(name, "already", f"its shape {shape} is static")
        elif len(lengths) != 1 or None in lengths or shape.rank.is_dynamic:
            found = ", ".join(sorted("unknown" if n is None else str(n) for n in lengths))
            report.skip(name, "list", f"the caches that it indexes have {found} slots, wanted one number for all")
        elif unclear is not None:
            report.skip(name, "token", f"with its length known, Reshape {unclear} would not fit what comes in")
        else:
            last = shape.rank.get_length() - 1
            fixed = [1] * last + [max(n for n in lengths if n is not None)]
            edits.append(deferred(set_shape, node, PartialShape(fixed)))
            report.done(name)
    return edits


def _reset(model: Model, cache: SlotCache, report: PassReport) -> list[Edit]:
    if cache.reset is None:
        return []
    name = f"{cache.name}/reset"
    baked = {RESET_INDEX: _constants(cache.reset.index), RESET_COUNT: _constants(cache.reset.count)}
    if not any(baked.values()):
        report.skip(name, "already", "the slots that it clears are inputs")
        return []
    for what, inputs in baked.items():
        for one in inputs:
            source = one.get_source_output()
            if source.get_element_type() != Type.i64 or source.get_partial_shape() != PartialShape([1]):
                found = f"{source.get_element_type().get_type_name()} {source.get_partial_shape()}"
                report.skip(name, "reset", f"{what} is {found}, wanted i64 [1]")
                return []
    report.done(name)
    return [deferred(_read_input, model, what, inputs) for what, inputs in baked.items() if inputs]


def _constants(inputs: tuple[Input, ...]) -> list[Input]:
    return [i for i in inputs if const_value(i.get_source_output()) is not None]


def _read_input(model: Model, name: str, inputs: list[Input]) -> None:
    value = parameter(model, name, Type.i64, PartialShape([1])).output(0)
    for one in inputs:
        rewire(one, value)


def _writes(model: Model, cache: SlotCache, drop_empty: bool, report: PassReport) -> list[Edit]:
    """The write-back of the new state, that of a defrag, and the attention slices beside the former."""
    edits: list[Edit] = []
    why = _why_not_all_active(cache)
    for write in cache.remainders:
        name = write.result.get_friendly_name()
        if why is not None:
            report.skip(name, "active", why)
        else:
            report.done(name)
            report.notes.append(f"removed output {name}, which has no bytes in ggml")
            edits.append(deferred(model.remove_result, write.result))
    for result in cache.kept:
        report.skip(result.get_friendly_name(), "already", "is the untouched cache")
    rows, update, slots = cache.rows, cache.update, cache.slots
    if whole_write(model, cache) is not None:
        report.skip(cache.name, "already", "its output is the new rows alone")
        return edits
    if isinstance(rows, str) or update is None:
        report.skip(cache.name, "rows", str(rows))
        return edits
    if update.begin is None:
        report.skip(cache.name, "already", "new rows go to the slots that they were read from")
        return edits
    if why is not None or slots is None:
        report.skip(cache.name, "active", str(why))
        return edits
    wrong = rows.why_not_at_end(slots)
    if wrong is None and not drop_empty:
        report.skip(cache.name, "already", f"the {rows.kind} is taken at the end of what the layer computes")
    else:
        report.done(cache.name)
        edits.append(deferred(_write_end, cache, update, rows, slots))
    if rows.kind == "state":
        edits += _attention(rows, slots, report)
    return edits


def _why_not_all_active(cache: SlotCache) -> str | None:
    active, slots = cache.active, cache.slots
    if slots is None:
        return "its number of slots is unknown"
    count = folded(active.end) if active is not None and active.end is not None else None
    if active is not None and active.end is None:
        return None
    if count is None:
        return "how many slots are active is an input, wanted a constant"
    return None if count >= slots else f"{count} of {slots} slots are active, wanted all of them"


def _write_end(cache: SlotCache, update: SlotWrite, rows: Rows, slots: int) -> None:
    concat = update.whole
    redirect(concat.output(0), end_of_rows(rows, slots, cache.width, concat).output(0))


def _attention(rows: Rows, slots: int, report: PassReport) -> list[Edit]:
    edits: list[Edit] = []
    wanted = -rows.per_slot * slots
    for cut in attention_slices(rows.source):
        end = folded(cut.input_value(2))
        if end == wanted:
            report.skip(cut.get_friendly_name(), "already", f"the attention rows end at {wanted}")
        else:
            report.done(cut.get_friendly_name())
            edits.append(deferred(rewire, cut.input(2), const([wanted]).output(0)))
    return edits


def _reshapes(reshapes: dict[str, OneToken | str], report: PassReport) -> list[Edit]:
    edits: list[Edit] = []
    for name, found in reshapes.items():
        if isinstance(found, OneToken):
            report.done(name)
            edits.append(deferred(rewire, found.reshape.input(1), const(found.target).output(0)))
        else:
            report.skip(name, "token", found)
    return edits
