"""Where a graph carries a recurrent state from call to call: conv windows and gated delta nets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openvino import Model

from ovpasses._openvino import Node, Output
from ovpasses.ggml_names import CACHE_NAME
from ovpasses.importers._slot_rows import VIEWS as SAME_ORDER
from ovpasses.importers._slots import SlotCache, behind_views, slot_caches
from ovpasses.importers._walk import port_name
from ovpasses.importers.internal_ops import GatedDeltaNet
from ovpasses.passes._cache_pairs import CachePair, NoPair, find_pairs
from ovpasses.passes._edit import Input, const_value, consumers, describe
from ovpasses.passes._slot_edits import whole_write
from ovpasses.passes._states import states

RECURRENT_KINDS = ("cache_r", "cache_s", "conv_state", "ssm_state")
VIEWS = ("Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze")

# Token axis and inputs of a lowered delta net: q, k, v of rank 4, gate and beta of rank 3, tokens on axis 2.
LOOP_TOKENS = 2
LOOP_RANKS = [3, 3, 4, 4, 4]


@dataclass(frozen=True)
class Carried:
    """A value of fixed size that a call leaves for the next.

    Attributes:
        name: of the state or of the input it comes in by.
        past: the value as it comes in; of a cache in slots what the layer reads of it.
        written: the value as it leaves; of a cache in slots the rows that are written.
        in_slots: it is a cache in slots.
    """

    name: str
    past: Output
    written: Output
    in_slots: bool = False


def carried_states(model: Model) -> Iterator[Carried | NoPair]:
    """Every recurrent state: a Variable of static shape, an input/output pair replaced whole, a cache in slots.

    An input that is a recurrent state by its name, but whose output cannot be told, comes as it was found.
    """
    for state in states(model):
        if state.variable.info.data_shape.is_static:
            yield Carried(state.name, state.past, state.assign.input_value(0))
    slots = {cache.parameter.get_friendly_name(): cache for cache in slot_caches(model)}
    for cache in slots.values():
        yield _in_slots(model, cache)
    for pair in find_pairs(model, {}):
        if pair.parameter.get_friendly_name() in slots:
            continue
        if isinstance(pair, CachePair) and pair.update is None:
            yield Carried(port_name(pair.parameter), pair.parameter.output(0), pair.result.input_value(0))
        elif isinstance(pair, NoPair) and _is_recurrent(pair.name):
            yield pair


def _in_slots(model: Model, cache: SlotCache) -> Carried | NoPair:
    """What the layer reads of a cache in slots and what is written back, around which other slots may stand."""
    if cache.active is None:
        return NoPair(cache.parameter, "pair", "nothing reads it by the head of a slot list")
    past = cache.active.gather.output(0)
    whole = whole_write(model, cache)
    if whole is not None:
        return Carried(cache.name, past, whole.input_value(0), in_slots=True)
    if cache.update is None:
        return NoPair(cache.parameter, "pair", "nothing writes new rows into it, or several do")
    return Carried(cache.name, past, cache.update.rows, in_slots=True)


def _is_recurrent(name: str) -> bool:
    found = CACHE_NAME.search(name)
    return found is not None and found["kind"] in RECURRENT_KINDS


@dataclass(frozen=True)
class Window:
    """The last ``width`` columns on ``axis`` of ``Concat(state, columns)``, which ``cut`` takes for the state.

    Attributes:
        cut: the Slice.
        columns: the Concat, of views of the state and the new columns.
        axis, width: where the columns are, and how many of them the state holds.
        begin: the input that says where the Slice begins, when one does.
    """

    cut: Node
    columns: Output
    axis: int
    width: int
    begin: Node | None = None


def find_window(state: Carried) -> Window | str | None:
    """The conv window that a state holds, a reason why what it holds is none, or None when it feeds no Concat."""
    concat = _joined(state.past)
    if concat is None:
        return None
    rank = concat.get_output_partial_shape(0).rank.get_length()
    axis = concat.get_attributes()["axis"] % rank
    held = concat.input_value(0).get_partial_shape()[axis]
    if held.is_dynamic:
        return f"how many columns of {describe(concat.input_value(0))} it holds is dynamic"
    width = held.get_length()
    value = _before_views(state.written)
    cut = value.get_node()
    if cut.get_type_name() != "Slice" or cut.input_value(0) != concat.output(0):
        return f"what is written back is {describe(value)}, wanted a Slice of {concat.get_friendly_name()}"
    begin = _begin(cut, width) if state.in_slots else None
    bounds = [const_value(cut.input_value(i)) for i in range(1, 5)] if cut.get_input_size() == 5 else [None]
    if begin is not None and _is_constant(bounds[2], 1) and _is_constant(bounds[3], axis, axis - rank):
        return Window(cut, concat.output(0), axis, width, begin)
    if any(b is None or b.size != 1 for b in bounds):
        return f"Slice {cut.get_friendly_name()} has bounds that are no constants of one axis"
    start, stop, step, on = (int(b.ravel()[0]) for b in bounds if b is not None)
    length = concat.get_output_partial_shape(0)[axis]
    to_the_end = stop >= (length.get_length() if length.is_static else 2**31 - 1)
    from_the_end = start - length.get_length() if length.is_static and start >= 0 else start
    if (from_the_end, step, on % rank) != (-width, 1, axis) or not to_the_end:
        return (
            f"Slice {cut.get_friendly_name()} takes {start}:{stop}:{step} on axis {on}, "
            f"wanted {-width}:end:1 on axis {axis}"
        )
    return Window(cut, concat.output(0), axis, width)


def _joined(past: Output) -> Node | None:
    """The Concat that puts a state, or a view of it with its elements in the same order, before new columns."""
    pending = [past]
    while pending:
        for reader in consumers(pending.pop()):
            node = reader.get_node()
            if reader.get_index() == 0 and node.get_type_name() == "Concat" and node.get_input_size() == 2:
                return node
            if reader.get_index() == 0 and node.get_type_name() in SAME_ORDER:
                pending.append(node.output(0))
    return None


def _before_views(value: Output) -> Output:
    while value.get_node().get_type_name() in SAME_ORDER:
        value = value.get_node().input_value(0)
    return value


def _begin(cut: Node, width: int) -> Node | None:
    """The input at which a Slice of ``width`` begins: a dump is told there where the new rows of a slot begin."""
    begin, end = behind_views(cut.input_value(1)).get_node(), behind_views(cut.input_value(2)).get_node()
    if begin.get_type_name() != "Parameter" or end.get_type_name() != "Add":
        return None
    terms = [end.input_value(0), end.input_value(1)]
    from_begin = any(behind_views(term).get_node() is begin for term in terms)
    return begin if from_begin and any(_is_constant(const_value(term), width) for term in terms) else None


def _is_constant(value: Any, *wanted: int) -> bool:
    return value is not None and value.size == 1 and int(value.ravel()[0]) in wanted


@dataclass(frozen=True)
class DeltaNet:
    """A gated delta net and its inputs gate and beta, which have the tokens on ``axis``."""

    node: Node
    gates: tuple[Input, Input]
    axis: int


def delta_nets(model: Model) -> Iterator[DeltaNet]:
    """Every gated delta net, as the op (native or stand-in) or as the Loop it is lowered to."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == GatedDeltaNet.class_type_info.name and node.get_input_size() == 6:
            yield DeltaNet(node, (node.input(4), node.input(5)), 1)
        elif node.get_type_name() == "Loop":
            gates = _loop_gates(node)
            if gates is not None:
                yield DeltaNet(node, gates, LOOP_TOKENS)


