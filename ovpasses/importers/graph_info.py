"""What a session and the passes must know of a model, per layer: heads, sizes, windows, position planes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from openvino import Model, PartialShape

from ovpasses._openvino import Node, Output
from ovpasses._tables import LAYER_COLUMNS, html_table, layer_rows
from ovpasses.ggml_names import CACHE_NAME, PAST_NAME
from ovpasses.importers._head_counts import (
    HeadSplit,
    declared_split,
    growth_dim,
    rows_of,
    sequence_dim,
    split_from_graph,
)
from ovpasses.importers._recurrent import delta_net_state, growth_of, is_grown
from ovpasses.importers._walk import ATTENTION_OPS, consumer_nodes, first_downstream, source_of_mask
from ovpasses.importers.input_roles import input_roles

# Where a saved IR keeps the info in its rt_info, as JSON.
INFO_KEY = ("ovpasses", "info")

ATTENTION, RECURRENT = "attention", "recurrent"


@dataclass(frozen=True)
class LayerInfo:
    """One layer that keeps something between calls.

    Attributes:
        index: layer number in the model (of ``cache_k_l<index>``).
        kind: "attention" (a cache of keys and values) or "recurrent" (states of fixed size).
        n_heads_kv: number of key/value heads, or of the recurrent state's heads; None when not known.
        key_size, value_size: elements per head.
        window: length of the sliding window in tokens, None for full attention and recurrent layers.
    """

    index: int
    kind: str
    n_heads_kv: int | None = None
    key_size: int | None = None
    value_size: int | None = None
    window: int | None = None


@dataclass(frozen=True)
class GraphInfo:
    """What is known of a model beside its graph.

    Attributes:
        architecture: general.architecture of a GGUF; "" when the source does not say.
        layers: the layers with caches or states, by index.
        position_planes: how many planes ``inp_pos`` stacks: 1, or 4 with M-RoPE.
        n_vocab: number of token ids the model takes and scores; None when not known.
        context_length: number of positions the model was made for, in tokens; None when not known.
        contradictions: where two sources disagree, one line each with both values; the graph's is used.
        roles: what the graph's inputs are for, input name to role (see ``input_roles``); of the graph, not the model,
            so two infos are equal whatever their roles.
    """

    architecture: str = ""
    layers: tuple[LayerInfo, ...] = ()
    position_planes: int = 1
    n_vocab: int | None = None
    context_length: int | None = None
    contradictions: tuple[str, ...] = field(default=())
    roles: dict[str, str] = field(default_factory=dict, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "layers": [asdict(layer) for layer in self.layers]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GraphInfo:
        """The inverse of :meth:`to_dict`; keys that are not known are left out."""
        known = {f.name for f in fields(cls)} & data.keys()
        layer_fields = {f.name for f in fields(LayerInfo)}
        layers = tuple(LayerInfo(**{k: v for k, v in la.items() if k in layer_fields}) for la in data.get("layers", ()))
        values: dict[str, Any] = {
            name: tuple(data[name]) if isinstance(data[name], list) else data[name] for name in known
        }
        values["layers"] = layers
        return cls(**values)

    def _repr_html_(self) -> str:
        known = {"vocabulary": self.n_vocab, "context": self.context_length, "position planes": self.position_planes}
        facts = ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
        return html_table(
            f"{self.architecture or 'architecture not known'}: {facts}", LAYER_COLUMNS, layer_rows(self.layers)
        )

    @property
    def windows(self) -> list[int]:
        """The different sliding windows in use, in tokens."""
        return sorted({layer.window for layer in self.layers if layer.window is not None})


@dataclass(frozen=True)
class _Cache:
    layer: int
    kind: str  # key, value, conv, state
    shape: PartialShape
    output: Output


def info_from_graph(model: Model, *, window: int | None = None) -> GraphInfo:
    """Read a :class:`GraphInfo` off the graph: cache inputs and states, masks, positions, logits.

    Args:
        model: the graph, stateless or stateful.
        window: length in tokens of the sliding window, for the layers whose mask is ``*_swa``.
    """
    by_layer: dict[int, dict[str, _Cache]] = {}
    for cache in _caches(model):
        by_layer.setdefault(cache.layer, {})[cache.kind] = cache
    sliding = _sliding_attention(model)
    layers = [_layer(index, caches, sliding, window) for index, caches in sorted(by_layer.items())]
    return GraphInfo(
        layers=tuple(layers),
        position_planes=_position_planes(model),
        n_vocab=_n_vocab(model),
        roles=input_roles(model),
    )


def attention_layers(model: Model) -> dict[int, Node]:
    """The attention op (SDPA or Softmax) that each layer's cache of keys leads to, by layer number."""
    found = {}
    for cache in _caches(model):
        attention = first_downstream(cache.output, ATTENTION_OPS) if cache.kind == "key" else None
        if attention is not None:
            found[cache.layer] = attention
    return found


