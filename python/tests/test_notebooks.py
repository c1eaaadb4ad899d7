"""The notebooks run from their first cell to their last."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    for needed in ("ipykernel", "pandas", "matplotlib", *(["ray"] if path.stem == "ray" else [])):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "stored without outputs"
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, timeout=None).execute()
