"""BeamReorder: the shared ``beam_idx`` Gather on every past state."""

from __future__ import annotations

from typing import ClassVar

from openvino import Model, PartialShape, Type

from ovpasses._openvino import ops
from ovpasses.passes._edit import const, deferred, parameter, redirect
from ovpasses.passes._states import State, give_initial_value, states
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport

BEAM_INPUT = "beam_idx"


class BeamReorder(ReportedPass):
    """Let ``beam_idx`` pick the batch rows of every past state.

    Beam search needs it; on the CPU it is also what lets the plugin fuse attention with its cache (its
    fusion starts at ``Gather(ReadValue, beam_idx, 0)``, with one ``beam_idx`` shared by K and V).

    Before::

        ReadValue [b,...] ----------------------> readers

    After::

        ReadValue [b,...] -> Gather(axis 0) ----> readers
        beam_idx i32 [beams] --^  (one input, shared by all states)

    Applies when:
        state: the ReadValue has a known rank of at least 1.
        beam: an input ``beam_idx`` that is there already is i32 ``[beams]``.

    Leaves alone: states that an input gathers already ("already"); a state that nothing reads is no candidate.
    Adds: an empty initial value (batch 1, sequence 0) to a ReadValue that has none, as in llama.cpp's dumps; the
        CPU plugin refuses to compile its fused operation without one.
    Keeps: names, rt_info, the states' own layout. Recurrent states are gathered too, as beam search needs all of them.
    Numerics: bit-exact for ``beam_idx = [0, 1, ..]``.
    Source: the pattern that ``StatefulSDPAFusion`` of OpenVINO's CPU plugin looks for (src/plugins/intel_cpu).
    """

    looked_for: ClassVar[str] = "state (ReadValue/Assign pair)"

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        todo = []
        unfit = _unfit_input(model)
        for state in states(model):
            if state.beam_gather is not None:
                source = state.beam_gather.input_value(1).get_node().get_friendly_name()
                report.skip(state.name, "already", f"gathered by input {source} already")
            elif state.read.get_output_partial_shape(0).rank.is_dynamic:
                report.skip(state.name, "state", "its rank is dynamic, wanted a known rank with the batch on dim 0")
            elif unfit is not None:
                report.skip(state.name, "beam", unfit)
            else:
                todo.append(state)
                report.done(state.name)
        return [deferred(_gather_all, model, todo, report)] if todo else []


def _unfit_input(model: Model) -> str | None:
    """What is wrong with an input called ``beam_idx`` that the model has already."""
    for existing in model.get_parameters():
        shape = existing.get_output_partial_shape(0)
        if BEAM_INPUT not in existing.output(0).get_names():
            continue
        if existing.get_element_type() != Type.i32 or shape.rank.is_dynamic or shape.rank.get_length() != 1:
            return f"input {BEAM_INPUT} is {existing.get_element_type().get_type_name()} {shape}, wanted i32 [beams]"
    return None


def _gather_all(model: Model, todo: list[State], report: PassReport) -> None:
    had = {p.get_friendly_name() for p in model.get_parameters()}
    beam = parameter(model, BEAM_INPUT, Type.i32, PartialShape([-1]))
    if beam.get_friendly_name() not in had:
        report.notes.append(f"added input {BEAM_INPUT} (i32 [beams])")
    started = 0
    for state in todo:
        read = state.read
        started += give_initial_value(state)
        readers = list(read.output(0).get_target_inputs())
        gather = ops.gather(read.output(0), beam, const(0, "int32"))
        gather.set_friendly_name(f"{read.get_friendly_name()}/{BEAM_INPUT}")
        redirect(read.output(0), gather.output(0), only=readers)
    if started:
        report.notes.append(f"gave {started} states an empty initial value")
