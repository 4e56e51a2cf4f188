"""MakeKVStateful: cache inputs and outputs to states inside the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from openvino import Dimension, Model, PartialShape

from ovpasses._openvino import Node, Output, Variable, VariableInfo, assign, ops, read_value
from ovpasses.errors import RewriteError
from ovpasses.importers._slots import slot_caches
from ovpasses.importers._walk import port_name
from ovpasses.passes._cache_pairs import CachePair, NoPair, find_pairs, missing_inputs
from ovpasses.passes._edit import (
    const,
    consumers,
    deferred,
    drop_unread_inputs,
    like,
    redirect,
    rewire,
    zeros_constant,
)
from ovpasses.passes._identity import bypass
from ovpasses.passes._slot_states import slot_pairs, use_one_slot
from ovpasses.passes._whole_state import drop_cell_slices, fix_sequence_count
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport


class MakeKVStateful(ReportedPass):
    """Turn cache Parameter/Result pairs into ReadValue/Assign, so that the model keeps its caches itself.

    A GGUF imported by OpenVINO's frontend cannot be run before this: it scatters rows that it has
    flattened to ``[1, 1, tokens*heads, size]`` on the heads axis of its cache, which is defined for one
    token and an empty past only. The rows are taken before that flattening, and appended.

    Before::

        cache [1,cells,h,d] -> ScatterUpdate(at kv_idx) -> Result
        rows [1,t,h,d] -> Reshape [1,1,t*h,d] --^  |-> Slice(0..attention_size) -> readers
      or
        past [b,..,seq,..] -> Concat(seq axis, rows) -> Result
                                               |-> readers
      or (recurrent: the whole value is replaced)
        state -> ... -> Result
      or (recurrent, in slots, of which there is one)
        cache [1,1,slots,w] -> Gather(slot list) -> ... -> Concat(other slots, new rows) -> Result

    After::

        zeros [1,0,h,d] -> ReadValue [1,seq,h,d] -> Concat(1, rows) -> Assign
                                                       |-> readers

    Applies when (per cache input):
        cache: known rank, static but for batch and sequence; a recurrent state is static altogether.
        append: a Concat of two inputs on the sequence axis, or a ScatterUpdate of rows that end in the cache's size.
        pair: for what is replaced whole, the output of the pair exists and has the input's type and shape.
        update: something updates the cache and feeds a Result.
        slots: of a cache that is read by a list of slots there is one slot: one sequence.
        rows: its new rows are the end of a conv window or of a delta net's packed result.

    A flat cache ``[1, 1, cells, heads*size]`` of a llama.cpp dump becomes a flat state ``[1, 1, seq, heads*size]``:
    run :class:`KVHeadSplit` before this pass (or after it, but before :class:`KVStateSeqAxis`, to which a flat state
    looks like one of one head).

    Takes out: ops that change nothing on the way (see KVStateSeqAxis).
    Leaves alone: other Results on the grown cache, inputs that do not look like a cache.
    Keeps: tensor names (the ReadValue goes by the input's name), the variable id is input name + output name.
        Inputs that no op reads any more (``inp_kv_idx``) are removed. Of a scattered cache, which has free cells, a
        Slice from 0 to an input on the cells is bypassed, and the count of sequences (``n_seq_active``) is set to 1.
        With a cache in slots go the inputs that list, count, clear and write slots, and the outputs that carry other
        sequences' slots on.
    Numerics: bit-exact where the stateless graph is defined and appends at the end of the cache.
    Source: OpenVINO's GGUF frontend (``gguf_recurrent_states`` in rt_info names recurrent pairs), measured on 2026.4.1.

    Args:
        pairs: further caches by name, input name to output name.
        batch: batch size of the initial states; a state of an input with a static batch keeps that.
        strict: see :class:`ReportedPass`.

    Raises:
        RewriteError: ``batch`` is less than 1.
    """

    looked_for: ClassVar[str] = "cache input"

    def __init__(self, pairs: Mapping[str, str] | None = None, *, batch: int = 1, strict: bool = False) -> None:
        super().__init__(strict=strict)
        if batch < 1:
            raise RewriteError(f"batch is {batch}, wanted at least 1 sequence")
        self.pairs = dict(pairs or {})
        self.batch = batch

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        edits: list[Edit] = []
        scattered = False
        slots = {cache.name: cache for cache in slot_caches(model)}
        slots_as_pairs = slot_pairs(slots.values())
        for found in find_pairs(model, self.pairs):
            if isinstance(found, NoPair) and found.name in slots:
                found = slots_as_pairs[found.name]
                if isinstance(found, CachePair):
                    edits.append(deferred(use_one_slot, model, slots[found.name], report))
            if isinstance(found, NoPair):
                report.skip(found.name, found.step, found.reason)
            else:
                edits.append(deferred(_make_state, model, found, self.batch))
                report.done(found.name)
                scattered |= found.update is not None and found.update.get_type_name() == "ScatterUpdate"
        for name in missing_inputs(model, self.pairs):
            report.skip(name, "pair", "the model has no input of that name")
        if scattered:
            edits.append(deferred(_fix_sequence_count, model, report))
        if edits:
            edits.append(deferred(drop_unread_inputs, model, report))
        return edits

    def _options(self) -> list[str]:
        options = [repr(self.pairs)] if self.pairs else []
        return options + ([f"batch={self.batch}"] if self.batch != 1 else [])


def _fix_sequence_count(model: Model, report: PassReport) -> None:
    fixed = fix_sequence_count(model)
    if fixed:
        report.notes.append(f"one sequence per state: set {', '.join(fixed)} to 1")


def _make_state(model: Model, pair: CachePair, batch: int) -> None:
    parameter, result = pair.parameter, pair.result
    if pair.update is not None:
        bypass(parameter.output(0))
        bypass(pair.update.output(0))
    read, variable = _read(pair, batch, {held.info.variable_id for held in model.get_variables()})
    redirect(parameter.output(0), read.output(0))
    written = result.input_value(0)
    if pair.update is not None:
        written = _append(pair, read).output(0)
    sink = assign(read, variable)  # takes a Node of a single output ...
    sink.set_arguments([written])  # ... while what is written may be any port of any node
    sink.set_friendly_name(f"{port_name(parameter)}/assign")
    model.add_variables([variable])
    model.add_sinks([sink])
    model.remove_result(result)
    model.remove_parameter(parameter)


def _read(pair: CachePair, batch: int, taken: set[str]) -> tuple[Node, Variable]:
    parameter = pair.parameter
    shape = parameter.get_output_partial_shape(0)
    dims = [shape[d] for d in range(shape.rank.get_length())]
    if dims and dims[0].is_dynamic and pair.axis != 0:
        dims[0] = Dimension(batch)
    element = parameter.get_element_type()

    info = VariableInfo()
    joined = [port_name(parameter), _output_name(pair.result)]
    info.variable_id = "".join(joined) if "".join(joined) not in taken else "/".join(joined)
    info.data_shape = PartialShape(dims)
    info.data_type = element
    variable = Variable(info)

    initial = [0 if d == pair.axis else dims[d].get_length() for d in range(len(dims))]
    zeros = zeros_constant(initial, element, f"{port_name(parameter)}/initial")
    read = read_value(zeros, variable)
    return like(read, parameter), variable


def _output_name(result: Node) -> str:
    names = result.input_value(0).get_names() | result.output(0).get_names()
    return str(min(names, default=None) or result.get_friendly_name())


def _append(pair: CachePair, read: Node) -> Node:
    update, rows = pair.update, pair.rows
    assert update is not None
    assert rows is not None
    if update.get_type_name() == "Concat":
        _revalidate_down_to(update, read)
        return update
    shape = read.get_output_partial_shape(0)
    if pair.flat_rows:
        rows = ops.reshape(
            rows, const([1, -1, shape[2].get_length(), shape[3].get_length()]), special_zero=False
        ).output(0)
    concat = like(ops.concat([read.output(0), _converted(rows, read.output(0))], axis=pair.axis), update)
    for consumer in consumers(update.output(0)):
        rewire(consumer, concat.output(0))
    drop_cell_slices(concat.output(0))
    return concat


def _revalidate_down_to(update: Node, read: Node) -> None:
    between = update.input_value(0).get_node()
    if between is not read:
        between.validate_and_infer_types()
    update.validate_and_infer_types()


def _converted(rows: Output, like_this: Output) -> Output:
    if rows.get_element_type() == like_this.get_element_type():
        return rows
    return ops.convert(rows, like_this.get_element_type().get_type_name()).output(0)
