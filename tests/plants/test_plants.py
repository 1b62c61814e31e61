"""Thirty planted faults: each patch beside this file turns tests of `make test` red.

A patch says on its first line which test files must catch it (``Caught by: tests/metrics/test_lists.py``), applies
with ``git apply``, and changes a few lines of `src/`. A plant that stays green is a hole in `make test`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANTS = sorted(Path(__file__).parent.glob("*.patch"))
SELECTED = "not (slow or process or page or redis or cluster)"
"""What `make test` runs."""


def planted(patch: Path, root: Path) -> Path:
    """A copy of the tree with the fault in it; what tests only read is linked."""
    for path in ROOT.iterdir():
        if path.name in ("src", "tests"):
            shutil.copytree(path, root / path.name)  # with what is compiled, which keeps its times
        elif not path.name.startswith((".", "build")):
            (root / path.name).symlink_to(path)
    subprocess.run(["git", "apply", "--recount", patch], cwd=root, check=True)
    return root


@pytest.mark.process
@pytest.mark.parametrize("patch", PLANTS, ids=lambda patch: patch.stem)
def test_a_planted_fault_turns_its_tests_red(patch: Path, tmp_path: Path) -> None:
    first = patch.read_text(encoding="utf-8").partition("\n")[0]
    files = first.removeprefix("Caught by: ").split()
    assert first.startswith("Caught by: ") and files, "say on the first line which test files catch it"
    root = planted(patch, tmp_path)
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "FULLRANK_CHECKS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", SELECTED, *files]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    said = done.stdout[-2000:] + done.stderr[-500:]
    assert done.returncode == 1, f"green, or not run: {said}"
    assert re.search(rf"^FAILED ({'|'.join(map(re.escape, files))})::", done.stdout, re.M), said


def test_there_are_thirty() -> None:
    assert len(PLANTS) >= 30
