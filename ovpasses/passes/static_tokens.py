"""StaticTokens: a dynamic graph to a static one of N tokens and a context of C cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from openvino import Model, PartialShape

from ovpasses._openvino import Node, ops
from ovpasses.errors import RewriteError, one_line
from ovpasses.importers._sequence_caches import CELLS as CELL_DIM
from ovpasses.importers._sequence_caches import sequence_caches
from ovpasses.importers._walk import port_name
from ovpasses.importers.graph_info import info_from_graph, info_from_rt_info
from ovpasses.importers.input_roles import input_roles
from ovpasses.passes._batch_edits import sequence_list
from ovpasses.passes._cache_pairs import CachePair, find_pairs, result_names
from ovpasses.passes._edit import const, deferred, drop_unread_inputs, drop_unread_parameters, like, redirect
from ovpasses.passes._static_check import listed, not_static
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.one_sequence import why_several
from ovpasses.passes.report import PassReport

# Cells of a cache when neither the caller nor the model says less.
DEFAULT_CONTEXT = 1024

TOKENS = ("inp_tokens", "input_ids")
POSITIONS = ("inp_pos", "position_ids")
ROWS = ("inp_out_ids", "out_ids")
MASKS = ("self_kq_mask", "self_kq_mask_swa")
WRITES = ("inp_kv_idx", "kv_write_idx")
CELLS = ("attention_size",)


@dataclass(frozen=True)
class _Sizes:
    tokens: int
    context: int
    rows: int
    planes: int
    sequences: int


class StaticTokens(ReportedPass):
    """Fix every dim for N tokens per call and caches of C cells, which is what an NPU takes.

    Before::

        tokens [1,1,1,?], positions [1,1,1,?], mask [1,1,?,?], rows to output [1,1,1,?] -> ...
        cache [1,?,h,d] -> ScatterUpdate(axis 2) -> Result
        rows [1,t,h,d] -> Reshape [1,1,t*h,d] --^

    After::

        tokens [1,1,1,N], positions [1,1,1,planes*N], mask [1,1,N,C], rows to output [1,1,1,R] -> ...
        cache [1,C,h,d] -> ScatterUpdate(kv_idx [N], axis 1) [1,C,h,d] -> Result
        rows [1,N,h,d] ----------------^

    Applies when (per input; all together or not at all):
        role: the input is tokens, positions, a mask, rows to output or write indices, or a cache or state; or it says
            how many cells of a cache attention reads (``attention_size`` of a llama.cpp dump), which becomes C.
        cache: rows ``[1, t, heads, size]`` are scattered into it, at indices that are an input. One of S sequences
            (BatchSequences) becomes ``[1, S, C, heads*size]``; tokens and rows are then those of each of B sequences.
        static: with these inputs fixed, every output of every node is static and has elements.

    Leaves alone: inputs that are static already ("already"). Caches stay inputs and outputs.
    Keeps: names of inputs and outputs. The output of the cache or state ``X`` gets the tensor name ``X_out``.
        Inputs that no op reads, or no longer, are removed.
    Numerics: bit-exact, but for attention over C cells of which the mask hides the empty ones.
    Source: shapes as in the static graphs that llama.cpp's OpenVINO backend makes for an NPU, recorded under
        ``models/recorded/after/*/static``; the frontend's scatter on the heads axis measured on 2026.4.1.

    Args:
        tokens: tokens of one call, N; of each sequence where a call runs a fixed number of them.
        context: cells of every cache, C; 1024 when not given, or the context length that ovpasses wrote
            into a saved IR when that is less.
        rows: how many of these tokens get logits, at most N.
        strict: see :class:`ReportedPass`; a graph that cannot be made static is an error in any case.

    Raises:
        RewriteError: a size is not positive, ``rows`` or ``tokens`` is more than there is, or something stays
            dynamic or empty: the message names the first such nodes, the report all; the model is unchanged.
    """

    looked_for: ClassVar[str] = "input"

    def __init__(self, *, tokens: int = 1, context: int | None = None, rows: int = 1, strict: bool = False) -> None:
        super().__init__(strict=strict)
        for name, value in (("tokens", tokens), ("context", context), ("rows", rows)):
            if value is not None and value < 1:
                raise RewriteError(f"{name} is {value}, wanted at least 1")
        if rows > tokens:
            raise RewriteError(f"rows is {rows}, wanted at most the {tokens} tokens of a call")
        if context is not None and tokens > context:
            raise RewriteError(f"tokens is {tokens}, wanted at most the context of {context} cells")
        self.tokens, self.context, self.rows = tokens, context, rows

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        several = why_several(model, input_roles(model)) if sequence_list(model) is None else None
        if several is not None:
            raise RewriteError(
                f"{report.name}: {several}; run BatchSequences before it, or give the preset the option sequences, how "
                "many run at a time; nothing was changed",
                (report,),
            )
        sizes = self._sizes(model)
        changed, left = _tried(model.clone(), sizes)
        if left:
            for name, reason in left:
                report.skip(name, "static", reason)
            raise RewriteError(
                f"{report.name}: with {sizes.tokens} tokens and {sizes.context} cells not all is static: "
                f"{listed(left)}; nothing was changed",
                (report,),
            )
        for parameter in model.get_parameters():
            shape = parameter.get_output_partial_shape(0)
            if port_name(parameter) in changed or shape.is_dynamic:  # a dynamic one that nothing reads goes away
                report.done(port_name(parameter))
            else:
                report.skip(port_name(parameter), "already", f"its shape {shape} is static")
        if not report.rewritten:
            return []
        return [deferred(_make_static, model, sizes), deferred(drop_unread_inputs, model, report)]

    def _sizes(self, model: Model) -> _Sizes:
        context = self.context
        if context is None:
            known = info_from_rt_info(model)
            context = min(DEFAULT_CONTEXT, (known.context_length if known else None) or DEFAULT_CONTEXT)
            if self.tokens > context:
                raise RewriteError(f"tokens is {self.tokens}, wanted at most the context of {context} cells")
        listed = sequence_list(model)
        length = listed.get_output_partial_shape(0)[0] if listed is not None else None
        sequences = length.get_length() if length is not None and length.is_static else 1
        return _Sizes(self.tokens, context, self.rows, info_from_graph(model).position_planes, sequences)

    def _options(self) -> list[str]:
        options = [f"tokens={self.tokens}"] if self.tokens != 1 else []
        options += [f"context={self.context}"] if self.context is not None else []
        options += [f"rows={self.rows}"] if self.rows != 1 else []
        return options


def _make_static(model: Model, sizes: _Sizes) -> set[str]:
    """Fix the shapes of inputs and write the rows of each cache on its cells; returns the names of what changed."""
    roles = info_from_graph(model).roles
    fixed: dict[str, PartialShape] = {}
    scattered: list[CachePair] = []
    for parameter in model.get_parameters():
        name, shape = port_name(parameter), parameter.get_output_partial_shape(0)
        dims = _dims(roles.get(name, name), shape, sizes)
        if dims is not None:
            fixed[name] = dims
        elif roles.get(name) in CELLS and shape.is_static:
            cells = const(np.full(list(shape.to_shape()), sizes.context), parameter.get_element_type().to_dtype())
            redirect(parameter.output(0), like(cells, parameter).output(0))
            fixed[name] = shape
    for pair in find_pairs(model, {}):
        if not isinstance(pair, CachePair):
            continue
        _name_output(pair.name, pair.result)
        if pair.update is not None and pair.update.get_type_name() == "ScatterUpdate":
            shape = pair.parameter.get_output_partial_shape(0)
            fixed[pair.name] = _with(shape, {pair.axis: sizes.context})
            scattered += [pair] if pair.axis == 1 else []
    for cache in sequence_caches(model):
        _name_output(cache.name, cache.result)
        shape = cache.parameter.get_output_partial_shape(0)
        if shape.is_dynamic:
            fixed[cache.name] = _with(shape, {CELL_DIM: sizes.context})
    for parameter in model.get_parameters():
        if port_name(parameter) in fixed:
            parameter.set_partial_shape(fixed[port_name(parameter)])
            parameter.validate_and_infer_types()
    for pair in scattered:
        _scatter_on_cells(pair)
    return set(fixed)


def _dims(role: str, shape: PartialShape, sizes: _Sizes) -> PartialShape | None:
    """The shape that an input of this role gets; None when it is static or its role says nothing."""
    if shape.rank.is_dynamic or shape.is_static or shape.rank.get_length() == 0:
        return None
    last = shape.rank.get_length() - 1
    tokens = sizes.sequences * sizes.tokens
    lengths = {
        TOKENS: {last: tokens},
        POSITIONS: {last: sizes.planes * tokens},
        ROWS: {last: sizes.sequences * sizes.rows},
        WRITES: {last: tokens},
        MASKS: {0: sizes.sequences, last - 1: sizes.tokens, last: sizes.context},
    }
    return next((_with(shape, fixed) for roles, fixed in lengths.items() if role in roles), None)


def _with(shape: PartialShape, lengths: dict[int, int]) -> PartialShape:
    """The shape with these dims fixed where they are dynamic, any other dynamic one (batch, heads of a mask) 1."""
    dims = [shape[d] if shape[d].is_static else lengths.get(d, 1) for d in range(shape.rank.get_length())]
    return PartialShape(dims)


def _name_output(cache: str, result: Node) -> None:
    name = f"{cache}_out"
    if name not in result_names(result) - {result.get_friendly_name()}:
        result.output(0).get_tensor().add_names({name})


def _scatter_on_cells(pair: CachePair) -> None:
    update, rows = pair.update, pair.rows
    assert update is not None
    assert rows is not None
    if pair.flat_rows:
        shape = pair.parameter.get_output_partial_shape(0)
        rows = ops.reshape(rows, const([1, -1, shape[2].get_length(), shape[3].get_length()]), False).output(0)
    new = ops.scatter_update(update.input_value(0), update.input_value(1), rows, const(1))
    redirect(update.output(0), like(new, update).output(0))


def _tried(trial: Model, sizes: _Sizes) -> tuple[set[str], list[tuple[str, str]]]:
    """Names of the inputs that change, and what is in the way of a static graph, by node."""
    try:
        changed = _make_static(trial, sizes)
        trial.validate_nodes_and_infer_types()
    except RuntimeError as error:
        return set(), [("the graph", f"its shapes do not fit together ({one_line(error)})")]
    drop_unread_parameters(trial)
    return changed, not_static(trial)
