"""What is written in a node: op, the constants it reads, its name."""

from __future__ import annotations

import numpy as np

from ovpasses.equivalence._canonical import bodies
from ovpasses.ggml_names import CACHE_NAME
from ovpasses.visualize._view import View, shape_text

WIDEST = 30  # characters of a line
_FEW = 6  # elements of a constant that are written out

# What the inputs of common ops are for, by port; those not here are numbered.
_PORTS = {
    "Broadcast": {1: "shape", 2: "axes"},
    "Gather": {0: "data", 1: "indices", 2: "axis"},
    "MatMul": {1: "weights"},
    "ReadValue": {0: "initial"},
    "ReduceMean": {1: "axes"},
    "ReduceSum": {1: "axes"},
    "Reshape": {1: "shape"},
    "ScaledDotProductAttention": {3: "mask", 4: "scale"},
    "ScatterUpdate": {0: "data", 1: "indices", 3: "axis"},
    "Slice": {1: "start", 2: "stop", 3: "step", 4: "axes"},
    "Split": {1: "axis"},
    "Squeeze": {1: "axes"},
    "Transpose": {1: "order"},
    "Unsqueeze": {1: "axes"},
    "VariadicSplit": {1: "axis", 2: "lengths"},
}


def node_lines(view: View, i: int) -> list[str]:
    """The lines of a node: op with its attributes, constant inputs, name."""
    lines = [_op(view, i)]
    for edge in view.inputs[i]:
        if view.constant[edge.source]:
            port = _PORTS.get(view.kinds[i], {}).get(edge.port, f"input {edge.port}")
            lines.append(f"{port} {_constant(view, edge.source, edge.output)}")
    if view.kinds[i] == "Constant":
        lines.append(_constant(view, i, 0))
    return [*(shortened(line) for line in lines), shortened(_label(view, i))]


def shortened(text: str, width: int = WIDEST) -> str:
    """A line of at most ``width`` characters; what is left out is in the middle, since names end in numbers."""
    text = " ".join(text.split())
    half = (width - 1) // 2
    return text if len(text) <= width else f"{text[: width - 1 - half]}…{text[-half:]}"


def _op(view: View, i: int) -> str:
    kind, node = view.kinds[i], view.nodes[i]
    attributes = node.get_attributes()
    if kind in ("Concat", "Softmax"):
        return f"{kind} axis {attributes['axis']}"
    if kind == "Convert":
        return f"Convert to {attributes['destination_type']}"
    if kind == "MatMul":
        turned = [side for side in "ab" if str(attributes[f"transpose_{side}"]).lower() == "true"]
        return " ".join([kind, *(f"{side}ᵀ" for side in turned)])
    held = [body.get_friendly_name() for body, *_ in bodies(node)]
    return f"{kind} of {', '.join(held)}" if held else kind


def _label(view: View, i: int) -> str:
    """The name; of a state the one its cache goes by, since ids run two names together."""
    if view.kinds[i] not in ("ReadValue", "Assign"):
        return view.name(i)
    known = view.nodes[i].get_variable_id()
    found = CACHE_NAME.search(known)
    return found.group(0).lstrip(".") if found else str(known)


def _constant(view: View, i: int, output: int) -> str:
    node = view.nodes[i]
    shape = node.get_output_partial_shape(output)
    kind = node.get_output_element_type(output).get_type_name()
    if view.kinds[i] == "Constant" and kind != "string" and np.prod(shape.to_shape()) <= _FEW:
        values = np.asarray(node.get_data()).reshape(-1).tolist()
        if not values:
            return f"empty {kind} {shape_text(shape)}"
        text = ",".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
        return text if len(shape) == 0 else f"[{text}]"
    return f"{kind} {shape_text(shape)}"
