"""Two OpenVINO releases: one module knows the difference, and what the older one cannot do is refused in one line."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino import Core, Model

import ovpasses as ovp
from models import tiny_graphs as tiny
from ovpasses import _openvino
from ovpasses._openvino import LACKS_GGUF, Output, ops, replace_source
from ovpasses.importers import gguf, internal_ops, ir

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for folder in ("ovpasses", "models", "tests") for path in (ROOT / folder).rglob("*.py"))
ONE = ROOT / "ovpasses" / "_openvino.py"

# What openvino itself has on both releases, and its submodules that are on both.
BOTH = {
    *("AsyncInferQueue", "CompiledModel", "Core", "Dimension", "InferRequest", "Layout", "Model", "Op", "PartialShape"),
    *("Shape", "Tensor", "Type", "compile_model", "convert_model", "save_model", "serialize"),
}
MODULES = {"openvino", "openvino.frontend"}


def openvino_imports(path: Path) -> list[tuple[str, str]]:
    """Every ``from openvino... import name`` (or ``import openvino...``) of a file, as module and name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "openvino":
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "openvino"]
    return found


def test_names_that_differ_come_from_one_module() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: take {module}.{name} from ovpasses._openvino"
        for path in SOURCES
        if path != ONE
        for module, name in openvino_imports(path)
        if module not in MODULES or (module == "openvino" and name not in {*BOTH, ""})
    ]
    assert not wrong, "\n".join(wrong)


def test_the_imports_are_seen(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import openvino.runtime as ov\ndef f():\n    from openvino import Node, Model\n")
    found = openvino_imports(tmp_path / "m.py")
    assert found == [("openvino.runtime", ""), ("openvino", "Node"), ("openvino", "Model")]


def test_nothing_else_asks_which_release_it_is() -> None:
    asking = re.compile(r"openvino\.__version__|openvino\.runtime|except ImportError")
    optional = (
        "runtime/text.py",
        "runtime/replaced_file.py",
        "bench/genai.py",
        "bench/plot.py",
    )  # other packages' imports
    for path in SOURCES:
        allowed = (ONE, *(ROOT / "ovpasses" / name for name in optional))
        if path.is_relative_to(ROOT / "ovpasses") and path not in allowed:
            assert not asking.search(path.read_text()), path


def test_both_releases_have_the_names_that_are_taken_from_openvino() -> None:
    import openvino

    assert [name for name in sorted(BOTH) if not hasattr(openvino, name)] == []


# Refusals, as an older release makes them ----------------------------------------------------------------------------


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_openvino, "LACKS_GGUF", True)
    monkeypatch.setattr(ir, "RELEASE", "2024.6.0")
    monkeypatch.setattr(internal_ops, "add_operation", lambda core, op: False)


class _NoFrontEnd:
    def load_by_framework(self, framework: str) -> Any:
        raise RuntimeError(f"Check 'false' failed at manager.cpp:64:\nFrontEnd for Framework {framework} is not found")


def refusal(path: Path) -> str:
    with pytest.raises(ovp.ModelReadError) as raised:
        ovp.read_model(path)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message


def test_a_gguf_is_refused(monkeypatch: pytest.MonkeyPatch, recorded: Path) -> None:
    monkeypatch.setattr(gguf, "FrontEndManager", _NoFrontEnd)
    message = refusal(recorded / "gguf/tiny-llama-gqa.gguf")
    assert message.endswith("no GGUF frontend (FrontEnd for Framework gguf is not found); install openvino>=2026.4")


@pytest.mark.usefixtures("older")
def test_a_dump_with_an_internal_op_is_refused(recorded: Path) -> None:
    message = refusal(recorded / "after/qwen35/stateless/model.xml")
    assert "GatedDeltaNet_338 is the internal op GatedDeltaNet, which OpenVINO 2024.6.0 cannot be taught" in message
    assert message.endswith("; install openvino>=2026.4")


@pytest.mark.usefixtures("older")
def test_a_dump_without_one_is_read(recorded: Path) -> None:
    assert ovp.read_model(recorded / "after/llama-gqa/stateful/model.xml").info.n_vocab == 320


@pytest.mark.usefixtures("older")
def test_an_op_of_a_newer_opset_is_refused(tmp_path: Path, recorded: Path) -> None:
    source = recorded / "after/llama-gqa/stateful/model.xml"
    (tmp_path / "m.bin").write_bytes(source.with_suffix(".bin").read_bytes())
    xml = source.read_text().replace('type="Add" version="opset1"', 'type="Add" version="opset99"', 1)
    (tmp_path / "m.xml").write_text(xml)
    message = refusal(tmp_path / "m.xml")
    assert "from unsupported opset: opset99 (this is OpenVINO 2024.6.0); install openvino>=2026.4" in message


@pytest.mark.parametrize("name", ["gguf/tiny-llama-gqa.gguf", "after/qwen35/stateless/model.xml"])
def test_this_release_reads_or_refuses(recorded: Path, name: str) -> None:
    if LACKS_GGUF:
        assert refusal(recorded / name).endswith("; install openvino>=2026.4")
    else:
        assert ovp.read_model(recorded / name).info.layers


def test_a_newer_release_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_openvino, "LACKS_GGUF", False)
    assert _openvino.upgrade() == "install a newer openvino"


# Differences ---------------------------------------------------------------------------------------------------------


def test_an_operation_in_python() -> None:
    assert _openvino.add_operation(Core(), internal_ops.GatedDeltaNet) is not LACKS_GGUF


def test_a_result_keeps_its_name_when_it_is_fed_from_elsewhere() -> None:
    x = tiny.parameter("x", [2], "f32")
    old, new = ops.relu(x), ops.sigmoid(x)
    old.output(0).get_tensor().set_names({"inner"})
    model = Model([tiny.result(old.output(0), "y")], [x])
    replace_source(model.get_results()[0].input(0), new.output(0))
    model.validate_nodes_and_infer_types()
    assert "y" in model.outputs[0].get_names()
    assert "y" not in old.output(0).get_names()
    found = Core().compile_model(model, "CPU")({"x": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(found["y"], [0.5, 0.5])


def test_nodes_are_told_apart_by_identity() -> None:
    x = tiny.parameter("x", [2], "f32")
    source: Output = ops.relu(x).input_value(0)
    assert source.get_node() is x
    assert source == x.output(0)
