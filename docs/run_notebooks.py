"""Execute the notebooks and keep what they show: `python docs/run_notebooks.py [NAME ...]`, or `make notebooks`.

What they show stands in the repository, so that readers of the site or of the file see the pictures and building the
pages trains nothing. Each runs in an empty folder, which is then deleted. Messages, numbers of executions and times are
left out: what differs behind a change is what the change did. Fails at the first cell that does.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "notebooks"
SECONDS = 240
"""The longest that one may take."""


def execute(path: Path) -> float:
    """Seconds that a notebook took, with the kernel's start; the file is then as it ended."""
    notebook = nbformat.read(path, as_version=4)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=where).execute()
    seconds = time.perf_counter() - begun
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [shown for shown in cell.outputs if shown.get("name") != "stderr"]
            for shown in cell.outputs:
                if "execution_count" in shown:
                    shown["execution_count"] = None
                if "metadata" in shown:
                    shown["metadata"] = {}
    nbformat.write(notebook, path)
    return seconds


def main() -> None:
    names = sys.argv[1:] or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    took = {}
    for name in names:
        took[name] = execute(NOTEBOOKS / f"{name}.ipynb")
        print(f"{took[name]:6.1f} s  {name}", flush=True)
    print(f"{sum(took.values()):6.1f} s  together")


if __name__ == "__main__":
    main()
