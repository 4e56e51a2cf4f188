"""Ops that change nothing, which an exporter may have left on the way of a cache: seen through, and taken out."""

from __future__ import annotations

from collections.abc import Iterator

from ovpasses._openvino import Node, Output
from ovpasses.passes._edit import Input, const_value, consumers, redirect

# Element types that hold every value of the one before them.
WIDENINGS = {("f16", "f32"), ("bf16", "f32"), ("f16", "f64"), ("bf16", "f64"), ("f32", "f64")}


def origin(output: Output) -> Output:
    """The value itself: what stands above identity ops, Transposes that undo each other, widening there and back."""
    while True:
        node = output.get_node()
        if _is_identity(node):
            output = node.input_value(0)
            continue
        above = node.input_value(0).get_node() if node.get_input_size() else None
        if above is None or not _undoes(node, above):
            return output
        output = above.input_value(0)


def readers(output: Output) -> Iterator[Input]:
    """Inputs that read a value, also behind ops that change nothing."""
    for reader in consumers(output):
        yield reader
        node = reader.get_node()
        if reader.get_index() != 0:
            continue
        if _is_identity(node):
            yield from readers(node.output(0))
        elif node.get_type_name() in ("Transpose", "Convert"):
            for behind in consumers(node.output(0)):
                if behind.get_index() == 0 and _undoes(behind.get_node(), node):
                    yield from readers(behind.get_node().output(0))


def bypass(output: Output) -> None:
    """Let those who read a value behind ops that change nothing read the value itself."""
    for reader in list(readers(output)):
        if reader.get_source_output() != output and origin(reader.get_source_output()) == output:
            redirect(reader.get_source_output(), output)


def _is_identity(node: Node) -> bool:
    kind = node.get_type_name()
    if kind == "Convert":
        return bool(node.get_input_element_type(0) == node.get_output_element_type(0))
    if kind == "Transpose":
        order = const_value(node.input_value(1))
        return order is not None and order.tolist() == list(range(order.size))
    if kind == "Reshape":
        before, after = node.get_input_partial_shape(0), node.get_output_partial_shape(0)
        # With one dim unknown at most, equal shapes hold the same elements in the same places.
        return bool(before == after and before.rank.is_static and sum(d.is_dynamic for d in before) <= 1)
    return False


def _undoes(node: Node, above: Node) -> bool:
    kind = node.get_type_name()
    if kind != above.get_type_name():
        return False
    if kind == "Transpose":
        first, second = const_value(above.input_value(1)), const_value(node.input_value(1))
        if first is None or second is None or first.size != second.size:
            return False
        return [int(first[i]) for i in second] == list(range(first.size))
    if kind == "Convert":
        types = [t.get_type_name() for t in (above.get_input_element_type(0), above.get_output_element_type(0))]
        return tuple(types) in WIDENINGS and node.get_output_element_type(0) == above.get_input_element_type(0)
    return False
