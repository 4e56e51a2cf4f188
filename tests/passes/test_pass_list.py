"""Files, ``__all__``, docstrings and command-line names agree."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from ovpasses import passes
from ovpasses.passes.base import ReportedPass

FOLDER = Path(passes.__file__).parent
NO_PASSES = {"base", "report"}
REPORTS = {"PassReport", "Skip"}
MODULES = sorted(p.stem for p in FOLDER.glob("*.py") if not p.stem.startswith("_") and p.stem not in NO_PASSES)
LISTED = sorted(set(passes.__all__) - REPORTS)


def own_passes(module: str) -> list[type[ReportedPass]]:
    found = importlib.import_module(f"ovpasses.passes.{module}")
    classes = [c for _, c in inspect.getmembers(found, inspect.isclass) if issubclass(c, ReportedPass)]
    return [c for c in classes if c.__module__ == found.__name__]


def test_files_hold_exactly_the_listed_passes() -> None:
    assert sorted(c.__name__ for module in MODULES for c in own_passes(module)) == LISTED
    assert passes.__all__ == sorted(passes.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_a_file_holds_one_pass_of_its_name(module: str) -> None:
    (one,) = own_passes(module)
    assert one.cli_name().replace("-", "_") == module


@pytest.mark.parametrize("name", LISTED)
def test_docstring_says_what_a_reader_looks_for(name: str) -> None:
    doc = inspect.getdoc(getattr(passes, name)) or ""
    places = [doc.find(word) for word in ("Before", "After", "Applies when", "Numerics:", "Source:")]
    assert -1 not in places
    assert places == sorted(places), "Before, After, Applies when, Numerics, Source: in this order"
    assert doc.splitlines()[0].endswith(".")


@pytest.mark.parametrize("name", LISTED)
def test_command_line_name_is_kebab_case(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", getattr(passes, name).cli_name())


@pytest.mark.parametrize("name", LISTED)
def test_an_argument_free_constructor_does(name: str) -> None:
    one = getattr(passes, name)()
    assert one.report.name == name
    assert one.looked_for != ReportedPass.looked_for
    assert repr(one) == f"{name}()"
