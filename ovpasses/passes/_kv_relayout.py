"""Edit one KV cache to ``[batch, seq, heads, size]``: its declaration, its rows, its readers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from openvino import Dimension, PartialShape

from ovpasses._openvino import Node, Output, ops
from ovpasses.importers._head_counts import HeadSplit
from ovpasses.passes._edit import (
    Input,
    const,
    const_value,
    consumers,
    deferred,
    like,
    redirect,
    rewire,
    set_variable_shape,
    zeros_constant,
)
from ovpasses.passes._gqa_expansion import is_swap_of_dims_1_2
from ovpasses.passes._identity import bypass
from ovpasses.passes._kv_sites import KVSite
from ovpasses.passes.base import Edit


def split_site(site: KVSite, split: HeadSplit) -> None:
    """From ``[b, 1, seq, n]`` (grown on dim 2) or ``[b, seq, h, d]`` (on dim 1) to ``[b, seq, heads, size]``."""
    old = [site.shape[d] for d in range(4)]
    token_major = site.axis == 1
    for value in (site.holder.output(0), site.past, site.update.output(0)):
        bypass(value)
    outside = [i for i in consumers(site.past) if i.get_node() is not site.update]
    readers = [
        *_reader_edits(site.past, outside, old, split, token_major),
        *_reader_edits(
            site.update.output(0),
            [i for i in consumers(site.update.output(0)) if i.get_node() is not site.keeper],
            old,
            split,
            token_major,
        ),
    ]
    _declare(site, PartialShape([old[0], old[site.axis], Dimension(split.heads), Dimension(split.size)]))
    _append_rows(site, split, old[0])
    for edit in readers:
        edit()


def _declare(site: KVSite, shape: PartialShape) -> None:
    if site.state is None:
        site.holder.set_partial_shape(shape)
    else:
        set_variable_shape(site.state.variable, shape)
        if site.holder.get_input_size():
            initial = site.holder.input_value(0)
            site.holder.set_arguments([_initial(initial, shape)])
    site.holder.validate_and_infer_types()
    site.past.get_node().validate_and_infer_types()


def _initial(initial: Output, shape: PartialShape) -> Output:
    name = initial.get_node().get_friendly_name()
    tail = [shape[2].get_length(), shape[3].get_length()]
    dims = initial.get_partial_shape()
    if dims.is_static and 0 in list(dims.to_shape()):
        return zeros_constant([dims[0].get_length(), 0, *tail], initial.get_element_type(), name).output(0)
    reshaped = ops.reshape(initial, const([0, -1, *tail]), special_zero=True)
    reshaped.set_friendly_name(f"{name}/heads")
    return reshaped.output(0)


def _append_rows(site: KVSite, split: HeadSplit, batch: Dimension) -> None:
    rows = site.rows
    flattening = rows.get_node()
    # A Reshape that only gave the rows the cache's old shape is replaced, anything else is followed by a new one.
    replaces = flattening.get_type_name() == "Reshape"
    source = flattening.input_value(0) if replaces else rows
    target, special_zero = _target(batch, [-1, split.heads, split.size])
    reshaped = ops.reshape(source, target, special_zero=special_zero)
    like(reshaped, flattening, name=None if replaces else f"{site.update.get_friendly_name()}/rows")
    rewire(site.update.input(1 if site.update.get_type_name() == "Concat" else 2), reshaped.output(0))
    if site.update.get_type_name() == "Concat":
        site.update.set_attribute("axis", 1)
    elif site.axis != 1:
        axis = site.update.input_value(3).get_node()
        dtype = axis.get_element_type().to_dtype()
        site.update.input(3).replace_source_output(ops.constant(np.full(axis.get_output_shape(0), 1, dtype)).output(0))
    site.update.validate_and_infer_types()


def _target(batch: Dimension, rest: list[int]) -> tuple[Node, bool]:
    """A Reshape's target that keeps the batch, and whether 0 means that."""
    return (const([1, *rest]), False) if batch == 1 else (const([0, *rest]), True)


def _reader_edits(
    source: Output, readers: Iterable[Input], old: list[Dimension], split: HeadSplit, token_major: bool
) -> list[Edit]:
    """What to do about each reader once ``source`` has the new shape; others get the old shape back."""
    edits: list[Edit] = []
    others: list[Input] = []
    for reader in readers:
        node = reader.get_node()
        first = reader.get_index() == 0
        behind = consumers(node.output(0)) if node.get_output_size() else []
        if first and _is_reshape_to(node, old[0], heads_dim=2, split=split):
            edits.append(deferred(redirect, node.output(0), source))
        elif first and token_major and node.get_type_name() == "Slice" and _slices_dim_1(node):
            edits.append(node.validate_and_infer_types)
            edits += _reader_edits(node.output(0), behind, old, split, token_major)
        elif (
            first
            and token_major
            and is_swap_of_dims_1_2(node)
            and behind
            and all(i.get_index() == 0 and _is_reshape_to(i.get_node(), old[0], 1, split) for i in behind)
        ):
            # The wrong count read back: [b,h,seq,d] taken for [b,heads,seq,size], which mixes tokens when h != heads.
            edits.append(node.validate_and_infer_types)
            edits += [deferred(redirect, i.get_node().output(0), node.output(0)) for i in behind]
        else:
            others.append(reader)
    if others:
        edits.append(deferred(_old_view, source, others, old, token_major))
    return edits


def _is_reshape_to(node: Node, batch: Dimension, heads_dim: int, split: HeadSplit) -> bool:
    """A Reshape to ``[b, seq, heads, size]`` (``heads_dim`` 2) or ``[b, heads, seq, size]`` (1)."""
    if node.get_type_name() != "Reshape":
        return False
    shape, target = node.get_output_partial_shape(0), const_value(node.input_value(1))
    if target is None or target.size != 4 or shape[3] != split.size or shape[heads_dim] != split.heads:
        return False
    keeps_batch = batch == 1 or (target[0] == 0 and node.get_attributes()["special_zero"])
    return bool(keeps_batch and shape[3 - heads_dim] != split.heads) or bool(
        keeps_batch and target[3 - heads_dim] == -1
    )


def _slices_dim_1(node: Node) -> bool:
    axes = const_value(node.input_value(4)) if node.get_input_size() > 4 else None
    return axes is not None and axes.ravel().tolist() in ([1], [-3])


def _old_view(source: Output, readers: list[Input], old: list[Dimension], token_major: bool) -> None:
    rest = [-1, old[2].get_length(), old[3].get_length()] if token_major else [1, -1, old[3].get_length()]
    target, special_zero = _target(old[0], rest)
    view = ops.reshape(source, target, special_zero=special_zero)
    view.set_friendly_name(f"{source.get_node().get_friendly_name()}/old_shape")
    for reader in readers:
        rewire(reader, view.output(0))
