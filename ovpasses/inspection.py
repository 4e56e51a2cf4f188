"""What is in a model, and what each pass would do to it."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

from openvino import Model, PartialShape
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ovpasses._inspection_tables import all_tables
from ovpasses._tables import html_table
from ovpasses._weights import Weights, weights_of
from ovpasses.errors import RewriteError
from ovpasses.ggml_names import CACHE_NAME, PAST_NAME, layer_of
from ovpasses.importers import GraphInfo, ImportedModel
from ovpasses.passes._states import State, find_append, states
from ovpasses.pipeline import PASSES, PipelineReport


@dataclass
class Inspection:
    """A model as a person or a script looks at it.

    Attributes:
        imported: the model.
        inputs, outputs, states: one dict each, with name, type and shape.
        report: what every pass, each on the model as it is, would match and why not.
        weights: parameters, and what the constants take, in bytes.
        refused: passes that take all of a model or nothing, and why they refuse this one.
    """

    imported: ImportedModel
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    states: list[dict[str, Any]]
    report: PipelineReport
    weights: Weights = field(default_factory=Weights)
    refused: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; sizes are in bytes."""
        model = self.imported.model
        passes = self.report.to_dict()["passes"]
        for entry, report in zip(passes, self.report.passes, strict=True):
            entry["near_misses"] = [
                {"count": count, "step": first.step, "node": first.node, "reason": first.reason}
                for first, count in report.near_misses()
            ]
            entry["refused"] = self.refused.get(report.name)
        return {
            "source": str(self.imported.source) if self.imported.source else None,
            "ops": len(model.get_ops()),
            "parameters": self.weights.parameters,
            "weights": {
                kind: {"elements": self.weights.elements[kind], "bytes": size}
                for kind, size in self.weights.sizes.items()
            },
            "info": self.imported.info.to_dict(),
            "inputs": self.inputs,
            "outputs": self.outputs,
            "states": self.states,
            "passes": passes,
        }

    def tables(self) -> list[Table]:
        """The same as ``rich`` tables, with what is alike in one row."""
        tables = []
        for content in all_tables(self):
            table = Table(*content.columns, title=content.title or None, title_justify="left")
            table.show_header = any(content.columns)
            for row in content.rows:
                table.add_row(*(Text(cell) for cell in row))  # names may hold brackets
            tables.append(table)
        return tables

    def __str__(self) -> str:
        out = io.StringIO()
        for table in self.tables():
            Console(file=out, width=120, color_system=None).print(table)
        return out.getvalue().rstrip()

    def _repr_html_(self) -> str:
        return "".join(html_table(content.title, content.columns, content.rows) for content in all_tables(self))


def inspect_model(imported: ImportedModel) -> Inspection:
    """Look at a model; it is not changed (every pass runs on a clone, which shares the weights)."""
    model = imported.model
    report = PipelineReport("each pass alone, on the model as it is")
    refused = {}
    for name, kind in PASSES.items():
        trial = kind()
        try:
            trial.run_on_model(model.clone())
        except RewriteError as error:
            refused[name] = str(error)
        report.passes.append(trial.report)
    return Inspection(
        imported,
        inputs=[_port(p.get_any_name() if p.get_names() else "", p) for p in model.inputs],
        outputs=[_port(_output_name(model, i), p) for i, p in enumerate(model.outputs)],
        states=[_state(state, imported.info) for state in states(model)],
        report=report,
        weights=weights_of(model),
        refused=refused,
    )


def _output_name(model: Model, index: int) -> str:
    port = model.outputs[index]
    return str(min(port.get_names(), default=None) or model.get_results()[index].get_friendly_name())


def _port(name: str, port: Any) -> dict[str, Any]:
    return {"name": name, "type": port.get_element_type().get_type_name(), "shape": str(port.get_partial_shape())}


def _state(state: State, info: GraphInfo) -> dict[str, Any]:
    known = state.variable.info
    append = find_append(state)
    axis = append.axis if not isinstance(append, str) and known.data_shape.is_dynamic else None
    return {
        "name": state.name,
        "variable_id": known.variable_id,
        "type": known.data_type.get_type_name(),
        "shape": str(known.data_shape),
        "sequence_axis": axis,
        "layout": _layout(state.name, known.data_shape, axis, info),
    }


def _layout(name: str, shape: PartialShape, sequence: int | None, info: GraphInfo) -> list[str]:
    """A state's dims by what they are, as ``["1", "heads 3", "seq", "size 64"]``; a number alone if not told.

    Heads and sizes are named where they are those of the layer, the first dim of a rank-4 state is the batch.
    """
    if shape.rank.is_dynamic:
        return ["..."]
    dims = ["?" if dim.is_dynamic else str(dim) for dim in shape]
    of = next((layer for layer in info.layers if layer.index == layer_of(name)), None)
    if len(dims) == 4 and sequence != 0:
        dims[0] = "batch" if dims[0] == "?" else dims[0]
    if sequence is not None:
        dims[sequence] = "seq"
    if of is None or len(dims) != 4:
        return dims
    heads = 3 - sequence if sequence in (1, 2) else 1
    cache = CACHE_NAME.search(name) or PAST_NAME.match(name)
    size = of.value_size if cache is not None and cache["kind"] in ("cache_v", "value") else of.key_size
    if dims[heads] == str(of.n_heads_kv) and dims[3] == str(size):
        dims[heads] = f"heads {dims[heads]}"
        dims[3] = f"size {dims[3]}" if sequence is not None else dims[3]  # two sizes make the matrix of a delta net
    return dims
