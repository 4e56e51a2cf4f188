"""A mask input of their own for the sliding layers of a graph whose exporter gave all layers the same one.

llama.cpp calls both masks of a model with sliding and full layers ``attn_inp_kq_mask``; its OpenVINO backend keeps
inputs by name, so a dump has one input for both. OpenVINO's GGUF frontend declares ``self_kq_mask_swa`` for gemma2 and
gemma3 and then masks every layer with ``self_kq_mask`` (2026.4.1). Both are right until a token has left the window.

Which layers slide, and how far, such a graph does not say: the sizes of the caches are those of the window padded by
ggml, and the same for all layers in a small context. It comes from the model's GGUF, or from the caller.
"""

from __future__ import annotations

from typing import Any

from openvino import Model

from ovpasses._openvino import Node, NodeFactory, Output, Parameter
from ovpasses.importers._walk import mask_input, port_name, source_of_mask
from ovpasses.importers.graph_info import GraphInfo, attention_layers

SLIDING_SUFFIX = "_swa"


def separate_sliding_masks(model: Model, info: GraphInfo) -> list[str]:
    """Feed the layers that ``info`` gives a window from ``<mask>_swa``, unless their mask is called so already.

    Args:
        model: the graph; edited in place. The new input has the type and shape of the one it is split from, which
            goes away when no full layer reads it.
        info: what the caller knows of the model's layers.

    Returns:
        Names of the inputs that the sliding layers read from now on.
    """
    windows = {layer.index for layer in info.layers if layer.window is not None}
    by_mask: dict[Node, list[Any]] = {}
    for layer, attention in attention_layers(model).items():
        mask, masked = source_of_mask(attention), mask_input(attention)
        if layer in windows and mask is not None and not _mask_name(mask).endswith(SLIDING_SUFFIX):
            by_mask.setdefault(mask, []).append(masked)
    added = []
    for mask, readers in by_mask.items():
        name = _mask_name(mask) + SLIDING_SUFFIX
        sliding = _input_like(mask, name, model)
        rebuilt: dict[Node, Output] = {mask: sliding.output(0)}
        for reader in readers:
            reader.replace_source_output(_same_view(reader.get_source_output().get_node(), rebuilt))
        live = set(model.get_ordered_ops())
        if not any(i.get_node() in live for i in mask.output(0).get_target_inputs()):
            model.remove_parameter(mask)
        added.append(name)
    if added:
        model.validate_nodes_and_infer_types()
    return added


def _input_like(mask: Node, name: str, model: Model) -> Node:
    """The input of that name, added when there is none of the mask's type."""
    for existing in model.get_parameters():
        if name in existing.output(0).get_names() and existing.get_element_type() == mask.get_element_type():
            return existing
    added = Parameter(mask.get_element_type(), mask.get_output_partial_shape(0))
    added.set_friendly_name(name)
    added.output(0).get_tensor().set_names({name})
    model.add_parameters([added])
    return added


def _mask_name(mask: Node) -> str:
    return port_name(mask)


def _same_view(node: Node, rebuilt: dict[Node, Output]) -> Output:
    """The views between a mask and its reader once more, on the new mask; what several layers share stays shared."""
    if node not in rebuilt:
        arguments = [_same_view(node.input_value(0).get_node(), rebuilt), *node.input_values()[1:]]
        copy = NodeFactory("opset13").create(node.get_type_name(), arguments, node.get_attributes())
        copy.set_friendly_name(node.get_friendly_name() + SLIDING_SUFFIX)
        rebuilt[node] = copy.output(0)
    return rebuilt[node]
