"""What tests of folders and of other processes share: names in a folder, and Python code that runs by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def left(folder: Path) -> list:
    return sorted(path.name for path in folder.iterdir())


def python(code: str, *arguments: object, ends: int = 0, **environment: str) -> subprocess.CompletedProcess:
    """Run code with the imports of this process, and wait for this exit status."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == ends, f"{done.returncode}: {done.stderr[-800:]}"
    return done
