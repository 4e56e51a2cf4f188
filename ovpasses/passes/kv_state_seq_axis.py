"""KVStateSeqAxis: the sequence axis of stateful KV caches from dim 1 to dim 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from openvino import Model, PartialShape

from ovpasses._openvino import Node, Output
from ovpasses.passes._edit import Input, consumers, deferred, redirect, rewire, set_variable_shape, transpose_0213
from ovpasses.passes._gqa_expansion import (
    ExpansionThenTranspose,
    find_expansion_then_transpose,
    is_swap_of_dims_1_2,
)
from ovpasses.passes._identity import bypass
from ovpasses.passes._states import Append, State, find_append, states
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport


class KVStateSeqAxis(ReportedPass):
    """Keep each KV state as ``[batch, heads, seq, size]``, so that attention reads it without a Transpose.

    The reader's Transpose of the whole accumulated state is what it saves: its cost grows with the depth.

    Before::

        ReadValue [b,seq,h,d] -> Concat(1) [b,seq+t,h,d] -> Transpose(0,2,1,3) -> SDPA
        rows [b,t,h,d] -----------^   |---> Assign

    After::

        ReadValue [b,h,seq,d] ---------------> Concat(2) [b,h,seq+t,d] -> SDPA
        rows [b,t,h,d] -> Transpose(0,2,1,3) ----^   |---> Assign

    Applies when (per state; the words are those of the skip reasons):
        state: rank 4, dims 0, 2 and 3 static, dim 1 dynamic.
        append: the Assign writes a Concat on dim 1 of two inputs, the first the same Variable's past
            (its ReadValue, or the ``beam_idx`` Gather behind it).

    Leaves alone: states with the sequence on dim 2 already ("already"), states of fixed shape such as
        recurrent ones ("kind"), everything that does not match.
    Takes out: ops that change nothing (a Reshape to the same shape, Transposes that undo each other, a Convert to the
        same type or to a wider one and back) between the state, its Concat, its Assign and its readers.
    Keeps: what readers see. A reader that is the Transpose above is dropped; a repetition of heads for
        grouped queries that ends in it is rebuilt in the new order; any other reader of the past or of the
        grown state gets the inverse Transpose. Names, rt_info and variable ids stay.
    Numerics: bit-exact.
    Source: llama.cpp's OpenVINO backend has a C++ pass of this kind for its stateful graphs
        (``GGML_OPENVINO_DISABLE_KV_STATE_RELAYOUT`` turns it off); recorded before and after under ``models/recorded``.
    """

    looked_for: ClassVar[str] = "state (ReadValue/Assign pair)"

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        edits: list[Edit] = []
        for state in states(model):
            why = _why_not_state(state)
            if why is not None:
                report.skip(state.name, *why)
                continue
            append = find_append(state)
            if isinstance(append, str):
                report.skip(state.name, "append", append)
            elif append.axis != 1:
                report.skip(state.name, "append", f"its Concat is on dim {append.axis}, wanted dim 1")
            else:
                edits.append(deferred(_move, state, append))
                report.done(state.name)
        return edits


def _why_not_state(state: State) -> tuple[str, str] | None:
    shape = state.variable.info.data_shape
    if shape.rank.is_dynamic or shape.rank.get_length() != 4:
        return "state", f"its shape is {shape}, wanted rank 4 [batch, seq, heads, size]"
    if shape.is_static:
        append = find_append(state)
        if isinstance(append, str):
            return "kind", f"fixed shape {shape} and no append, not a KV cache"
        return "state", f"the sequence dimension is static ({shape[append.axis]})"
    dynamic = [d for d in range(4) if shape[d].is_dynamic]
    if dynamic == [2]:
        return "already", f"the sequence is on dim 2 already {shape}"
    if dynamic != [1]:
        return "state", f"dynamic dims are {dynamic} in {shape}, wanted dim 1 only"
    return None


@dataclass(frozen=True)
class _Readers:
    """The readers of one value, by what becomes of them."""

    source: Output
    transposes: list[Node]
    expansions: list[ExpansionThenTranspose]
    others: list[Input]

    def restore(self, name: str) -> None:
        """Let every reader see what it saw before ``source`` was stored as [batch, heads, seq, size]."""
        if self.others:  # first: on 2024.6 a Result that comes to ``source`` below shares names with one that leaves
            swapped = transpose_0213(self.source, f"{name}/seq_axis_1")
            redirect(self.source, swapped.output(0), only=self.others)
        for transpose in self.transposes:
            redirect(transpose.output(0), self.source)
        for expansion in self.expansions:
            expansion.on_transposed(self.source)


def _readers(source: Output, besides: Node) -> _Readers:
    found = _Readers(source, [], [], [])
    for reader in consumers(source):
        node = reader.get_node()
        if node is besides:
            continue
        expansion = find_expansion_then_transpose(reader)
        if is_swap_of_dims_1_2(node) and reader.get_index() == 0:
            found.transposes.append(node)
        elif expansion is not None:
            found.expansions.append(expansion)
        else:
            found.others.append(reader)
    return found


def _move(state: State, append: Append) -> None:
    past, concat = state.past, append.concat
    for value in (state.read.output(0), past, concat.output(0)):
        bypass(value)
    readers = [_readers(past, concat), _readers(concat.output(0), state.assign)]  # while shapes are the old ones

    shape = state.variable.info.data_shape
    set_variable_shape(state.variable, PartialShape([shape[0], shape[2], shape[1], shape[3]]))
    if state.read.get_input_size():
        initial = state.read.input_value(0)
        swapped = transpose_0213(initial, f"{initial.get_node().get_friendly_name()}/seq_axis_2")
        rewire(state.read.input(0), swapped.output(0))
    state.read.validate_and_infer_types()
    past.get_node().validate_and_infer_types()

    rows = transpose_0213(append.rows, f"{concat.get_friendly_name()}/rows")
    rewire(concat.input(1), rows.output(0))
    concat.set_attribute("axis", 2)
    concat.validate_and_infer_types()
    for group in readers:
        group.restore(concat.get_friendly_name())
