"""What each input of a graph is for, found by what the graph does with it (older dumps call inputs ``leaf_<n>``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from openvino import Model

from ovpasses._openvino import Node, Output
from ovpasses.importers._slot_roles import slot_roles
from ovpasses.importers._walk import ATTENTION_OPS, consumer_nodes, port_name, source_of_mask

# Roles that several inputs of one graph may have.
SHARED_ROLES = (
    "kv_write_idx",
    "self_kq_mask",
    "self_kq_mask_swa",
    "rs_slot_begin",
    "rs_remainder_begin",
    "rs_src_begin",
)

# Ops that hand an index or a position on in another shape or type.
_VIEWS = ("Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose")


def input_roles(model: Model) -> dict[str, str]:
    """Find the role of every input whose use tells it.

    ==================  =========================================================================================
    role                the input ...
    ==================  =========================================================================================
    inp_tokens          indexes a constant table (the embedding)
    out_ids             indexes rows that the graph has computed (the rows to output)
    beam_idx            indexes the batch rows of states
    inp_pos             is turned into angles (Sin, Cos)
    self_kq_mask        is the floating-point mask of attention; ``self_kq_mask_swa`` when its name ends in ``_swa``
    kv_write_idx        says at which cells of a cache, that is an input itself, the new rows go
    attention_size      ends the Slice of a cache's cells that attention reads
    n_seq_active        leads the target shapes of Reshapes, where the batch goes
    seq_active_start    begins the Slice of a cache's sequences; ``seq_active_end`` ends it
    rs_s_copy           lists the slots of recurrent states that are read
    s_copy_active_...   says how many of them this call's sequences have (``s_copy_active_slot_len``)
    cache_rs_reset_idx  is the first slot to clear; ``cache_rs_reset_len`` says how many
    rs_slot_begin       is the first slot that new states go to; ``rs_remainder_begin`` where moved ones go
    rs_src_begin        is where new states begin in what a layer computes: after the tokens
    ==================  =========================================================================================

    Args:
        model: the graph, stateless or stateful.

    Returns:
        Input name to role; inputs whose use tells nothing of this are left out.
    """
    masks = {source_of_mask(op) for op in model.get_ops() if op.get_type_name() in ATTENTION_OPS}
    roles = {}
    slots = slot_roles(model)
    for parameter in model.get_parameters():
        output = parameter.output(0)
        shape = output.get_partial_shape()
        rank = shape.rank.get_length() if shape.rank.is_static else 0
        if parameter in masks and parameter.get_element_type().is_real() and rank > 2:
            sliding = any(name.endswith("_swa") for name in output.get_names())
            role: str | None = "self_kq_mask_swa" if sliding else "self_kq_mask"
        elif parameter in slots:
            role = slots[parameter]
        else:
            role = _role(output) if parameter.get_element_type().is_integral_number() else None
        if role is not None:
            roles[_name(parameter)] = role
    # Positions may index a table as tokens do: where two inputs fit a role of one, their names must tell.
    taken = Counter(roles.values())
    return {name: role for name, role in roles.items() if taken[role] == 1 or role in SHARED_ROLES}


def _name(parameter: Node) -> str:
    return port_name(parameter)


def _role(output: Output) -> str | None:
    uses = list(_uses(output))
    for role, tell in _TELLS.items():
        if any(tell(node, index) for node, index in uses):
            return role
    return None


def _uses(output: Output) -> Iterator[tuple[Node, int]]:
    """Who reads a value, also behind views of it, and by which of its inputs."""
    pending = [output]
    while pending:
        for reader in pending.pop().get_target_inputs():
            node = reader.get_node()
            yield node, reader.get_index()
            if node.get_type_name() in _VIEWS and reader.get_index() == 0:
                pending.extend(node.outputs())


def _is_write_index(node: Node, index: int) -> bool:
    if node.get_type_name() != "ScatterUpdate" or index != 1:
        return False
    cache, rows = node.input_value(0), node.input_value(2)
    axis = node.input_value(3).get_node()
    if not _is_cache(cache) or axis.get_type_name() != "Constant":
        return False
    into, new = cache.get_partial_shape(), rows.get_partial_shape()
    if into.rank.is_dynamic or into.rank != new.rank:
        return False
    # OpenVINO's GGUF frontend scatters on the heads axis; what its index means there no input can make right.
    at = int(axis.get_data().ravel()[0]) % into.rank.get_length()
    return all(into[d] == new[d] for d in range(into.rank.get_length()) if d != at)


def _is_state_index(node: Node, index: int) -> bool:
    return _is_gather_index(node, index) and node.input_value(0).get_node().get_type_name() == "ReadValue"


def _is_token(node: Node, index: int) -> bool:
    return _is_gather_index(node, index) and _constant_behind(node.input_value(0))


def _is_row_choice(node: Node, index: int) -> bool:
    source = node.input_value(0).get_node() if node.get_input_size() else node
    return _is_gather_index(node, index) and source.get_type_name() not in ("Parameter", "ReadValue")


def _is_gather_index(node: Node, index: int) -> bool:
    return bool(node.get_type_name() == "Gather" and index == 1)


def _constant_behind(output: Output) -> bool:
    """A table of weights, compressed ones included: nothing but constants goes into it."""
    pending, seen = [output.get_node()], 0
    while pending and seen < 16:
        node, seen = pending.pop(), seen + 1
        if node.get_type_name() in ("Parameter", "ReadValue"):
            return False
        pending.extend(node.input_value(i).get_node() for i in range(node.get_input_size()))
    return not pending


def _is_angle(node: Node, index: int) -> bool:
    """A position becomes a float and is multiplied by frequencies on its way to Sin or Cos."""
    if node.get_type_name() != "Convert" or not node.get_output_element_type(0).is_real():
        return False
    through = (*_VIEWS, "Multiply", "MatMul", "Concat", "Slice", "Gather", "Split", "VariadicSplit", "StridedSlice")
    return any(n.get_type_name() in ("Sin", "Cos") for n in consumer_nodes(node.output(0), through))


def _is_cache(output: Output) -> bool:
    """An input, or a view of one: a cache of several sequences is written as one long row of cells."""
    while output.get_node().get_type_name() == "Reshape":
        output = output.get_node().input_value(0)
    return bool(output.get_node().get_type_name() == "Parameter")


def _cut_of_cache(node: Node) -> int | None:
    """The axis on which a Slice cuts an updated cache."""
    if node.get_type_name() != "Slice" or node.get_input_size() != 5:
        return None
    source = node.input_value(0).get_node()
    while source.get_type_name() in ("Reshape", "Convert", "Slice"):
        source = source.input_value(0).get_node()
    axis = node.input_value(4).get_node()
    updated = source.get_type_name() == "ScatterUpdate" and _is_cache(source.input_value(0))
    return int(axis.get_data().ravel()[0]) if updated and axis.get_type_name() == "Constant" else None


def _is_cell_count(node: Node, index: int) -> bool:
    return index == 2 and (_cut_of_cache(node) or 0) != 0


def _is_first_sequence(node: Node, index: int) -> bool:
    return index == 1 and _cut_of_cache(node) == 0


def _is_last_sequence(node: Node, index: int) -> bool:
    return index == 2 and _cut_of_cache(node) == 0


def _is_batch(node: Node, index: int) -> bool:
    readers = [(i.get_node().get_type_name(), i.get_index()) for o in node.outputs() for i in o.get_target_inputs()]
    return bool(node.get_type_name() == "Concat" and index == 0 and readers and set(readers) == {("Reshape", 1)})


# In this order: the first use that tells wins.
_TELLS = {
    "kv_write_idx": _is_write_index,
    "inp_pos": _is_angle,
    "beam_idx": _is_state_index,
    "inp_tokens": _is_token,
    "out_ids": _is_row_choice,
    "attention_size": _is_cell_count,
    "seq_active_start": _is_first_sequence,
    "seq_active_end": _is_last_sequence,
    "n_seq_active": _is_batch,
}
