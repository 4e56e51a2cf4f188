"""Stand-ins for OpenVINO's internal operations, so that an IR which holds them can be read and rewritten.

OpenVINO writes such an op with ``version="extension"`` and then cannot read it back. A stand-in knows the
op's attributes and output shapes; it cannot be computed. A new op is a class of a few lines here.
"""

from __future__ import annotations

from typing import Any, ClassVar

from openvino import Core, Model, Op, PartialShape

from ovpasses._openvino import DiscreteTypeInfo, Node, add_operation
from ovpasses.importers._walk import all_ops


class InternalOp(Op):  # type: ignore[misc]
    """Base of the stand-ins: type name, attributes with their defaults, shapes of the outputs."""

    class_type_info: ClassVar[DiscreteTypeInfo]
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, inputs: list[Any] | None = None, **attributes: Any) -> None:
        super().__init__(self)
        self.attributes = {**self.defaults, **attributes}
        if inputs is not None:
            self.set_arguments(inputs)
            self.constructor_validate_and_infer_types()

    def outputs_of(self, shapes: list[PartialShape]) -> list[tuple[int, PartialShape]]:
        """For each output: the input whose element type it has, and its shape."""
        raise NotImplementedError

    def validate_and_infer_types(self) -> None:
        shapes = [self.get_input_partial_shape(i) for i in range(self.get_input_size())]
        outputs = self.outputs_of(shapes)
        self.set_output_size(len(outputs))
        for index, (typed_by, shape) in enumerate(outputs):
            self.set_output_type(index, self.get_input_element_type(typed_by), shape)

    def clone_with_new_inputs(self, new_inputs: list[Any]) -> InternalOp:
        return type(self)(new_inputs, **self.attributes)

    def get_type_info(self) -> DiscreteTypeInfo:
        return type(self).class_type_info

    def evaluate(self, outputs: Any, inputs: Any) -> bool:
        return False  # OpenVINO would take memory that nobody wrote for the result

    def visit_attributes(self, visitor: Any) -> bool:
        visitor.on_attributes(self.attributes)
        return True


class GatedDeltaNet(InternalOp):
    """q, k ``[B,T,H,S]``, v ``[B,T,H,Sv]``, state ``[B,H,S,Sv]``, g, beta ``[B,T,H]`` -> like v, like state."""

    class_type_info = DiscreteTypeInfo("GatedDeltaNet", "extension")
    defaults: ClassVar[dict[str, Any]] = {
        "fuse_qk_l2norm": False,
        "q_l2_norm_eps": 1e-6,
        "k_l2_norm_eps": 1e-6,
    }

    def outputs_of(self, shapes: list[PartialShape]) -> list[tuple[int, PartialShape]]:
        return [(2, shapes[2]), (3, shapes[3])]


INTERNAL_OPS: tuple[type[InternalOp], ...] = (GatedDeltaNet,)


def register(core: Core) -> bool:
    """Teach a Core to read every internal op known here; False when this OpenVINO takes no ops written in Python."""
    return all(add_operation(core, op) for op in INTERNAL_OPS)


def placeholders(model: Model) -> list[Node]:
    """The stand-ins in a model, bodies included; a native internal op (of a GGUF import) is none."""
    return [op for op in all_ops(model) if isinstance(op, InternalOp)]
