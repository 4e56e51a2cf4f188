"""A pass's work on a model, seen from both sides."""

from __future__ import annotations

from typing import Any

from openvino import Model

from ovpasses.importers import ImportedModel
from ovpasses.passes.base import ReportedPass
from ovpasses.passes.report import PassReport
from ovpasses.pipeline import PipelineReport, pass_by_name
from ovpasses.visualize._picture import PictureError

Chosen = str | ReportedPass | type[ReportedPass]


def before_and_after(source: PipelineReport | ImportedModel | Model, chosen: Chosen) -> tuple[Model, Model, PassReport]:
    """The graph before and after a pass, and the pass's report; nothing of the caller's is changed.

    Args:
        source: the report of a run, whose passes are run again on a clone, or a model to run the pass on.
        chosen: the pass, or its name.

    Raises:
        PictureError: the run had no such pass, or kept no graph.
        RewriteError: no pass is of that name, or it refuses the model.
    """
    if isinstance(source, PipelineReport):
        return _again(source, chosen)
    model = source.model if isinstance(source, ImportedModel) else source
    kind: Any = pass_by_name(chosen) if isinstance(chosen, str) else chosen
    step: ReportedPass = kind() if isinstance(kind, type) else kind
    after = model.clone()
    return model, after, _run(step, after)


def _again(source: PipelineReport, chosen: Chosen) -> tuple[Model, Model, PassReport]:
    names = [report.name for report in source.passes]
    name = _name(chosen, names)
    places = [i for i, ran in enumerate(names) if ran == name]
    if not places:
        raise PictureError(f"pass {name} is not in the run of pipeline {source.name}; it ran {', '.join(names)}")
    if source.start is None:
        raise PictureError(
            f"the report of pipeline {source.name} kept no graph; run it with keep_graph=True, "
            "or picture the pass on a model that it has not rewritten yet"
        )
    place = next((i for i in places if source.passes[i].rewritten), places[0])
    before = source.start.clone()
    for step in source.steps[:place]:
        _run(step, before)
    after = before.clone()
    return before, after, _run(source.steps[place], after)


def _name(chosen: Chosen, known: list[str]) -> str:
    if not isinstance(chosen, str):
        return chosen.__name__ if isinstance(chosen, type) else type(chosen).__name__
    return chosen if chosen in known else pass_by_name(chosen).__name__  # a pass of the caller's own has no other name


def _run(step: ReportedPass, model: Model) -> PassReport:
    """Run a pass; its own report stays that of the run before."""
    kept = step.report
    try:
        step.run_on_model(model)
        return step.report
    finally:
        step.report = kept
