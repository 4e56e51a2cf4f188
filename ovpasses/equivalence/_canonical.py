"""Graphs without names and node order: every node gets a hash of what feeds it, and one of what it feeds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from openvino import Model

from ovpasses._openvino import Constant, Node

# Attributes that are names.
NAME_ATTRIBUTES = frozenset({"variable_id"})

# A number that counts up through a process.
_MADE_UP = re.compile(r"(Result|Parameter)_\d+")

ConstantDigests = dict[tuple[int, int], bytes]


def hashed(*parts: bytes | str | int) -> bytes:
    """Digest of a sequence of parts; no two sequences run together."""
    data = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return _digest(b"".join(len(part).to_bytes(4, "little") + part for part in data))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def attributes(node: Node) -> dict[str, str]:
    """Attributes of an op as text, names left out."""
    found = node.get_attributes()
    return {key: str(value) for key, value in sorted(found.items()) if key not in NAME_ATTRIBUTES}


def tensor_names(node: Node) -> set[str]:
    """Tensor names of a node's outputs, without those that OpenVINO makes up for an input or output without one."""
    names = {name for output in node.outputs() for name in output.get_names()}
    return {name for name in names if not _MADE_UP.fullmatch(name)}


def constant_bytes(node: Constant) -> np.ndarray:
    """A Constant's values as bytes, without a copy (4-bit and float8 types as they are packed)."""
    if node.get_element_type().get_type_name() == "string":
        return np.frombuffer(repr(node.get_value_strings()).encode(), dtype=np.uint8)
    if node.get_element_type().is_dynamic():
        return np.zeros(0, dtype=np.uint8)  # stands for an input that is not there, as in GatherMatmul
    return np.ascontiguousarray(node.data).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class States:
    """The Variables of a graph: positions of ReadValue and Assign in its nodes, -1 where there is none."""

    ids: list[str] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    assigns: list[int] = field(default_factory=list)

    def of_nodes(self) -> dict[int, int]:
        """Node position -> number of its state."""
        found = {read: i for i, read in enumerate(self.reads) if read >= 0}
        return found | {assign: i for i, assign in enumerate(self.assigns) if assign >= 0}


class Graph:
    """A model's nodes in topological order, with what each is by itself and what feeds it.

    Args:
        model: the model; it must not change while this is in use.
        constants: digests known already, by address and length; clones share their weights.
    """

    def __init__(self, model: Model, constants: ConstantDigests | None = None) -> None:
        self._constants: ConstantDigests = {} if constants is None else constants
        self.nodes: list[Node] = list(model.get_ordered_ops())
        self.position = {node.get_instance_id(): i for i, node in enumerate(self.nodes)}
        self.types = [node.get_type_name() for node in self.nodes]
        self.sources = [
            [(self.position[value.get_node().get_instance_id()], value.get_index()) for value in node.input_values()]
            for node in self.nodes
        ]
        self.own = [self._own(node) for node in self.nodes]
        self.parameters = [self.position[node.get_instance_id()] for node in model.get_parameters()]
        self.results = [self.position[node.get_instance_id()] for node in model.get_results()]
        self.readers: list[list[tuple[int, bytes]]] = [[] for _ in self.nodes]  # node, and both ports
        for reader, sources in enumerate(self.sources):
            for port, (source, index) in enumerate(sources):
                self.readers[source].append((reader, port.to_bytes(2, "little") + index.to_bytes(2, "little")))
        self.states = self._states()
        self.state_of = self.states.of_nodes()

    def _own(self, node: Node) -> bytes:
        """What a node is, its inputs aside."""
        kind = node.get_type_info()
        parts: list[bytes | str | int] = [kind.name, str(kind.version_id)]
        parts += [part for item in attributes(node).items() for part in item]
        if isinstance(node, Constant):
            parts.append(self._constant(node))
        for body, inputs, outputs, special in bodies(node):
            parts.append(_body(Graph(body, self._constants), inputs, outputs, special))
        return hashed(*parts)

    def _constant(self, node: Constant) -> bytes:
        data = constant_bytes(node)
        key = (data.ctypes.data, data.nbytes)
        if data.nbytes < 4096:
            return hashed(data.tobytes())
        if key not in self._constants:
            self._constants[key] = hashlib.blake2b(data.data, digest_size=16).digest()
        return self._constants[key]

    def _states(self) -> States:
        reads: dict[str, int] = {}
        assigns: dict[str, int] = {}
        for i, kind in enumerate(self.types):
            if kind in ("ReadValue", "Assign"):
                (reads if kind == "ReadValue" else assigns)[self.nodes[i].get_variable_id()] = i
        ids = list(dict.fromkeys([*reads, *assigns]))
        return States(ids, [reads.get(v, -1) for v in ids], [assigns.get(v, -1) for v in ids])

    def fed_by(self, labels: Mapping[int, bytes], assumed: Mapping[int, bytes] | None = None) -> list[bytes]:
        """Per node the hash of everything that feeds it.

        Args:
            labels: what is known of a node beside its op (which input, output or state it is), as digests.
            assumed: hashes to take for some nodes instead.
        """
        found: list[bytes] = []
        for i, own in enumerate(self.own):
            if assumed and i in assumed:
                found.append(assumed[i])
                continue
            feeds = [found[source] + index.to_bytes(2, "little") for source, index in self.sources[i]]
            found.append(_digest(own + labels.get(i, b"") + b"".join(feeds)))
        return found

    def within(self, fed_by: Sequence[bytes]) -> list[bytes]:
        """Per node the hash of everything that feeds it and of everything it feeds."""
        found = [b""] * len(self.nodes)
        for i in range(len(self.nodes) - 1, -1, -1):
            readers = [found[reader] + ports for reader, ports in self.readers[i]]
            found[i] = _digest(fed_by[i] + b"".join(sorted(readers)))
        return found


