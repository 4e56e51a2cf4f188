"""ChunkValidLen: tell recurrent layers how many tokens of a padded chunk are real."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from openvino import Model, PartialShape, Type

from ovpasses._openvino import Node, Output, ops
from ovpasses.passes._batch_edits import sequence_list
from ovpasses.passes._cache_pairs import NoPair
from ovpasses.passes._edit import const, deferred, drop_unread_parameters, like, parameter, redirect, rewire
from ovpasses.passes._recurrent_sites import (
    DeltaNet,
    Window,
    carried_states,
    delta_nets,
    find_window,
    updated_by,
)
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport

INPUT = "chunk_valid_len"
FLOATS = (Type.f32, Type.f16, Type.bf16)


class ChunkValidLen(ReportedPass):
    """Add the input ``chunk_valid_len``, so that padding at the end of a chunk leaves no trace in recurrent states.

    Attention masks a padded token; a recurrent layer would fold it into its state for good.

    Before::

        gate, beta [b,t,h] -----------------------> GatedDeltaNet -> state
        state [1,1,c,k-1] -> Concat(3) [1,1,c,k-1+t] -> Slice(-(k-1)..end) -> state
        new columns ------------^          |-> convolution

    After::

        gate, beta [b,t,h] -> Multiply -----------> GatedDeltaNet -> state
        position [1,t,1] < chunk_valid_len --^
        state [1,1,c,k-1] -> Concat(3) [1,1,c,k-1+t] -> Gather(chunk_valid_len + [0..k-2]) -> state
        new columns ------------^          |-> convolution

    Applies when (per delta net, conv window and recurrent state; the words are those of the skip reasons):
        gates: gate and beta of a delta net, the op or the Loop it is lowered to, are floating-point.
        window: a state that is joined with new columns takes back the last of them, by a Slice of constants or, of a
            cache in slots, one that begins at an input. Reshapes of state and columns are looked through.
        state: any other state of fixed size goes into a delta net.
        pair: the output by which a recurrent state leaves a stateless graph can be told; of a cache in slots (a
            llama.cpp dump), the one write of new rows.
        together: all of them fit; the input says that padding reaches no state, so none changes without the others.

    Sequences: in a graph that takes a list of them (BatchSequences) the input is i64 ``[B]``, a length for each.
    Leaves alone: graphs that have the input already ("already"); the bodies of loops.
    Keeps: names and shapes of inputs and outputs. ``chunk_valid_len`` is i64 ``[1]``, the number of real tokens, which
        come first; pass the number of tokens where nothing is padded. An input that only said where a window begins
        (``rs_src_begin_*`` of a dump) is removed.
    Numerics: without padding bit-exact. A gate of 0 decays by exp(0) = 1 and a beta of 0 adds nothing, so a padded
        step is an exact identity; the window reaches into the previous chunk when fewer tokens are real than it holds.
    Source: llama.cpp's OpenVINO backend, recorded in ``models/recorded/after/qwen35/static``.

    Args:
        strict: see :class:`ReportedPass`.
    """

    looked_for: ClassVar[str] = "delta net or recurrent state"

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        nets = list(delta_nets(model))
        has_input = any(INPUT in p.output(0).get_names() for p in model.get_parameters())
        windows: list[Window] = []
        fit = [net.node.get_friendly_name() for net in nets if _why_not_gated(net) is None]
        for net in nets:
            name, why = net.node.get_friendly_name(), _why_not_gated(net)
            if has_input:
                report.skip(name, "already", f"the graph has the input {INPUT}")
            elif why is not None:
                report.skip(name, "gates", why)
        for state in carried_states(model):
            if has_input:
                report.skip(state.name, "already", f"the graph has the input {INPUT}")
                continue
            if isinstance(state, NoPair):
                report.skip(state.name, "pair", state.reason)
                continue
            if updated_by(state, nets):
                continue
            window = find_window(state)
            if isinstance(window, Window):
                windows.append(window)
                fit.append(state.name)
            elif window is None:
                report.skip(state.name, "state", "is neither a conv window nor a delta net's, so padding reaches it")
            else:
                report.skip(state.name, "window", window)
        if has_input or not fit:
            return []
        if report.skipped:  # the input says that padding reaches no state at all
            first = report.skipped[0]
            for name in fit:
                report.skip(name, "together", f"all change together, but {first.node}: {first.reason}")
            return []
        for name in fit:
            report.done(name)
        return [deferred(_edit, model, nets, windows, report)]


def _why_not_gated(net: DeltaNet) -> str | None:
    for what, gate in zip(("gate", "beta"), net.gates, strict=True):
        shape, dtype = gate.get_partial_shape(), gate.get_element_type()
        if dtype not in FLOATS or shape.rank.is_dynamic or shape.rank.get_length() != 3:
            return f"{what} is {dtype.get_type_name()} {shape}, wanted floating-point values of rank 3"
    return None


def _edit(model: Model, nets: list[DeltaNet], windows: list[Window], report: PassReport) -> None:
    listed = sequence_list(model)
    shape = PartialShape([1]) if listed is None else listed.get_output_partial_shape(0)
    valid = parameter(model, INPUT, Type.i64, shape).output(0)
    report.notes.append(f"added input {INPUT} i64 {shape}")
    live: dict[tuple[str, int, str], Output] = {}
    for net in nets:
        for gate in net.gates:
            source = gate.get_source_output()
            # All delta nets of a graph run over the same tokens, so they share one mask per type and axis.
            key = (str(source.get_partial_shape()[net.axis]), net.axis, source.get_element_type().get_type_name())
            if key not in live:
                live[key] = _live(source, net.axis, valid, each=listed is not None)
            masked = ops.multiply(source, live[key])
            rewire(gate, like(masked, source.get_node(), name=f"{_name(gate)}/live").output(0))
    for window in windows:
        _end_at_last_valid(window, valid, each=listed is not None)
    begins = {id(w.begin): w.begin for w in windows if w.begin is not None}
    dropped = drop_unread_parameters(model, begins.values())
    if dropped:
        report.notes.append(f"removed unread inputs {', '.join(dropped)}")


def _live(gate: Output, axis: int, valid: Output, *, each: bool) -> Output:
    """1 where a token is real, else 0: ``[1,t,1]`` for tokens on axis 1 of three, ``[t]`` for the last.

    With a length for each sequence ``[b,t,1]`` or ``[b,1,t]``.
    """
    tokens, rank = gate.get_partial_shape()[axis], gate.get_partial_shape().rank.get_length()
    if tokens.is_static:
        position: Node = const(np.arange(tokens.get_length()))
    else:
        count = ops.gather(ops.shape_of(gate), const(axis), const(0))
        position = ops.range(const(0), count, const(1), output_type="i64")
    lengths = ops.unsqueeze(valid, const([1])) if each else valid
    real = ops.convert(ops.less(position, lengths), gate.get_element_type().get_type_name())
    real.set_friendly_name(f"{INPUT}/live")
    behind = [d for d in range(1, rank) if d != axis] if each else list(range(1, rank - axis))
    return (ops.unsqueeze(real, const(behind)) if behind else real).output(0)


def _end_at_last_valid(window: Window, valid: Output, *, each: bool) -> None:
    # The joined columns start with the previous window, so the window that ends at token n starts at column n.
    columns = const(np.arange(window.width))
    if each:  # of [1,b,c,k-1+t] the columns [1,b,k-1]
        at = ops.unsqueeze(ops.add(ops.unsqueeze(valid, const([1])), columns), const([0]))
        cut = ops.gather(window.columns, at, const(window.axis), batch_dims=2)
    else:
        cut = ops.gather(window.columns, ops.add(valid, columns), const(window.axis))
    redirect(window.cut.output(0), like(cut, window.cut).output(0))


def _name(gate: object) -> str:
    source = gate.get_source_output()  # type: ignore[attr-defined]
    return str(source.get_node().get_friendly_name())