def _caches(model: Model) -> list[_Cache]:
    kinds = {"cache_k": "key", "cache_v": "value", "cache_r": "conv", "conv_state": "conv"}
    kinds |= {"cache_s": "state", "ssm_state": "state"}
    found = []
    reads = [op for op in model.get_ops() if op.get_type_name() == "ReadValue"]
    for node in [*model.get_parameters(), *reads]:
        names = [*sorted(node.output(0).get_names()), node.get_friendly_name()]
        names += [node.get_variable_id()] if node.get_type_name() == "ReadValue" else []
        for name in names:
            ggml, onnx = CACHE_NAME.search(name), PAST_NAME.match(name)
            if ggml or onnx:
                layer = int(ggml["layer"] if ggml else onnx["layer"])  # type: ignore[index]
                kind = kinds[ggml["kind"]] if ggml else onnx["kind"]  # type: ignore[index]
                found.append(_Cache(layer, kind, node.get_output_partial_shape(0), node.output(0)))
                break
    return found


def _layer(index: int, caches: dict[str, _Cache], sliding: set[Node], window: int | None) -> LayerInfo:
    grown = {kind: cache for kind, cache in caches.items() if is_grown(cache.output)}
    states = [s for cache in caches.values() if (s := delta_net_state(cache.output)) is not None]
    if not grown and (states or "key" not in caches):
        declared = [caches["state"].shape] if "state" in caches else []
        shape = next(iter(states + declared), None)
        heads, key_size, value_size = (_static(shape, d) if shape is not None else None for d in (1, 2, 3))
        return LayerInfo(index, RECURRENT, heads, key_size, value_size)
    key = caches["key"] if "key" in caches else next(iter(grown.values()))
    value = caches.get("value", key)
    key_split, value_split = _split(key), _split(value)
    attention = first_downstream(key.output, ATTENTION_OPS)
    return LayerInfo(
        index,
        ATTENTION,
        n_heads_kv=key_split.heads if key_split else None,
        key_size=key_split.size if key_split else None,
        value_size=value_split.size if value_split else None,
        window=window if attention in sliding else None,
    )


def _split(cache: _Cache) -> HeadSplit | None:
    """Heads and size of a cache: as its rows and readers say, else as its shape does."""
    if cache.shape.rank.is_dynamic or cache.shape.rank.get_length() != 4:
        return None
    update = growth_of(cache.output)
    if update is not None and update.input_value(0).get_node().get_type_name() == "Reshape":
        cache = replace(cache, shape=update.input_value(0).get_partial_shape())
    declared = declared_split(cache.shape, sequence_dim(cache.shape, growth_dim(update) if update else None))
    if declared is None or update is None:
        return declared
    found = split_from_graph(rows_of(update), update.output(0), declared.combined)
    return found if found is not None and found.combined == declared.combined else declared


def _static(shape: PartialShape, dim: int) -> int | None:
    known = shape.rank.is_static and dim < shape.rank.get_length() and shape[dim].is_static
    return shape[dim].get_length() if known else None


def _sliding_attention(model: Model) -> set[Node]:
    """The attention ops (SDPA or Softmax) whose mask is a sliding-window one."""
    masks = [p for p in model.get_parameters() if any(n.endswith("_swa") for n in p.output(0).get_names())]
    found: set[Node] = set()
    for mask in masks:
        for op in model.get_ops():
            if op.get_type_name() in ATTENTION_OPS and source_of_mask(op) == mask:
                found.add(op)
    return found


