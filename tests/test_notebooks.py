"""The notebooks of the guide: valid, short, of the public interface, executed, and each ends with a picture.

That they run is what `make notebooks` shows, a job of its own in CI.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

import fullrank

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PICTURES = {"image/png", "image/svg+xml"}
LARGEST = 100_000
"""Bytes of a notebook with what it shows."""


def missing(code: str) -> Iterator[str]:
    """Names that a cell takes from the library and that are not there; of `fr` those that no page promises, too."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fr":
            if node.attr not in fullrank.__all__:
                yield f"fr.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fullrank":
            module = importlib.import_module(node.module or "")
            yield from (f"{node.module}.{name.name}" for name in node.names if not hasattr(module, name.name))


def test_there_are_five() -> None:
    assert len(NOTEBOOKS) == 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST
    assert 10 <= len(notebook.cells) <= 15 and notebook.cells[0].source.startswith("# ")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [name for cell in code for name in missing(cell.source)] == []
    shown = [one for cell in code for one in cell.outputs]
    assert {one.output_type for one in shown} <= {"execute_result", "display_data", "stream"}, "a cell failed"
    assert not any(one.get("name") == "stderr" for one in shown), "run docs/run_notebooks.py, which leaves it out"
    assert notebook.cells[-1] is code[-1]
    assert any(PICTURES & set(one.get("data", {})) for one in code[-1].outputs), "it does not end with a picture"


@pytest.mark.parametrize(
    "code", ["fr.trian('sasrec', store)", "from fullrank.serving.client import Clint", "print(fr.api)"]
)
def test_what_is_not_there_is_found(code: str) -> None:
    assert list(missing(code))
