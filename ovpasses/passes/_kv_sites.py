"""KV caches of a graph, stateless or stateful, in whatever layout: what holds them, what grows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from openvino import Model, PartialShape

from ovpasses._openvino import Node, Output
from ovpasses.ggml_names import CACHE_NAME, PAST_NAME, layer_of
from ovpasses.importers._head_counts import growth_dim, rows_of
from ovpasses.importers._walk import port_name
from ovpasses.passes._cache_pairs import find_update
from ovpasses.passes._states import State, find_append, states


@dataclass(frozen=True)
class KVSite:
    """One cache of keys or values.

    Attributes:
        name: what the graph calls it.
        holder: its Parameter or ReadValue.
        past: what is grown: the holder's output, or the beam Gather behind it.
        update: the Concat or ScatterUpdate that adds rows.
        axis: the dim that the update works on.
        keeper: the Result or Assign that takes the grown cache.
        state: the Variable's parts; None for a Parameter.
    """

    name: str
    holder: Node
    past: Output
    update: Node
    axis: int
    keeper: Node
    state: State | None = None

    @property
    def shape(self) -> PartialShape:
        return self.holder.get_output_partial_shape(0)

    @property
    def layer(self) -> int | None:
        return layer_of(self.name)

    @property
    def is_value(self) -> bool:
        ggml, onnx = CACHE_NAME.search(self.name), PAST_NAME.match(self.name)
        return bool((ggml and ggml["kind"] == "cache_v") or (onnx and onnx["kind"] == "value"))

    @property
    def rows(self) -> Output:
        return rows_of(self.update)


@dataclass(frozen=True)
class NoSite:
    """What looks like a cache and is not one that can be read, with the step and the reason."""

    name: str
    step: str
    reason: str


def find_sites(model: Model) -> Iterator[KVSite | NoSite]:
    """Every cache of keys or values: Parameters that are grown into a Result, states that an append grows."""
    for parameter in model.get_parameters():
        name = port_name(parameter)
        found = find_update(parameter, None)
        if found is not None:
            update, result = found
            yield _site(name, parameter, update, result, None)
        elif _is_kv_name(name):
            yield NoSite(name, "update", "nothing grows it into a Result, wanted a Concat or ScatterUpdate onto it")
    for state in states(model):
        append = find_append(state)
        if not isinstance(append, str):
            yield _site(state.name, state.read, append.concat, state.assign, state)
        elif _is_kv_name(state.name):
            yield NoSite(state.name, "update", append)


def _site(name: str, holder: Node, update: Node, keeper: Node, state: State | None) -> KVSite | NoSite:
    shape = holder.get_output_partial_shape(0)
    if shape.rank.is_dynamic or shape.rank.get_length() != 4 or shape[3].is_dynamic:
        return NoSite(name, "cache", f"its shape is {shape}, wanted rank 4 with a static last dim")
    axis = growth_dim(update)
    if axis not in (1, 2):
        return NoSite(name, "update", f"{update.get_friendly_name()} grows it on dim {axis}, wanted 1 or 2")
    return KVSite(name, holder, update.input_value(0), update, axis, keeper, state)


def _is_kv_name(name: str) -> bool:
    ggml = CACHE_NAME.search(name)
    return bool(PAST_NAME.match(name) or (ggml and ggml["kind"] in ("cache_k", "cache_v")))
