"""OneSequence: a dump whose inputs count sequences and slots, for the one sequence that a session runs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from openvino import Model, PartialShape

from ovpasses._openvino import Node
from ovpasses.importers._slots import SLOTS, slot_caches
from ovpasses.importers._walk import port_name
from ovpasses.importers.input_roles import input_roles
from ovpasses.passes._edit import const, deferred, drop_unread_parameters, like, redirect, set_shape
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport

# What an input says, by its role, when the caches hold one sequence, in slot 0.
VALUES = {"n_seq_active": 1, "s_copy_active_slot_len": 1, "rs_slot_begin": 0, "rs_remainder_begin": 1}
CHOICES = ("seq_active_start", "seq_active_end")


class OneSequence(ReportedPass):
    """Make constants of the inputs that count sequences and slots, in a dump that keeps its caches outside.

    What these inputs count, shapes depend on: as long as they are inputs no such graph is static.

    Before::

        n_seq_active [1] -> Concat -> Reshape's target
        cache [1,1,?,w] -> Gather(list[0 : s_copy_active_slot_len]) -> layer
        table[:rs_slot_begin], new rows, table[..:] -> Concat -> Result

    After::

        1 -> Concat -> Reshape's target
        cache [1,1,1,w] -> Gather(list[0:1]) -> layer
        table[:0], new rows, table[1:] -> Concat -> Result

    Applies when (per input and per cache in slots; all together or not at all):
        sequences: no input chooses among several sequences in a cache, and no cache has more than one slot.
        count: the input is an integer of static shape.

    Leaves alone: graphs without such inputs; caches that have one slot ("already").
    Keeps: names and shapes of all other inputs, and of outputs. Inputs that became constants are removed.
    Numerics: bit-exact for a session of one sequence.
    Source: the static graphs that llama.cpp's OpenVINO backend makes for an NPU, recorded under
        ``models/recorded/after/*/static``, which have none of these inputs.

    Args:
        strict: see :class:`ReportedPass`.
    """

    looked_for: ClassVar[str] = "input that counts sequences, or cache in slots"

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        roles = input_roles(model)
        several = why_several(model, roles)
        edits: list[Edit] = []
        counts: list[tuple[Node, int]] = []
        for parameter in model.get_parameters():
            name, role = port_name(parameter), roles.get(port_name(parameter), "")
            if role not in VALUES:
                continue
            shape = parameter.get_output_partial_shape(0)
            if several is not None:
                report.skip(name, "sequences", several)
            elif shape.is_dynamic or not parameter.get_element_type().is_integral_number():
                found = f"{parameter.get_element_type().get_type_name()} {shape}"
                report.skip(name, "count", f"is {found}, wanted integers of static shape")
            else:
                counts.append((parameter, VALUES[role]))
                report.done(name)
        for cache in slot_caches(model):
            if several is not None:
                report.skip(cache.name, "sequences", several)
            elif cache.parameter.get_output_partial_shape(0)[SLOTS].is_static:
                report.skip(cache.name, "already", "it has one slot")
            else:
                edits.append(deferred(set_shape, cache.parameter, PartialShape([1, 1, 1, cache.width])))
                report.done(cache.name)
        if any(skip.step == "count" for skip in report.skipped):
            return []
        if counts:
            edits.append(deferred(_set_counts, model, counts, report))
        return edits


def why_several(model: Model, roles: dict[str, str]) -> str | None:
    """What says that the caches hold more than one sequence; None when nothing does."""
    chosen = next((name for name, role in roles.items() if role in CHOICES), None)
    if chosen is not None:
        return f"input {chosen} chooses among several sequences in a cache, wanted one"
    for cache in slot_caches(model):
        slots = cache.parameter.get_output_partial_shape(0)[SLOTS]
        if slots.is_static and slots.get_length() != 1:
            return f"{cache.name} has {slots.get_length()} slots, wanted 1"
    return None


def _set_counts(model: Model, counts: list[tuple[Node, int]], report: PassReport) -> None:
    for parameter, value in counts:
        known = const(np.full(list(parameter.get_output_shape(0)), value), parameter.get_element_type().to_dtype())
        redirect(parameter.output(0), like(known, parameter).output(0))
    report.notes.append(f"removed inputs {', '.join(drop_unread_parameters(model, [one for one, _ in counts]))}")
