"""The README's Python runs, its tables name what there is, and its diagrams cover every pass."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovpasses as ovp
from ovpasses._openvino import ops
from ovpasses.pipeline import PASSES
from ovpasses.runtime import devices, plan

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def snippets(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_python_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for code in snippets(README, "python"):
        names: dict[str, Any] = {}
        exec(code, names)
        assert names["logits"].shape == (1, 320)
        assert names["session"].position == 4


def test_every_pass_is_described() -> None:
    assert set(re.findall(r"^\*\*(\w+)\*\*:", README, re.MULTILINE)) == set(PASSES)


def test_every_variable_is_in_the_table() -> None:
    known = {value for name, value in {**vars(devices), **vars(plan)}.items() if name.endswith("_VARIABLE")} | {
        "NPU_COMPILATION_MODE_PARAMS"
    }
    assert known <= set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))


def test_scripts_are_there_and_can_be_run() -> None:
    for command in ("scripts/quickstart", "scripts/test", ".ci/run"):
        assert os.access(ROOT / command, os.X_OK), command
    for path in re.findall(r"`((?:scripts|models|ovpasses)/[\w/.-]+)", README):
        assert (ROOT / path).exists(), path


def test_the_pass_of_the_guide_works() -> None:
    (code,) = snippets((ROOT / "ovpasses/passes/README.md").read_text(), "python")
    names: dict[str, Any] = {}
    exec(code, names)
    x = ops.parameter([2], np.float32)
    model = openvino.Model([ops.result(ops.relu(ops.relu(x)))], [x])
    report = ovp.Pipeline([names["DropReluAfterRelu"]()]).run(model)
    assert (report.passes[0].candidates, report.rewritten) == (2, 1)
    assert [op.get_type_name() for op in model.get_ordered_ops()] == ["Parameter", "Relu", "Result"]