def bodies(node: Node) -> list[tuple[Model, list[Any], list[Any], list[int]]]:
    """The subgraphs of a Loop, TensorIterator or If: body, input and output descriptions, special ports."""
    kind = node.get_type_name()
    if kind == "If":
        both = range(2)
        return [
            (node.get_function(i), node.get_input_descriptions(i), node.get_output_descriptions(i), []) for i in both
        ]
    if kind in ("Loop", "TensorIterator"):
        special = list(node.get_special_body_ports()) if kind == "Loop" else []
        return [(node.get_function(), node.get_input_descriptions(), node.get_output_descriptions(), special)]
    return []


def port_text(description: Any) -> str:
    """One line of a port map, the body's own numbering aside."""
    fields = ("input_index", "output_index", "iteration", "start", "stride", "part_size", "end", "axis")
    known = [f"{name}={getattr(description, name)}" for name in fields if hasattr(description, name)]
    return f"{type(description).__name__}({', '.join(known)})"


def body_labels(graph: Graph, inputs: Sequence[Any], special: Sequence[int]) -> dict[int, bytes]:
    """Labels of a body's Parameters (by the outer input they take) and states (by shape)."""
    labels = {graph.parameters[d.body_parameter_index]: hashed(port_text(d)) for d in inputs}
    if special and 0 <= special[0] < len(graph.parameters):
        labels[graph.parameters[special[0]]] = hashed("current iteration")
    return labels


def body_results(graph: Graph, inputs: Sequence[Any], outputs: Sequence[Any], special: Sequence[int]) -> dict[str, int]:
    """What a body's Results are for, and where they are; one Result may have several uses."""
    merged = {f"next {port_text(d)}": d.body_value_index for d in inputs if hasattr(d, "body_value_index")}
    uses = merged | {port_text(d): d.body_value_index for d in outputs}
    if len(special) > 1 and special[1] >= 0:
        uses["condition"] = special[1]
    return {use: graph.results[index] for use, index in sorted(uses.items())}


def _body(graph: Graph, inputs: Sequence[Any], outputs: Sequence[Any], special: Sequence[int]) -> bytes:
    fed_by = graph.fed_by(body_labels(graph, inputs, special))
    parts: list[bytes | str | int] = []
    for use, result in body_results(graph, inputs, outputs, special).items():
        parts += (use, fed_by[result])
    return hashed(*parts, *sorted(fed_by[i] for i in graph.states.assigns if i >= 0))


def refined_states(graphs: Sequence[Graph], labels: Sequence[Mapping[int, bytes]]) -> list[list[bytes]]:
    """A colour per state that depends on nothing but structure, the same rounds for every graph.

    A state is at first no more than its shape and type; each round adds what is written to it and where it
    is read, in the colours of the round before, until no round tells more states apart.
    """
    colours = [[_first_colour(graph, i) for i in range(len(graph.states.ids))] for graph in graphs]
    while any(colours):
        refined = [_next_colours(*each) for each in zip(graphs, labels, colours, strict=True)]
        grown = any(len(set(new)) > len(set(old)) for new, old in zip(refined, colours, strict=True))
        colours = refined
        if not grown:
            break
    return colours


def _first_colour(graph: Graph, state: int) -> bytes:
    read = graph.states.reads[state]
    return hashed("state", graph.own[read] if read >= 0 else b"")


def _next_colours(graph: Graph, labels: Mapping[int, bytes], colours: Sequence[bytes]) -> list[bytes]:
    known = {**labels, **{node: colours[state] for node, state in graph.state_of.items()}}
    fed_by = graph.fed_by(known)
    within = graph.within(fed_by)
    found = []
    for colour, read, assign in zip(colours, graph.states.reads, graph.states.assigns, strict=True):
        written = fed_by[assign] if assign >= 0 else b"never written"
        found.append(hashed(colour, written, within[read] if read >= 0 else b"never read"))
    return found
