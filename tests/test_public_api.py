"""The public interface is that of the snapshot: what goes or changes its default breaks somebody's code or files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from public_api import SNAPSHOT


@pytest.mark.process
def test_the_public_interface_is_that_of_the_snapshot():
    # In a process of its own: the types that tests check wrap what is to be described.
    command = [sys.executable, str(Path(SNAPSHOT).with_suffix(".py")), "--print"]
    now = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    then = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    assert now == then, "meant? write the snapshot anew: python tests/public_api.py"
