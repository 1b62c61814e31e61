"""Files of tests that run in a process of their own, in which no function is wrapped by a check of its types.

Triton reads the source of a kernel and torch.compile the code of a model; both see the wrapper there. Such files have
no name that pytest would collect (`..._cases.py`); a test beside them runs them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_cases(file: str, **environment: str) -> int:
    """Tests of the file that passed. AssertionError, with what pytest said, where one failed or was skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    done = subprocess.run(
        [*command, str(ROOT / file)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and passed and "skipped" not in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
    return int(passed[1])
