"""Thirty planted faults: each patch beside this file turns a test of `make test` red.

A patch says on its first line which test must catch it (``Caught by: tests/metrics/test_ctr.py::test_logloss``, of a
parametrised test all cases or ``[one]``), applies with ``git apply``, and changes a few lines of `src/`. A plant that
stays green is a hole in `make test`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANTS = sorted(Path(__file__).parent.glob("*.patch"))
SELECTED = "not (slow or process or page or redis or cluster)"
"""What `make test` runs."""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """The process of `server.py`: importing torch, lightning and the rest anew for each plant takes longest."""
    command = [sys.executable, str(Path(__file__).with_name("server.py"))]
    environment = os.environ | {"FULLRANK_CHECKS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        yield process
        process.stdin.close()


def planted(patch: Path, root: Path) -> Path:
    """A copy of the tree with the fault in it; what tests only read is linked."""
    root.mkdir()
    for path in ROOT.iterdir():
        if path.name in ("src", "tests"):
            shutil.copytree(path, root / path.name)  # with what is compiled, which keeps its times
        elif not path.name.startswith((".", "build")):
            (root / path.name).symlink_to(path)
    subprocess.run(["git", "apply", "--recount", patch], cwd=root, check=True)
    return root


@pytest.mark.process
@pytest.mark.parametrize("patch", PLANTS, ids=lambda patch: patch.stem)
def test_a_planted_fault_turns_its_test_red(patch: Path, server: subprocess.Popen[str], tmp_path: Path) -> None:
    first = patch.read_text(encoding="utf-8").partition("\n")[0]
    test = first.removeprefix("Caught by: ")
    assert re.fullmatch(r"Caught by: \S+\.py::\S+", first), "say on the first line which test catches it"
    root, said = planted(patch, tmp_path / "root"), tmp_path / "said"
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-m", SELECTED]
    print(json.dumps({"root": str(root), "said": str(said), "words": [*options, test]}), file=server.stdin, flush=True)
    code, told = server.stdout.readline().strip(), said.read_text(encoding="utf-8")
    assert code == "1", f"green, or not run: {code} {told[-2000:]}"
    assert re.search(rf"^FAILED {re.escape(test)}(\[| |$)", told, re.M), told[-2000:]


def test_there_are_thirty() -> None:
    assert len(PLANTS) >= 30