def _position_planes(model: Model) -> int:
    """4 when ``inp_pos`` is cut into planes by a Reshape to [.., 4, tokens], else 1."""
    for position in model.get_parameters():
        if "inp_pos" not in position.output(0).get_names():
            continue
        for node in consumer_nodes(position.output(0), through=("Convert", "Squeeze", "Unsqueeze")):
            shape = node.get_output_partial_shape(0)
            rank = shape.rank.get_length() if shape.rank.is_static else 0
            stacked = position.get_output_partial_shape(0)
            if node.get_type_name() != "Reshape" or rank < 2 or shape[rank - 2] != 4 or stacked.rank.is_dynamic:
                continue
            last, planes = shape[rank - 1], stacked[stacked.rank.get_length() - 1]
            if last.is_dynamic or (planes.is_static and planes.get_length() == 4 * last.get_length()):
                return 4
    return 1


def _n_vocab(model: Model) -> int | None:
    """Last dim of the output that is no cache: of several candidates the last one, as ggml puts its logits there."""
    sizes = []
    for result in model.get_results():
        name = result.get_friendly_name()
        shape = result.get_output_partial_shape(0)
        if CACHE_NAME.search(name) or _grows_an_input(result) or shape.rank.is_dynamic:
            continue
        last = _static(shape, shape.rank.get_length() - 1) if shape.rank.get_length() else None
        if last is not None and result.get_output_element_type(0).is_real():
            sizes.append(last)
    return sizes[-1] if sizes else None


def info_from_rt_info(model: Model) -> GraphInfo | None:
    """The info that ovpasses wrote into an IR, None when there is none."""
    if not model.has_rt_info(list(INFO_KEY)):
        return None
    value = model.get_rt_info(list(INFO_KEY))
    try:
        return GraphInfo.from_dict(json.loads(str(getattr(value, "value", value))))
    except (ValueError, TypeError, AttributeError):
        return None  # somebody else's key, or a newer layout: the graph speaks for itself


def _grows_an_input(result: Node) -> bool:
    """Whether an output is a cache: rows appended to, or written into, one of the model's inputs."""
    update = result.input_value(0).get_node()
    if update.get_type_name() not in ("Concat", "ScatterUpdate"):
        return False
    past = update.input_value(0).get_node()
    while past.get_type_name() in ("Gather", "Reshape", "Convert", "Transpose"):
        past = past.input_value(0).get_node()
    return bool(past.get_type_name() == "Parameter")


def merged(graph: GraphInfo, other: GraphInfo, source: str) -> GraphInfo:
    """Fill what the graph does not say from another source; where both say something, the graph's value is used.

    Args:
        graph: read off the graph.
        other: from elsewhere (GGUF metadata).
        source: what ``other`` is, for the lines in ``contradictions``.
    """
    notes = list(graph.contradictions)

    def pick(what: str, mine: Any, theirs: Any) -> Any:
        if mine is not None and theirs is not None and mine != theirs:
            notes.append(f"{what}: {mine} in the graph, {theirs} in {source}; the graph's is used")
        return theirs if mine is None else mine

    theirs = {layer.index: layer for layer in other.layers}
    layers = []
    for layer in graph.layers:
        known = theirs.get(layer.index)
        if known is not None and layer.kind == known.kind:
            names = ("n_heads_kv", "key_size", "value_size", "window") if layer.kind == ATTENTION else ()
            merged_fields = {
                name: pick(f"layer {layer.index} {name}", getattr(layer, name), getattr(known, name)) for name in names
            }
            layer = replace(layer, **merged_fields)
        layers.append(layer)
    return replace(
        graph,
        architecture=other.architecture or graph.architecture,
        layers=tuple(layers),
        position_planes=max(graph.position_planes, other.position_planes),
        n_vocab=pick("n_vocab", graph.n_vocab, other.n_vocab),
        context_length=pick("context_length", graph.context_length, other.context_length),
        contradictions=tuple(notes),
    )
