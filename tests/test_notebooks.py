"""The notebooks run from top to bottom."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "scripts/notebooks").glob("*.ipynb"))


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/svg+xml" in data for data in shown) == 1
    assert any("text/html" in data for data in shown)
