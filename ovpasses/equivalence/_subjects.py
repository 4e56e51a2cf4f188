"""What a caller gives to be compared: a model, or a path of one."""

from __future__ import annotations

import os
from typing import Any

from openvino import Model

from ovpasses.importers import ImportedModel, read_model


def imported(subject: Any) -> ImportedModel:
    """A model with what is known of it; read from a file where a path is given."""
    return subject if isinstance(subject, ImportedModel) else read_model(subject)


def graph_of(subject: Model | ImportedModel | str | os.PathLike[str]) -> Model:
    """The graph alone."""
    if isinstance(subject, Model):
        return subject
    return imported(subject).model