def _loop_gates(loop: Any) -> tuple[Input, Input] | None:
    """Gate and beta of a Loop whose body is the delta rule: one decays by Exp, the other scales the change."""
    sliced = [d for d in loop.get_input_descriptions() if d.get_type_info().name == "SliceInputDescription"]
    ranks = [loop.get_input_partial_shape(d.input_index).rank.get_length() for d in sliced]
    if sorted(ranks) != LOOP_RANKS or any(d.axis != LOOP_TOKENS for d in sliced):
        return None
    gates = [d for d, rank in zip(sliced, ranks, strict=True) if rank == 3]
    body = loop.get_function()
    kinds = [_first_op(body.get_parameters()[d.body_parameter_index].output(0)) for d in gates]
    if sorted(kinds) != ["Exp", "Multiply"]:
        return None
    return loop.input(gates[0].input_index), loop.input(gates[1].input_index)


def _first_op(value: Output) -> str:
    """The type of the one op that reads a value, behind views of it."""
    readers = consumers(value)
    while len(readers) == 1 and readers[0].get_node().get_type_name() in VIEWS:
        readers = consumers(readers[0].get_node().output(0))
    return str(readers[0].get_node().get_type_name()) if len(readers) == 1 else ""


def updated_by(state: Carried, nets: list[DeltaNet]) -> bool:
    """Whether a state goes into one of the delta nets, through views only."""
    pending, heads = [state.past], {net.node for net in nets}
    while pending:
        for reader in pending.pop().get_target_inputs():
            node = reader.get_node()
            if node in heads:
                return True
            if node.get_type_name() in VIEWS:
                pending.extend(node.outputs())
    return False
