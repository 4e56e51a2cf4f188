"""A model's nodes and edges by position, with what is constant set apart."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from openvino import Model, PartialShape

from ovpasses._openvino import Node
from ovpasses.visualize._picture import PictureError

# Ops that read nothing, or only constants, and still are no constants.
_NEVER_CONSTANT = ("Parameter", "ReadValue", "RandomUniform", "Assign", "Result")


@dataclass(frozen=True)
class Edge:
    """One input of one node: where it comes from and where it goes, as positions and port numbers."""

    source: int
    output: int
    reader: int
    port: int


class View:
    """The nodes of a model in topological order, and the edges between them.

    Args:
        model: the model; it must not change while this is in use.
    """

    def __init__(self, model: Model) -> None:
        self.nodes: list[Node] = list(model.get_ordered_ops())
        self.kinds: list[str] = [node.get_type_name() for node in self.nodes]
        position = {node.get_instance_id(): i for i, node in enumerate(self.nodes)}
        self.inputs: list[list[Edge]] = []
        self.readers: list[list[Edge]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            values = enumerate(node.input_values())
            edges = [Edge(position[v.get_node().get_instance_id()], v.get_index(), i, port) for port, v in values]
            self.inputs.append(edges)
            for edge in edges:
                self.readers[edge.source].append(edge)
        self.constant: list[bool] = []
        for kind, edges in zip(self.kinds, self.inputs, strict=True):
            computed = bool(edges) and kind not in _NEVER_CONSTANT and all(self.constant[edge.source] for edge in edges)
            self.constant.append(kind == "Constant" or computed)

    def name(self, i: int) -> str:
        return str(self.nodes[i].get_friendly_name())

    def names(self, i: int) -> set[str]:
        """Everything a node may be called by: friendly name, tensor names, the id of its Variable."""
        node = self.nodes[i]
        found = {name for output in node.outputs() for name in output.get_names()}
        if self.kinds[i] in ("ReadValue", "Assign"):
            found.add(node.get_variable_id())
        return found | {self.name(i)}

    def called(self, name: str) -> list[int]:
        """Positions of the nodes called ``name``, those with that friendly name first."""
        by_friendly_name = [i for i in range(len(self.nodes)) if self.name(i) == name]
        return by_friendly_name or [i for i in range(len(self.nodes)) if name in self.names(i)]

    def find(self, name: str) -> int:
        """The node called ``name``; of a Parameter and a Result of one name the Parameter.

        Raises:
            PictureError: there is none; the message has the names that are closest.
        """
        found = self.called(name)
        if not found:
            known = sorted(set().union(*(self.names(i) for i in range(len(self.nodes)))))
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
            hint = f"; closest are {', '.join(map(repr, close))}" if close else ""
            raise PictureError(f"node {name!r} is not among the {len(self.nodes)} ops of the model{hint}")
        return found[0]

    def input_nodes(self, i: int) -> list[int]:
        """The nodes that feed a node, constants left out."""
        return list(dict.fromkeys(edge.source for edge in self.inputs[i] if not self.constant[edge.source]))

    def reader_nodes(self, i: int) -> list[int]:
        """The nodes that read a node, constants left out."""
        return list(dict.fromkeys(edge.reader for edge in self.readers[i] if not self.constant[edge.reader]))

    def neighbours(self, i: int) -> list[int]:
        """What feeds a node and what reads it, constants left out."""
        return [*self.input_nodes(i), *self.reader_nodes(i)]

    def carries(self, edge: Edge) -> str:
        """Element type and shape of what an edge carries, as ``f16 [1,?,3,64]``."""
        node = self.nodes[edge.source]
        kind = node.get_output_element_type(edge.output).get_type_name()
        return f"{kind} {shape_text(node.get_output_partial_shape(edge.output))}"


def shape_text(shape: PartialShape) -> str:
    """A shape as ``[1,?,3,64]``; a dim without an upper bound that matters is ``1..``."""
    return re.sub(r"\.\.2147483\d{3}\b", "..", str(shape))
