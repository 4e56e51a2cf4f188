"""compare_structure: the same ops, attributes, constants and edges, whatever they are called and in whatever order."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from openvino import Model

from ovpasses._openvino import Node
from ovpasses.equivalence._canonical import (
    ConstantDigests,
    Graph,
    attributes,
    bodies,
    body_labels,
    body_results,
    hashed,
    refined_states,
    tensor_names,
)
from ovpasses.equivalence._subjects import graph_of
from ovpasses.equivalence._wording import describe, input_difference, name_of, quoted
from ovpasses.importers import ImportedModel

MOST_DIFFERENCES = 8
Labels = dict[int, bytes]
Subject: TypeAlias = "Model | ImportedModel | str | os.PathLike[str]"

# Of one op: things that distinguish it. All lines together are a screenful.
MOST_REASONS = 4


@dataclass
class StructureReport:
    """The outcome of a structural comparison; true when the graphs are the same.

    Attributes:
        differences: where they differ, anchored at the first ops (in topological order) that do; not what
            follows from these. At most a screenful.
        ops: number of ops in the first and in the second graph.
        more: further differences were found that are not listed.
    """

    differences: list[str] = field(default_factory=list)
    ops: tuple[int, int] = (0, 0)
    more: bool = False

    @property
    def same(self) -> bool:
        """True when nothing differs."""
        return not self.differences

    def __bool__(self) -> bool:
        return self.same

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"same": self.same, "differences": list(self.differences), "ops": list(self.ops), "more": self.more}

    def __str__(self) -> str:
        if self.same:
            return f"same structure: {self.ops[0]} ops"
        lines = [f"structure differs (a has {self.ops[0]} ops, b has {self.ops[1]}):", *self.differences]
        return "\n".join([*lines, "... and more"] if self.more else lines)


def compare_structure(a: Subject, b: Subject, *, names: bool = False) -> StructureReport:
    """Compare two graphs op by op.

    Compared: op types and opset versions, attributes, constants by their bytes, edges with port numbers, bodies of
    Loop, TensorIterator and If with their port maps, and which state every Assign writes. Inputs and outputs are
    matched by tensor name (by order where one has none) and must agree in it. Not compared: friendly names, names of
    inner tensors, variable ids, node order, rt_info, and whether equal Constants are one node or several.

    Args:
        a, b: the graphs, or paths of them; neither is changed.
        names: compare friendly names, tensor names and variable ids too (not those of Constants).

    Returns:
        A report that is true when the graphs are the same.

    Raises:
        ModelReadError: a path cannot be read.
    """
    constants: ConstantDigests = {}
    graphs = [Graph(graph_of(one), constants) for one in (a, b)]
    pair = _Pair(*graphs)
    found = list(pair.differences(names))
    if found:  # variable ids may have been given in another order
        other = _Pair(*graphs, by_content=True)
        found = min(found, list(other.differences(names)), key=len) if other.partner != pair.partner else found
    report = StructureReport(ops=(len(pair.a.nodes), len(pair.b.nodes)))
    report.differences, report.more = found[:MOST_DIFFERENCES], len(found) > MOST_DIFFERENCES
    return report


def structure_digest(model: Model) -> str:
    """A digest of what :func:`compare_structure` compares; equal for equal graphs, in every process.

    Of an input or output with several tensor names all count, where two graphs need to share only one.
    """
    graph = Graph(model)
    labels: Labels = {}
    for kind, nodes in (("input", graph.parameters), ("output", graph.results)):
        for order, i in enumerate(nodes):
            labels[i] = hashed(kind, *(sorted(tensor_names(graph.nodes[i])) or [str(order)]))
    colours = refined_states([graph], [labels])[0]
    labels |= {node: colours[state] for node, state in graph.state_of.items()}
    within = graph.within(graph.fed_by(labels))
    ops = (within[i] for i, kind in enumerate(graph.types) if kind != "Constant")
    return hashed(*sorted(ops)).hex()


class _Pair:
    """Two graphs, with their inputs, outputs and states matched to each other."""

    def __init__(self, a: Graph, b: Graph, *, by_content: bool = False) -> None:
        self.a, self.b, self._by_content = a, b, by_content
        self.labels: tuple[Labels, Labels] = ({}, {})
        self.partner: dict[int, int] = {}  # input, output, ReadValue, Assign: node of a -> node of b
        self.interface: list[str] = []
        self._match("input", a.parameters, b.parameters)
        self._match("output", a.results, b.results)
        self._match_states()

    def _match(self, kind: str, left: list[int], right: list[int]) -> None:
        names_a = {i: tensor_names(self.a.nodes[i]) for i in left}
        names_b = {i: tensor_names(self.b.nodes[i]) for i in right}
        rest_a, rest_b, matched = list(left), list(right), []
        by_name: dict[str, list[int]] = defaultdict(list)
        for j in right:
            for name in names_b[j]:
                by_name[name].append(j)
        for i in left:
            found = [j for name in sorted(names_a[i]) for j in by_name[name] if j in rest_b]
            if found:
                matched.append((i, found[0]))
                rest_a.remove(i)
                rest_b.remove(found[0])
        for i in list(rest_a):  # by order: those without a name, and those that are alike but for the name
            alike = (j for j in rest_b if not (names_a[i] and names_b[j]) or self.a.own[i] == self.b.own[j])
            other = next(alike, None)
            if other is None:
                continue
            matched.append((i, other))
            rest_a.remove(i)
            rest_b.remove(other)
            if names_a[i] and names_b[other]:
                self.interface.append(f"{kind} {quoted(names_a[i])} in a is called {quoted(names_b[other])} in b")
        for count, (i, j) in enumerate(matched):
            self.labels[0][i] = self.labels[1][j] = hashed(kind, count)
            self.partner[i] = j
        for side, rest, graph in (("a", rest_a, self.a), ("b", rest_b, self.b)):
            for i in rest:
                self.labels["ab".index(side)][i] = hashed(kind, side, i)
                self.interface.append(f"{kind} only in {side}: {describe(graph, i)}")

    def _match_states(self) -> None:
        a, b = self.a, self.b
        colours = refined_states([a, b], self.labels)
        plain = [_written(graph, labels) for graph, labels in zip((a, b), self.labels, strict=True)]
        names = [[_state_names(graph, i) for i in range(len(graph.states.ids))] for graph in (a, b)]
        shapes = [[graph.own[read] if read >= 0 else b"" for read in graph.states.reads] for graph in (a, b)]
        rest = [list(range(len(graph.states.ids))) for graph in (a, b)]
        tests = [
            lambda i, j: colours[0][i] == colours[1][j] and bool(names[0][i] & names[1][j]),
            lambda i, j: colours[0][i] == colours[1][j],
            lambda i, j: self._by_content and plain[0][i] == plain[1][j] and shapes[0][i] == shapes[1][j],
            lambda i, j: bool(names[0][i] & names[1][j]) and shapes[0][i] == shapes[1][j],
            lambda i, j: bool(names[0][i] & names[1][j]),
            lambda i, j: plain[0][i] == plain[1][j],
            lambda i, j: shapes[0][i] == shapes[1][j],
            lambda i, j: True,
        ]
        for test in tests:
            for i in list(rest[0]):
                j = next((j for j in rest[1] if test(i, j)), None)
                if j is not None:
                    rest[0].remove(i)
                    rest[1].remove(j)
                    self._pair_states(i, j)
        for side, graph in enumerate((a, b)):
            for i in rest[side]:
                self.interface.append(f"state only in {'ab'[side]}: {graph.states.ids[i]}")

    def _pair_states(self, i: int, j: int) -> None:
        label = hashed("state", i)
        for node_a, node_b in (
            (self.a.states.reads[i], self.b.states.reads[j]),
            (self.a.states.assigns[i], self.b.states.assigns[j]),
        ):
            if node_a >= 0:
                self.labels[0][node_a] = label
            if node_b >= 0:
                self.labels[1][node_b] = label
            if node_a >= 0 and node_b >= 0:
                self.partner[node_a] = node_b

    def differences(self, names: bool) -> Iterator[str]:
        """Lines for everything that differs, a few more than are shown."""
        yield from self.interface
        found = list(_differences(self.a, self.b, self.labels, self.partner))
        yield from found
        if not found:
            yield from self._different_uses(names)

    def _different_uses(self, names: bool) -> Iterator[str]:
        """With equal inputs everywhere: are equal nodes shared in the same way, and are they called the same?"""
        groups: list[dict[bytes, list[int]]] = []
        for graph, labels in zip((self.a, self.b), self.labels, strict=True):
            groups.append(defaultdict(list))
            for i, key in enumerate(graph.within(graph.fed_by(labels))):
                if graph.types[i] != "Constant":
                    groups[-1][key].append(i)
        for key, nodes in groups[0].items():
            others = groups[1].get(key, [])
            if len(nodes) != len(others):
                yield f"{describe(self.a, nodes[0])}: equal ops, or their readers, are shared in another way in b"
                return
            if names:
                yield from _different_names([self.a.nodes[i] for i in nodes], [self.b.nodes[j] for j in others])


def _written(graph: Graph, labels: Labels) -> list[bytes]:
    """Per state what is written to it, all states of one shape taken for the same."""
    fed_by = graph.fed_by(labels)
    return [fed_by[assign] if assign >= 0 else b"" for assign in graph.states.assigns]


def _state_names(graph: Graph, state: int) -> set[str]:
    read = graph.states.reads[state]
    return {graph.states.ids[state]} | (tensor_names(graph.nodes[read]) if read >= 0 else set())


def _different_names(left: Sequence[Node], right: Sequence[Node]) -> Iterator[str]:
    """Names of nodes that are alike in all else."""

    def key(node: Node) -> tuple[str, ...]:
        variable = node.get_variable_id() if node.get_type_name() in ("ReadValue", "Assign") else ""
        tensors = [", ".join(sorted(output.get_names())) for output in node.outputs()]
        return (node.get_friendly_name(), variable, *tensors)

    keys_a, keys_b = Counter(map(key, left)), Counter(map(key, right))
    kind = left[0].get_type_name()
    for in_a, in_b in zip((keys_a - keys_b).elements(), (keys_b - keys_a).elements(), strict=False):
        what = ("friendly name", "variable id", *(f"tensor names of output {i}" for i in range(len(in_a) - 2)))
        parts = [f"{w} {x!r} in a, {y!r} in b" for w, x, y in zip(what, in_a, in_b, strict=False) if x != y]
        yield f'{kind} "{in_a[0]}": {"; ".join(parts)}'


def _differences(
    a: Graph, b: Graph, labels: tuple[Labels, Labels], partner: dict[int, int], where: str = ""
) -> Iterator[str]:
    """First differing ops, again and again with those found so far taken for equal."""
    assumed: tuple[Labels, Labels] = ({}, {})
    while len(assumed[0]) <= MOST_DIFFERENCES:
        hashes = a.fed_by(labels[0], assumed[0]), b.fed_by(labels[1], assumed[1])
        alone = _alone(a, hashes[0], hashes[1], b), _alone(b, hashes[1], hashes[0], a)
        first = _first(a, alone[0], assumed[0]), _first(b, alone[1], assumed[1])
        pairs = _paired(a, b, first, alone, partner)
        for i, j in pairs:
            yield from _difference(a, b, i, j, hashes, where)
            assumed[0][i] = assumed[1][j] = hashed("taken for equal", len(assumed[0]))
        if not pairs:
            for side, graph, other in ((0, a, "b"), (1, b, "a")):
                for i in first[side][:2]:
                    yield f"{where}only in {'ab'[side]}: {describe(graph, i)}\n    (no equal in {other} is left)"
            return


def _alone(graph: Graph, hashes: list[bytes], other: list[bytes], other_graph: Graph) -> set[int]:
    """Ops without an equal in the other graph; of n equal ones against m, the last n - m."""
    left = Counter(h for h, kind in zip(other, other_graph.types, strict=True) if kind != "Constant")
    found = set()
    for i, (key, kind) in enumerate(zip(hashes, graph.types, strict=True)):
        if kind != "Constant":
            if left[key] > 0:
                left[key] -= 1
            else:
                found.add(i)
    return found


def _first(graph: Graph, alone: set[int], assumed: Labels) -> list[int]:
    """Of the ops without an equal, those whose inputs have one."""
    return [i for i in sorted(alone) if i not in assumed and not any(source in alone for source, _ in graph.sources[i])]


def _paired(
    a: Graph, b: Graph, first: tuple[list[int], list[int]], alone: tuple[set[int], set[int]], partner: dict[int, int]
) -> list[tuple[int, int]]:
    """Which first differing op stands for which: by state, input or output, by friendly name, else by type in order."""
    pairs: list[tuple[int, int]] = []
    called = {(b.types[j], b.nodes[j].get_friendly_name()): j for j in sorted(alone[1], reverse=True)}
    back = {j: i for i, j in partner.items()}
    left, right = list(first[0]), list(first[1])

    def take(i: int, j: int) -> None:
        pairs.append((i, j))
        for side, node in ((left, i), (right, j)):
            if node in side:
                side.remove(node)

    for i in list(left):
        j = partner.get(i, called.get((a.types[i], a.nodes[i].get_friendly_name())))
        if j is not None and j in alone[1] and j not in [p[1] for p in pairs]:
            take(i, j)
    named = {(a.types[i], a.nodes[i].get_friendly_name()): i for i in sorted(alone[0], reverse=True)}
    for j in list(right):
        match = back.get(j, named.get((b.types[j], b.nodes[j].get_friendly_name())))
        if match is not None and match in alone[0] and match not in [p[0] for p in pairs]:
            take(match, j)
    for i in list(left):
        j = next((j for j in right if b.types[j] == a.types[i]), None)
        if j is not None:
            take(i, j)
    return sorted(pairs)


def _difference(
    a: Graph, b: Graph, i: int, j: int, hashes: tuple[list[bytes], list[bytes]], where: str
) -> Iterator[str]:
    """What distinguishes two ops that stand for each other."""
    node_a, node_b = a.nodes[i], b.nodes[j]
    reasons = []
    versions = [node.get_type_info().version_id for node in (node_a, node_b)]
    if versions[0] != versions[1]:
        reasons.append(f"opset version: {versions[0]} in a, {versions[1]} in b")
    attributes_a, attributes_b = attributes(node_a), attributes(node_b)
    both = [(name, attributes_a.get(name), attributes_b.get(name)) for name in sorted({*attributes_a, *attributes_b})]
    reasons += [f"{name}: {in_a} in a, {in_b} in b" for name, in_a, in_b in both if in_a != in_b]
    sources_a, sources_b = a.sources[i], b.sources[j]
    if len(sources_a) != len(sources_b):
        reasons.append(f"{len(sources_a)} inputs in a, {len(sources_b)} in b")
    for port, ((from_a, out_a), (from_b, out_b)) in enumerate(zip(sources_a, sources_b, strict=False)):
        if (hashes[0][from_a], out_a) != (hashes[1][from_b], out_b):
            reasons.append(f"input {port}: {input_difference(a, b, (from_a, out_a), (from_b, out_b))}")
    inner = list(_body_differences(node_a, node_b, where))
    if reasons or not inner:
        shown = reasons[:MOST_REASONS]
        shown += [f"and {len(reasons) - MOST_REASONS} more"] if len(reasons) > MOST_REASONS else []
        lines = [f"{where}{a.types[i]} {name_of(a, i)}: {'; '.join(shown) or 'another input, output or state in b'}"]
        lines += [f"    a: {describe(a, i)}", f"    b: {describe(b, j)}"]
        yield "\n".join(lines)
    yield from inner


def _body_differences(node_a: Node, node_b: Node, where: str) -> Iterator[str]:
    for number, (in_a, in_b) in enumerate(zip(bodies(node_a), bodies(node_b), strict=False)):
        branch = ("then ", "else ")[number] if node_a.get_type_name() == "If" else ""
        inside = f'{where}{branch}body of {node_a.get_type_name()} "{node_a.get_friendly_name()}": '
        graphs = Graph(in_a[0]), Graph(in_b[0])
        labels = body_labels(graphs[0], in_a[1], in_a[3]), body_labels(graphs[1], in_b[1], in_b[3])
        uses = [body_results(g, each[1], each[2], each[3]) for g, each in zip(graphs, (in_a, in_b), strict=True)]
        for use in sorted({*uses[0], *uses[1]}):
            if use not in uses[0] or use not in uses[1]:
                yield f"{inside}port {use} only in {'a' if use in uses[0] else 'b'}"
        same_label = {label: i for i, label in labels[1].items()}
        partner = {i: same_label[label] for i, label in labels[0].items() if label in same_label}
        for use in sorted({*uses[0]} & {*uses[1]}):
            for side in (0, 1):
                result = uses[side][use]
                labels[side][result] = hashed(labels[side].get(result, b""), use)
            partner[uses[0][use]] = uses[1][use]
        yield from _differences(*graphs, labels, partner, inside)
