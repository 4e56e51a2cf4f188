"""pytest fixtures that compare graphs and models, and golden files of structures.

Nothing of OpenVINO is imported before a test asks for one of the fixtures.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from ovpasses.equivalence import EquivalenceReport, StructureReport

UPDATE = "--ovpasses-update"
FOLDER = "goldens"
# Characters of a golden file's name, of which most disks take 255.
LONGEST = 160

Record = Callable[[str, object], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ovpasses", "OpenVINO graphs (ovpasses)")
    group.addoption(UPDATE, action="store_true", help="Record golden structures instead of comparing with them.")


class SameGraph(Protocol):
    """What ``assert_same_graph`` is."""

    def __call__(self, a: Any, b: Any, *, names: bool = False) -> StructureReport: ...


class SameNumbers(Protocol):
    """What ``assert_same_numbers`` is."""

    def __call__(
        self,
        a: Any,
        b: Any,
        *,
        steps: Sequence[int] = (7, 1, 3, 1),
        seed: int = 0,
        nmse: float | None = None,
        stateful: bool = False,
    ) -> EquivalenceReport: ...


class GoldenStructure(Protocol):
    """What ``golden_structure`` is."""

    def __call__(self, model: Any, name: str = "") -> None: ...


@pytest.fixture
def assert_same_graph(record_property: Record) -> SameGraph:
    """``assert_same_graph(a, b, names=False)``: two graphs are the same op by op (:func:`ovpasses.compare_structure`).

    The outcome is a property of the test in JUnit and JSON reports.
    """
    from ovpasses.equivalence import compare_structure

    def check(a: Any, b: Any, *, names: bool = False) -> StructureReport:
        report = compare_structure(a, b, names=names)
        record_property("ovpasses_same_graph", report.same)
        if not report.same:
            pytest.fail(str(report), pytrace=False)
        return report

    return check


@pytest.fixture
def assert_same_numbers(record_property: Record) -> SameNumbers:
    """``assert_same_numbers(a, b, ...)``: two models give the same, states included (:func:`ovpasses.compare_numbers`).

    A failure shows the table; outcome and summary are properties of the test in JUnit and JSON reports.
    """
    from ovpasses.equivalence import compare_numbers

    def check(a: Any, b: Any, **options: Any) -> EquivalenceReport:
        report = compare_numbers(a, b, **options)
        record_property("ovpasses_equivalent", report.equivalent)
        record_property("ovpasses_summary", report.summary)
        if not report.equivalent:
            pytest.fail(str(report), pytrace=False)
        return report

    return check


@pytest.fixture
def golden_structure(request: pytest.FixtureRequest, record_property: Record) -> GoldenStructure:
    """``golden_structure(model, name="")``: a graph, or that of a path, is as it was when the golden file was recorded.

    The files are in the folder ``goldens`` beside the test, named after it and its class; ``--ovpasses-update`` records
    them. A test of several graphs gives each a name.
    """
    from ovpasses.equivalence._subjects import graph_of
    from ovpasses.equivalence.golden import golden_difference, golden_text

    used: set[Path] = set()
    classes = [node.name for node in request.node.listchain() if isinstance(node, pytest.Class)]
    test = ".".join([*classes, request.node.name])

    def check(model: Any, name: str = "") -> None:
        path = golden_path(request.path, test, name)
        if path in used:
            pytest.fail(f"{path.name} is of another graph of this test already; give each a name", pytrace=False)
        used.add(path)
        graph = graph_of(model)
        record_property("ovpasses_golden", path.name)
        if request.config.getoption(UPDATE):
            try:
                path.parent.mkdir(exist_ok=True)
                path.write_text(golden_text(graph), encoding="utf-8")
            except OSError as error:
                pytest.fail(f"{path} cannot be written: {error.strerror}", pytrace=False)
            return
        if not path.is_file():
            pytest.fail(f"{path} is not there; record it with {UPDATE}, and commit it", pytrace=False)
        found = golden_difference(path.read_text(encoding="utf-8"), graph, str(path))
        if found:
            pytest.fail(f"structure differs from {path}; {UPDATE} records it anew\n{found}", pytrace=False)

    return check


def golden_path(test_file: Path, test: str, name: str) -> Path:
    """Where the golden file of a test's graph is; what no file name may hold, or is too long, is told by a digest."""
    whole = ".".join(part for part in (test_file.stem, test, name) if part)
    plain = re.sub(r"[^\w.-]+", "-", whole).strip("-")[:LONGEST]
    told = "" if plain == whole else f".{hashlib.blake2b(whole.encode(), digest_size=3).hexdigest()}"
    return test_file.parent / FOLDER / f"{plain}{told}.txt"
