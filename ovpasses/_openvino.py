"""What differs between OpenVINO 2024.6 and 2026.4. What both have in one place is imported from there.

``openvino`` itself gives Core, Model, CompiledModel, InferRequest, Tensor, Type, PartialShape, Dimension, Shape, Op and
save_model on both. Two nodes are compared with ``is``: on 2024.6 ``==`` makes an Equal operation of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import openvino
from openvino import Core

try:
    from openvino import DiscreteTypeInfo, Node, Output
    from openvino import opset13 as ops
    from openvino.op import Constant, Parameter, assign, read_value
    from openvino.op.util import Variable, VariableInfo
    from openvino.passes import Manager, ModelPass
    from openvino.utils.node_factory import NodeFactory
except ImportError:  # 2024.6
    from openvino.runtime import DiscreteTypeInfo, Node, Output
    from openvino.runtime import opset13 as ops
    from openvino.runtime.op import Constant, Parameter, assign, read_value
    from openvino.runtime.op.util import Variable, VariableInfo
    from openvino.runtime.passes import Manager, ModelPass
    from openvino.runtime.utils.node_factory import NodeFactory

__all__ = [
    "LACKS_GGUF",
    "RELEASE",
    "Constant",
    "DiscreteTypeInfo",
    "Manager",
    "ModelPass",
    "Node",
    "NodeFactory",
    "Output",
    "Parameter",
    "Variable",
    "VariableInfo",
    "add_operation",
    "assign",
    "ops",
    "read_value",
    "replace_source",
    "upgrade",
]

RELEASE: str = openvino.__version__.split("-")[0]

# 2026.4 is the first release with the GGUF frontend and the internal op GatedDeltaNet.
LACKS_GGUF: bool = tuple(map(int, RELEASE.split(".")[:2])) < (2026, 4)


def upgrade() -> str:
    """What to do about something that this release cannot do."""
    return "install openvino>=2026.4" if LACKS_GGUF else "install a newer openvino"


def add_operation(core: Core, operation: type) -> bool:
    """Teach a Core an operation written in Python; False on 2024.6, which takes extensions from a library only."""
    try:
        core.add_extension(operation)
    except TypeError:
        return False
    return True


def replace_source(reader: Any, new: Output) -> None:
    """Feed an input from another output; a Result keeps its names, on 2024.6 those of the tensor before it."""
    old, node = reader.get_source_output(), reader.get_node()
    reader.replace_source_output(new)
    if node.get_type_name() == "Result" and _results_share_names():
        new.get_tensor().add_names(old.get_names())
        old.get_tensor().set_names(set())


@cache
def _results_share_names() -> bool:
    source = ops.parameter([1])
    result = ops.result(source)
    source.output(0).get_tensor().set_names({"source"})
    return "source" in result.output(0).get_names()
