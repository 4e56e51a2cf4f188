"""KV caches that hold several sequences, of which attention reads those that inputs choose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from openvino import Model

from ovpasses._openvino import Node, Output
from ovpasses.importers._slots import behind_views
from ovpasses.importers._walk import const_value, consumers, port_name

CELLS = 2  # the dim of [1, sequences, cells, heads*size] that counts cells


@dataclass(frozen=True)
class SequenceCache:
    """A cache ``[1, sequences, cells, heads*size]`` that is written as one long row of cells.

    Attributes:
        parameter: its input.
        update: the ScatterUpdate ``[1, 1, sequences*cells, heads*size]`` of new rows.
        result: the Result that carries it out.
        views: the Reshapes of cache and update on the way to attention and to the Result.
        chosen: what takes some of its sequences: a Slice between two inputs, or a Gather by a list of them.
    """

    parameter: Node
    update: Node
    result: Node
    views: tuple[Node, ...]
    chosen: Node

    @property
    def name(self) -> str:
        return port_name(self.parameter)

    @property
    def sequences(self) -> int:
        """How many it holds."""
        return int(self.parameter.get_output_partial_shape(0)[1].get_length())

    @property
    def is_listed(self) -> bool:
        """Whether a list says which sequences are read."""
        return bool(self.chosen.get_type_name() == "Gather")

    @property
    def cuts(self) -> list[Node]:
        """The Slices that take the cells of the chosen sequences ``[.., cells, heads, size]`` that attention covers."""
        nodes = [i.get_node() for i in consumers(self.chosen.output(0)) if i.get_index() == 0]
        return [node for node in nodes if node.get_type_name() == "Slice" and _axis(node, 4) == 1]


def sequence_caches(model: Model) -> Iterator[SequenceCache]:
    """Every cache of several sequences, in the order of the model's inputs."""
    for parameter in model.get_parameters():
        shape = parameter.get_output_partial_shape(0)
        known = shape.rank.is_static and shape.rank.get_length() == 4 and shape[1].is_static and shape[3].is_static
        if known and shape[0] == 1 and parameter.get_element_type().is_real():
            yield from _found(parameter)


def _found(parameter: Node) -> Iterator[SequenceCache]:
    for row in _reshapes(parameter.output(0)):
        for reader in consumers(row.output(0)):
            update = reader.get_node()
            if update.get_type_name() != "ScatterUpdate" or reader.get_index() != 0:
                continue
            views = [row, *_all_reshapes(update.output(0))]
            nodes = [i.get_node() for view in views[1:] for i in consumers(view.output(0)) if i.get_index() == 0]
            results = [node for node in nodes if node.get_type_name() == "Result"]
            chosen = [node for node in nodes if _chooses(node)]
            if len(results) == len(chosen) == 1:
                yield SequenceCache(parameter, update, results[0], tuple(views), chosen[0])


def _reshapes(value: Output) -> list[Node]:
    nodes = [i.get_node() for i in consumers(value) if i.get_index() == 0]
    return [node for node in nodes if node.get_type_name() == "Reshape"]


def _all_reshapes(value: Output) -> Iterator[Node]:
    for node in _reshapes(value):
        yield node
        yield from _all_reshapes(node.output(0))


def _chooses(node: Node) -> bool:
    """A Slice on axis 0 between two inputs, or a Gather on axis 0 at an input."""
    kind = node.get_type_name()
    if kind not in ("Slice", "Gather") or (kind == "Slice" and node.get_input_size() != 5):
        return False
    bounds = [behind_views(node.input_value(i)).get_node() for i in ((1, 2) if kind == "Slice" else (1,))]
    inputs = all(bound.get_type_name() == "Parameter" for bound in bounds)
    return inputs and _axis(node, 4 if kind == "Slice" else 2) == 0


def _axis(node: Node, port: int) -> int | None:
    """The one axis that a constant names."""
    axis = const_value(node.input_value(port)) if node.get_input_size() > port else None
    return int(axis.ravel()[0]) if axis is not None and axis.size == 1 else None
