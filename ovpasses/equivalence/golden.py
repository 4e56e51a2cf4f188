"""A graph's structure as text that people read and version control diffs: what a golden file holds."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import islice

from openvino import Model

from ovpasses._openvino import RELEASE, Constant, Node, Output
from ovpasses.equivalence._canonical import Graph, attributes, bodies, constant_bytes, hashed, tensor_names
from ovpasses.equivalence._states import meaning
from ovpasses.equivalence.errors import CheckError
from ovpasses.equivalence.structure import structure_digest
from ovpasses.runtime.states import StateInfo

HEADER = "ovpasses golden structure 1"

# Constants of at most so many bytes are written out.
SMALL = 64

MOST_DIFF_LINES = 40


def golden_text(model: Model) -> str:
    """What a golden file holds of a graph.

    First a digest, which alone decides whether another graph is the same (see
    :func:`~ovpasses.equivalence.structure_digest`): it does not depend on names of nodes and states, or on order. Then
    the inputs, outputs and states, and a line per op, which says what feeds it by type and shape and not by number: an
    op more or less changes few lines.
    """
    lines = [HEADER, f"digest {structure_digest(model)}", f"openvino {RELEASE}", f"ops {len(model.get_ops())}", ""]
    return "\n".join([*lines, *_listing(Graph(model))]) + "\n"


def golden_difference(recorded: str, model: Model, where: str) -> str:
    """What differs from a golden file; "" when nothing does.

    Args:
        recorded: what the file holds.
        model: the graph that should be the same.
        where: the file, for messages.

    Raises:
        CheckError: it is no golden file of this version.
    """
    head = recorded.splitlines()[:2]
    if len(head) < 2 or head[0] != HEADER or not head[1].startswith("digest "):
        raise CheckError(f"{where}: is no golden file, wanted its first line to be {HEADER!r}; record it anew")
    if head[1] == f"digest {structure_digest(model)}":
        return ""
    old, new = recorded.splitlines()[2:], golden_text(model).splitlines()[2:]
    diff = list(islice(difflib.unified_diff(old, new, "recorded", "now", n=2, lineterm=""), MOST_DIFF_LINES + 1))
    if len(diff) > MOST_DIFF_LINES:
        diff[-1] = "... and more"
    return "\n".join(diff) or "the same ops, connected otherwise: compare_structure of both models tells where"


def _listing(graph: Graph, indent: str = "") -> Iterator[str]:
    for word, nodes in (("input", graph.parameters), ("output", graph.results)):
        for i in sorted(nodes, key=lambda i: (_name(graph, i), nodes.index(i))):
            yield indent + _joined(word, _name(graph, i), _kinds(graph.nodes[i]))
    reads = {i for i in graph.states.reads if i >= 0}
    yield from sorted(f"{indent}{_name(graph, i)} {_kinds(graph.nodes[i])}" for i in reads)
    yield ""
    for i in _from_outputs(graph):
        node = graph.nodes[i]
        if graph.types[i] in ("Constant", "Parameter"):
            continue
        parts = [graph.types[i]]
        parts += [_name(graph, i)] if graph.types[i] in ("Result", "Assign", "ReadValue") else []
        parts.append(_kinds(node))
        known = ", ".join(f"{key}={value}" for key, value in attributes(node).items())
        parts.append(f"({known})" if known else "")
        feeds = ", ".join(_reference(graph, *source) for source in graph.sources[i])
        yield indent + _joined(*parts, f"<- {feeds}" if feeds else "")
        for body, *_ in bodies(node):
            yield from _listing(Graph(body), f"{indent}    ")


def _from_outputs(graph: Graph) -> Iterator[int]:
    """Every op behind those that feed it, from outputs and states by name: an order that does not depend on nodes'."""
    seen: set[int] = set()
    ends = sorted(graph.results, key=lambda i: (_name(graph, i), graph.results.index(i)))
    for end in [*ends, *sorted((i for i in graph.states.assigns if i >= 0), key=lambda i: _name(graph, i))]:
        todo = [(end, False)]
        while todo:
            i, fed = todo.pop()
            if fed:
                yield i
            elif i not in seen:
                seen.add(i)
                todo += [(i, True), *((source, False) for source, _ in reversed(graph.sources[i]))]


def _name(graph: Graph, i: int) -> str:
    """Of an input or output its tensor name, of a state what it is; "" without one."""
    state = graph.state_of.get(i)
    if state is not None:
        return f"state {meaning(StateInfo(graph.states.ids[state], ''))}"
    return min(tensor_names(graph.nodes[i]), default="")


def _kinds(node: Node) -> str:
    return " ".join(map(_kind, node.outputs()))


def _kind(output: Output) -> str:
    return f"{output.get_element_type().get_type_name()}{output.get_partial_shape()}"


def _reference(graph: Graph, i: int, port: int) -> str:
    node, kind = graph.nodes[i], graph.types[i]
    if isinstance(node, Constant):
        data = constant_bytes(node)
        plain = node.get_element_type().get_type_name() in ("f16", "f32", "f64", "i32", "i64")
        value = node.data.tolist() if plain and data.nbytes <= SMALL else f"#{hashed(data.tobytes()).hex()[:12]}"
        return f"{_kinds(node)} {value}"
    if kind in ("Parameter", "ReadValue"):
        return _joined("input" if kind == "Parameter" else "", _name(graph, i))
    number = f".{port}" if len(node.outputs()) > 1 else ""
    return f"{kind}{number} {_kind(node.output(port))}"


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)
