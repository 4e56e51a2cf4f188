"""What is in a model, and what each pass would do to it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from ovpasses.errors import RewriteError
from ovpasses.importers import ImportedModel
from ovpasses.passes._states import find_append, states
from ovpasses.pipeline import PASSES, PipelineReport


@dataclass
class Inspection:
    """A model as a person or a script looks at it.

    Attributes:
        imported: the model.
        inputs, outputs, states: one dict each, with name, type and shape.
        report: what every pass, each on the model as it is, would match and why not.
    """

    imported: ImportedModel
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    states: list[dict[str, Any]]
    report: PipelineReport

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        model = self.imported.model
        return {
            "source": str(self.imported.source) if self.imported.source else None,
            "ops": len(model.get_ops()),
            "info": self.imported.info.to_dict(),
            "inputs": self.inputs,
            "outputs": self.outputs,
            "states": self.states,
            "passes": self.report.to_dict()["passes"],
        }

    def tables(self) -> list[Table]:
        """The same as ``rich`` tables."""
        info = self.imported.info
        summary = f"{self.imported.source or 'model'}: {info.architecture or 'architecture not known'}"
        summary += f", {len(self.imported.model.get_ops())} ops, vocabulary {info.n_vocab}"
        summary += f", {info.position_planes} position plane(s), context {info.context_length}"
        tables = [_ports(summary, "input", self.inputs), _ports("", "output", self.outputs)]
        if self.states:
            table = Table("state", "type", "shape", "sequence axis")
            for state in self.states:
                axis = "none (recurrent)" if state["sequence_axis"] is None else str(state["sequence_axis"])
                table.add_row(Text(state["name"]), state["type"], state["shape"], axis)
            tables.append(table)
        if info.layers:
            table = Table("layer", "kind", "kv heads", "key size", "value size", "window")
            for layer in info.layers:
                values = (layer.n_heads_kv, layer.key_size, layer.value_size, layer.window)
                table.add_row(str(layer.index), layer.kind, *("-" if v is None else str(v) for v in values))
            tables.append(table)
        if info.contradictions:
            table = Table("sources that contradict each other")
            for line in info.contradictions:
                table.add_row(Text(line))
            tables.append(table)
        return [*tables, self.report.table()]


def inspect_model(imported: ImportedModel) -> Inspection:
    """Look at a model; it is not changed (every pass runs on a clone, which shares the weights)."""
    model = imported.model
    report = PipelineReport("each pass alone, on the model as it is")
    for kind in PASSES.values():
        trial = kind()
        with suppress(RewriteError):  # what an all-or-nothing pass refuses the model for is in its report
            trial.run_on_model(model.clone())
        report.passes.append(trial.report)
    return Inspection(
        imported,
        inputs=[_port(p.get_any_name() if p.get_names() else "", p) for p in model.inputs],
        outputs=[_port(_output_name(model, i), p) for i, p in enumerate(model.outputs)],
        states=[_state(state) for state in states(model)],
        report=report,
    )


def _output_name(model: Any, index: int) -> str:
    port = model.outputs[index]
    return str(min(port.get_names(), default=None) or model.get_results()[index].get_friendly_name())


def _port(name: str, port: Any) -> dict[str, Any]:
    return {"name": name, "type": port.get_element_type().get_type_name(), "shape": str(port.get_partial_shape())}


def _state(state: Any) -> dict[str, Any]:
    info = state.variable.info
    append = find_append(state)
    grows = not isinstance(append, str) and info.data_shape.is_dynamic
    return {
        "name": state.name,
        "variable_id": info.variable_id,
        "type": info.data_type.get_type_name(),
        "shape": str(info.data_shape),
        "sequence_axis": append.axis if grows and not isinstance(append, str) else None,
    }


def _ports(title: str, kind: str, ports: list[dict[str, Any]]) -> Table:
    table = Table(kind, "type", "shape", title=title or None, title_justify="left")
    for port in ports:
        table.add_row(Text(port["name"]), port["type"], port["shape"])
    return table
