"""A picture: DOT text, drawn as SVG when it is looked at."""

from __future__ import annotations

import importlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from ovpasses.errors import OvpassesError

SUFFIXES = (".svg", ".dot")
EXTRA = "pip install 'ovpasses[pictures]'"


class PictureError(OvpassesError):
    """A picture was asked for that cannot be made: nothing to show, or nothing to draw it with."""


class Picture:
    """A drawn graph, shown inline in notebooks.

    Args:
        source: the graph in the DOT language.
        title: what is shown, one line.
    """

    def __init__(self, source: str, title: str) -> None:
        self.source = source
        self.title = title

    @cached_property
    def svg(self) -> str:
        """The picture as one ``<svg>`` element.

        Raises:
            PictureError: nothing is installed that draws it.
        """
        from ovpasses.visualize._engine import draw_svg

        return draw_svg(self.source)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture: ``.svg``, or ``.dot`` for the DOT text, which needs nothing to draw it.

        Returns:
            The path that was written.

        Raises:
            PictureError: another suffix, or nothing is installed that draws it.
        """
        target = Path(path)
        if target.suffix not in SUFFIXES:
            raise PictureError(f"{target}: a picture is written as {' or '.join(SUFFIXES)}")
        text = self.source if target.suffix == ".dot" else f'<?xml version="1.0" encoding="UTF-8"?>\n{self.svg}\n'
        target.write_text(text, encoding="utf-8")
        return target

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture({self.title!r})"


def needed(package: str, install: str = EXTRA) -> Any:
    """A package that not every installation has.

    Raises:
        PictureError: it is not installed; the message ends in the command that does it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise PictureError(f"the package {package} is not installed: {install}") from None
