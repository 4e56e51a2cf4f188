"""Find the inputs that carry a cache into a stateless graph, and the output that carries it out again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from openvino import Model

from ovpasses._openvino import Node, Output
from ovpasses.errors import RewriteError
from ovpasses.ggml_names import CACHE_NAME, PAST_NAME
from ovpasses.importers._walk import port_name
from ovpasses.passes._edit import const_value, consumers, describe
from ovpasses.passes._identity import readers

# Key of the list [input, output, input, output, ...] that OpenVINO's GGUF frontend leaves in rt_info.
RECURRENT_PAIRS = "gguf_recurrent_states"


@dataclass(frozen=True)
class CachePair:
    """One cache: the Parameter it comes in by, the Result it leaves by, how it is updated in between.

    Attributes:
        parameter, result: its way in and out.
        update: the Concat or ScatterUpdate that adds rows; None when the whole value is replaced.
        axis: the sequence axis, -1 when the whole value is replaced.
        rows: the rows to append ``[batch, tokens, heads, size]`` (or in the cache's own order for a Concat).
        flat_rows: the rows must be reshaped to ``[1, tokens, heads, size]`` first.
    """

    parameter: Node
    result: Node
    update: Node | None = None
    axis: int = -1
    rows: Output | None = None
    flat_rows: bool = False

    @property
    def name(self) -> str:
        return port_name(self.parameter)


@dataclass(frozen=True)
class NoPair:
    """A cache input that cannot become a state, with the step that failed and the reason."""

    parameter: Node
    step: str
    reason: str

    @property
    def name(self) -> str:
        return port_name(self.parameter)


def result_names(result: Node) -> set[str]:
    """Every name a Result goes by: tensor names (the contract) and friendly name (all that the GGUF frontend sets)."""
    return set(result.input_value(0).get_names()) | set(result.output(0).get_names()) | {result.get_friendly_name()}


def find_pairs(model: Model, named: Mapping[str, str]) -> list[CachePair | NoPair]:
    """All caches of a stateless graph, in the order of its inputs.

    Args:
        model: the graph.
        named: pairs that the caller gives, input name to output name.
    """
    given = {**recurrent_pairs(model), **named}
    found: list[CachePair | NoPair] = []
    for parameter in model.get_parameters():
        names = parameter.output(0).get_names() | {parameter.get_friendly_name()}
        wanted = next((given[n] for n in sorted(names) if n in given), None)
        called = any(CACHE_NAME.search(n) or PAST_NAME.match(n) for n in names)
        update = find_update(parameter, wanted)
        if update is not None and not (wanted or called) and _along_the_batch(update[0]):
            continue
        if update is not None:
            found.append(_appended(parameter, *update))
        elif wanted is not None:
            found.append(_replaced_whole(model, parameter, wanted))
        elif called:
            found.append(NoPair(parameter, "update", _why_no_update(parameter)))
    return found


def _along_the_batch(update: Node) -> bool:
    """Whether a Concat joins along dim 0, which of what nothing calls a cache is the batch and no sequence."""
    return update.get_type_name() == "Concat" and update.get_attributes()["axis"] in (
        0,
        -update.get_output_partial_shape(0).rank.get_length(),
    )


def recurrent_pairs(model: Model) -> dict[str, str]:
    """The input/output pairs of recurrent states that the GGUF frontend names in the model's rt_info."""
    if not model.has_rt_info([RECURRENT_PAIRS]):
        return {}
    value = model.get_rt_info([RECURRENT_PAIRS])
    names = getattr(value, "value", value)
    if isinstance(names, str):  # an IR stores the list as one string
        names = [n.strip() for n in re.split(r"[,\s]+", names) if n.strip()]
    if len(names) % 2:
        raise RewriteError(
            f"rt_info {RECURRENT_PAIRS} names {len(names)} ports, wanted pairs of an input and an output"
        )
    return dict(zip(names[::2], names[1::2], strict=True))


def missing_inputs(model: Model, named: Mapping[str, str]) -> list[str]:
    """Those of the pairs that a caller gives whose input the model does not have, nor a state that was made of it."""
    there = {name for p in model.get_parameters() for name in (*p.output(0).get_names(), p.get_friendly_name())}
    made = {variable.info.variable_id for variable in model.get_variables()}
    return [name for name, output in named.items() if name not in there and name + output not in made]


def find_update(parameter: Node, wanted: str | None) -> tuple[Node, Node] | None:
    """The Concat or ScatterUpdate onto a Parameter and the Result that it feeds.

    Args:
        parameter: the cache input.
        wanted: name of the Result that is meant when there are several; None for the one of the input's own name.
    """
    for reader in readers(_behind_beam(parameter.output(0))):
        update = reader.get_node()
        if reader.get_index() != 0 or update.get_type_name() not in ("Concat", "ScatterUpdate"):
            continue
        results = [i.get_node() for i in readers(update.output(0)) if i.get_node().get_type_name() == "Result"]
        if not results:
            continue
        own = {wanted} if wanted is not None else parameter.output(0).get_names()
        named = next((r for r in results if own & result_names(r)), None)
        if named is not None or wanted is None:  # else it feeds other outputs only, not the one that is meant
            return update, named or results[0]
    return None


def _behind_beam(output: Output) -> Output:
    found = consumers(output)
    if len(found) == 1 and found[0].get_node().get_type_name() == "Gather" and found[0].get_index() == 0:
        return found[0].get_node().output(0)
    return output


def _appended(parameter: Node, update: Node, result: Node) -> CachePair | NoPair:
    shape = parameter.get_output_partial_shape(0)
    if shape.rank.is_dynamic:
        return NoPair(parameter, "cache", "its rank is dynamic, wanted a known rank")
    if update.get_type_name() == "Concat":
        return _appended_by_concat(parameter, update, result)
    if shape.rank.get_length() == 4 and shape[1] == 1 and shape[2].is_dynamic and shape[3].is_static:
        return _appended_flat(parameter, update, result)
    if shape.rank.get_length() != 4 or any(shape[d].is_dynamic for d in (2, 3)):
        return NoPair(
            parameter, "cache", f"its shape is {shape}, wanted [1, cells, heads, size] with static heads, size"
        )
    if shape[1].is_static:
        return NoPair(parameter, "cache", f"the sequence dimension is static ({shape[1]})")
    return _appended_by_scatter(parameter, update, result)


def _appended_by_concat(parameter: Node, update: Node, result: Node) -> CachePair | NoPair:
    shape = parameter.get_output_partial_shape(0)
    rank = shape.rank.get_length()
    axis = update.get_attributes()["axis"]
    axis += rank if axis < 0 else 0
    if update.get_input_size() != 2:
        found = update.get_input_size()
        return NoPair(parameter, "append", f"Concat {update.get_friendly_name()} has {found} inputs, wanted 2")
    if shape[axis].is_static:
        return NoPair(parameter, "cache", f"the sequence dimension is static ({shape[axis]})")
    dynamic = [d for d in range(1, rank) if d != axis and shape[d].is_dynamic]
    if dynamic:
        return NoPair(parameter, "cache", f"dims {dynamic} of {shape} are dynamic beside the sequence, wanted static")
    return CachePair(parameter, result, update, axis, update.input_value(1))


def _appended_by_scatter(parameter: Node, update: Node, result: Node) -> CachePair | NoPair:
    shape = parameter.get_output_partial_shape(0)
    heads, size = shape[2].get_length(), shape[3].get_length()
    axis = const_value(update.input_value(3))
    if axis is None or int(axis.ravel()[0]) not in (1, 2):
        return NoPair(parameter, "append", f"ScatterUpdate {update.get_friendly_name()} has axis {axis}, wanted 1 or 2")
    rows = update.input_value(2)
    if _are_rows(rows, heads, size):
        return CachePair(parameter, result, update, 1, rows)
    # The GGUF frontend flattens [1, tokens, heads, size] to [1, 1, tokens*heads, size]: take the rows before that.
    if rows.get_node().get_type_name() == "Reshape" and _are_rows(rows.get_node().input_value(0), heads, size):
        return CachePair(parameter, result, update, 1, rows.get_node().input_value(0))
    last = rows.get_partial_shape()
    if last.rank.is_static and last[last.rank.get_length() - 1] == shape[3]:
        return CachePair(parameter, result, update, 1, rows, flat_rows=True)
    return NoPair(parameter, "append", f"its rows are {describe(rows)}, wanted [1, tokens, {heads}, {size}]")


def _appended_flat(parameter: Node, update: Node, result: Node) -> CachePair | NoPair:
    """``[1, 1, cells, heads*size]``, rows ``[1, 1, tokens, heads*size]`` scattered on dim 2."""
    size = parameter.get_output_partial_shape(0)[3]
    axis = const_value(update.input_value(3))
    if axis is None or int(axis.ravel()[0]) != 2:
        return NoPair(parameter, "append", f"ScatterUpdate {update.get_friendly_name()} has axis {axis}, wanted 2")
    rows = update.input_value(2)
    shape = rows.get_partial_shape()
    if shape.rank.is_dynamic or shape.rank.get_length() != 4 or shape[1] != 1 or shape[3] != size:
        return NoPair(parameter, "append", f"its rows are {describe(rows)}, wanted [1, 1, tokens, {size}]")
    return CachePair(parameter, result, update, 2, rows)


def _are_rows(rows: Output, heads: int, size: int) -> bool:
    shape = rows.get_partial_shape()
    if shape.rank.is_dynamic or shape.rank.get_length() != 4:
        return False
    # A first dim that is not known may be merged tokens, so only a batch of one is taken as it is.
    return bool(shape[0] == 1 and shape[2] == heads and shape[3] == size)


def _replaced_whole(model: Model, parameter: Node, wanted: str) -> CachePair | NoPair:
    result = next((r for r in model.get_results() if wanted in result_names(r)), None)
    if result is None:
        return NoPair(parameter, "pair", f"the model has no output called {wanted}")
    into, out = parameter.output(0), result.input_value(0)
    if into.get_partial_shape().is_dynamic:
        return NoPair(
            parameter, "cache", f"its shape {into.get_partial_shape()} is dynamic, and nothing is appended to it"
        )
    same = into.get_element_type() == out.get_element_type()
    if not same or not out.get_partial_shape().compatible(into.get_partial_shape()):
        return NoPair(parameter, "pair", f"goes in as {describe(into)}, comes out as {describe(out)}, wanted the same")
    return CachePair(parameter, result)


def _why_no_update(parameter: Node) -> str:
    readers = [i.get_node() for i in consumers(parameter.output(0))]
    found = ", ".join(f"{n.get_type_name()} {n.get_friendly_name()}" for n in readers[:3]) or "nothing"
    return f"is read by {found}, wanted a Concat or ScatterUpdate onto it that feeds a Result (or a pair by name)"
