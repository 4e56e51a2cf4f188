"""The pytest plugin: fixtures, golden files, what a failure shows and what reports hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from models import tiny_graphs as tiny
from ovpasses.equivalence import CheckError
from ovpasses.equivalence.golden import MOST_DIFF_LINES, golden_difference, golden_text
from ovpasses.pytest_plugin import golden_path
from tests.equivalence.graph_edits import of_type
from tests.equivalence.model_forms import dump
from tests.equivalence.test_planted import rename_nodes, rename_variables, reorder

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]

# The plugin by its module, whether or not the entry point is installed.
PLUGIN = ("-p", "no:cacheprovider", "-p", "ovpasses.pytest_plugin")


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading all that are installed would take most of the time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


TEST = """
    import numpy as np
    from openvino import Model
    from ovpasses._openvino import ops

    def graph(factor=2.0, more=False):
        x = ops.parameter([-1, 4], np.float32, name="x")
        y = ops.multiply(x, np.array([factor], np.float32))
        return Model([ops.relu(y) if more else y], [x], "g")
"""


def run(pytester: pytest.Pytester, body: str, *options: str) -> pytest.RunResult:
    indented = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    pytester.makepyfile(test_it=f"{TEST}\n{indented}")
    return pytester.runpytest_inprocess(*PLUGIN, *options)


def test_a_golden_is_recorded_and_then_compared(pytester: pytest.Pytester) -> None:
    body = "def test_a(golden_structure):\n    golden_structure(graph())"  # its output has no name
    missing = run(pytester, body)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*goldens*test_it.test_a.txt is not there; record it with --ovpasses-update*"])
    run(pytester, body, "--ovpasses-update").assert_outcomes(passed=1)
    golden = (pytester.path / "goldens/test_it.test_a.txt").read_text()
    assert golden.splitlines()[0] == "ovpasses golden structure 1"
    assert "Multiply f32[?,4] (auto_broadcast=numpy) <- input x, f32[1] [2.0]" in golden
    run(pytester, body).assert_outcomes(passed=1)
    assert (pytester.path / "goldens/test_it.test_a.txt").read_text() == golden


def test_a_failure_shows_what_differs(pytester: pytest.Pytester) -> None:
    run(pytester, "def test_a(golden_structure):\n    golden_structure(graph())", "--ovpasses-update")
    result = run(pytester, "def test_a(golden_structure):\n    golden_structure(graph(more=True))")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["structure differs from *test_a.txt; --ovpasses-update records it anew"])
    result.stdout.fnmatch_lines(["+Relu f32[[]?,4] <- Multiply f32[[]?,4]"])
    run(pytester, "def test_a(golden_structure):\n    golden_structure(graph(3.0))", "--ovpasses-update")
    result = run(pytester, "def test_a(golden_structure):\n    golden_structure(graph())")
    result.stdout.fnmatch_lines(["-Multiply *[[]3.0]", "+Multiply *[[]2.0]"])


def test_a_test_of_several_graphs_names_them(pytester: pytest.Pytester) -> None:
    twice = "def test_a(golden_structure):\n    golden_structure(graph())\n    golden_structure(graph(3.0)"
    unnamed = run(pytester, f"{twice})", "--ovpasses-update")
    unnamed.stdout.fnmatch_lines(["*test_it.test_a.txt is of another graph of this test already; give each a name*"])
    run(pytester, f"{twice}, 'other')", "--ovpasses-update").assert_outcomes(passed=1)
    assert sorted(path.name for path in (pytester.path / "goldens").iterdir()) == [
        "test_it.test_a.other.txt",
        "test_it.test_a.txt",
    ]
    run(pytester, f"{twice}, 'other')").assert_outcomes(passed=1)


def test_tests_of_one_name_in_two_classes_have_a_golden_each(pytester: pytest.Pytester) -> None:
    body = "".join(
        f"class Test{name}:\n    def test_x(self, golden_structure):\n        golden_structure(graph({weight}))\n"
        for name, weight in (("A", 2.0), ("B", 3.0))
    )
    run(pytester, body, "--ovpasses-update").assert_outcomes(passed=2)
    run(pytester, body).assert_outcomes(passed=2)
    assert sorted(path.name for path in (pytester.path / "goldens").iterdir()) == [
        "test_it.TestA.test_x.txt",
        "test_it.TestB.test_x.txt",
    ]


def test_a_name_that_no_disk_takes_is_shortened_and_told_by_a_digest(pytester: pytest.Pytester) -> None:
    body = (
        "import pytest\n\n@pytest.mark.parametrize('p', ['x' * 300, 'x' * 301])\n"
        "def test_a(p, golden_structure):\n    golden_structure(graph(float(len(p))))"
    )
    run(pytester, body, "--ovpasses-update").assert_outcomes(passed=2)
    run(pytester, body).assert_outcomes(passed=2)
    names = [path.name for path in (pytester.path / "goldens").iterdir()]
    assert len({*names}) == 2
    assert max(map(len, names)) < 200


def test_a_folder_that_cannot_be_written_to_is_one_line(pytester: pytest.Pytester) -> None:
    (pytester.path / "goldens").write_text("a file")
    result = run(pytester, "def test_a(golden_structure):\n    golden_structure(graph())", "--ovpasses-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*goldens*test_it.test_a.txt cannot be written: File exists*"])
    assert "Traceback" not in result.stdout.str()


def test_graphs_are_compared(pytester: pytest.Pytester) -> None:
    body = (
        "def test_same(assert_same_graph):\n    assert assert_same_graph(graph(), graph()).same\n"
        "def test_other(assert_same_graph):\n    assert_same_graph(graph(), graph(3.0))"
    )
    result = run(pytester, body)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["structure differs (a has 4 ops, b has 4):", "Multiply *[[]2.0] in a, [[]3.0] in b"])


def test_models_are_compared(pytester: pytest.Pytester) -> None:
    body = (
        "def test_same(assert_same_numbers):\n    assert assert_same_numbers(graph(), graph(2.001), nmse=1e-3)\n"
        "def test_other(assert_same_numbers):\n    assert_same_numbers(graph(), graph(2.001), steps=(3, 1))"
    )
    result = run(pytester, body, "--junit-xml", "report.xml")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*step*NMSE*", "*output*NO*", "a (g) and b (g) differ in output * after step 1: *"])
    properties = {
        (case.get("name"), one.get("name")): one.get("value")
        for case in ElementTree.parse(pytester.path / "report.xml").iter("testcase")
        for one in case.iter("property")
    }
    assert properties["test_same", "ovpasses_equivalent"] == "True"
    assert properties["test_other", "ovpasses_equivalent"] == "False"
    assert "differ in output" in str(properties["test_other", "ovpasses_summary"])


def test_goldens_do_not_depend_on_names_of_nodes_or_order() -> None:
    model = tiny.stateful(tiny.Decoder(layers=2))
    golden = golden_text(model)
    assert golden_text(reorder(rename_nodes(model.clone()))) == golden
    assert golden_difference(golden, rename_variables(model.clone()), "it") == ""


def test_what_a_golden_shows_is_short_and_says_where() -> None:
    model, other = dump("llama-gqa", "stateful").model, dump("llama-gqa", "stateful").model
    of_type(other, "Concat")[-1].set_attribute("axis", 3)
    changed = golden_difference(golden_text(model), other, "it").splitlines()
    assert sum(line.startswith(("+Concat", "-Concat")) for line in changed) == 2
    wide = golden_difference(golden_text(model), dump("gemma4-mixed", "stateful-prerelayout").model, "it").splitlines()
    assert len(wide) == MOST_DIFF_LINES + 1
    with pytest.raises(CheckError, match="it: is no golden file"):
        golden_difference("something else\n", model, "it")


def test_bodies_are_listed() -> None:
    from tests.equivalence.test_structure import loop

    assert "    Add f32[1,2] (auto_broadcast=numpy) <- input" in golden_text(loop())
    assert "[2.0]" not in golden_difference(golden_text(loop()), loop(1.5), "it")
    assert "1.5" in golden_difference(golden_text(loop()), loop(1.5), "it")


def test_edges_between_like_ops_are_compared() -> None:
    def graph(first: bool) -> object:
        x, y = (tiny.parameter(name, [2], "f32") for name in "xy")
        from openvino import Model

        from ovpasses._openvino import ops

        ones = [ops.relu(ops.exp(x)), ops.relu(ops.exp(y))]
        return Model([tiny.result(ops.subtract(*ones[:: 1 if first else -1]).output(0), "z")], [x, y])

    found = golden_difference(golden_text(graph(True)), graph(False), "it")
    assert found


def test_names_of_files() -> None:
    test = Path("/t/test_a.py")
    assert golden_path(test, "test_b", "c") == Path("/t/goldens/test_a.test_b.c.txt")
    one, other = golden_path(test, "test_b[x/y]", ""), golden_path(test, "test_b[x y]", "")
    assert one != other
    assert re.fullmatch(r"test_a\.test_b-x-y\.[0-9a-f]{6}\.txt", one.name)


def test_the_entry_point() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\novpasses = "ovpasses.pytest_plugin"\n' in project


def test_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, ovpasses.pytest_plugin\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('openvino', 'numpy', 'rich')])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
