"""From what a caller gives to a model that is stepped."""

from __future__ import annotations

from typing import Any

from ovpasses.equivalence._runs import GraphRun, Run
from ovpasses.equivalence._session_runs import SessionRun, is_language_model
from ovpasses.equivalence._subjects import imported
from ovpasses.equivalence.errors import CheckError
from ovpasses.errors import StateError
from ovpasses.importers import ImportedModel
from ovpasses.pipeline import Pipeline


def opened(subject: Any, label: str, tokens: int, stateful: bool) -> Run:
    """Compile a model, or a static pair.

    Args:
        subject: a model, a path, or a pair of either.
        label: "a" or "b".
        tokens: how many will be run.
        stateful: rewrite a copy of what cannot run as it is.

    Raises:
        CheckError: neither one model nor two.
        StateError: no session runs it as it is.
    """
    pair = isinstance(subject, tuple | list)
    models = [imported(one) for one in (subject if pair else [subject])]
    if pair and len(models) != 2:
        raise CheckError(f"{label} is {len(models)} models, wanted one, or prefill and decode of a static pair")
    name = f"{label} ({', '.join(_name(model) for model in models)})"
    if not pair and not is_language_model(models[0]):
        return GraphRun(name, models[0].model)
    try:
        return SessionRun(name, *models, tokens=tokens)
    except StateError as error:
        if pair or not stateful:
            hint = "" if pair else "; --stateful (stateful=True) does that on a copy"
            raise StateError(f"{name}: {error}{hint if 'run the preset stateful' in str(error) else ''}") from error
    copy = ImportedModel(models[0].model.clone(), models[0].info, models[0].source)
    Pipeline.preset("stateful").run(copy, keep_graph=False)
    return SessionRun(f"{name} after the preset stateful", copy, tokens=tokens)


def _name(imported: ImportedModel) -> str:
    source = imported.source
    return "/".join(source.parts[-2:]) if source else str(imported.model.get_friendly_name())
