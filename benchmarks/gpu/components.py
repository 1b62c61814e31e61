"""The component checks (`tests/components`) on the device: pytest's own selection of their cases by device."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu.device import Where
from benchmarks.harness import ROOT

SECONDS = 150
"""After which what is left of the checks is not waited for."""
WORKERS = 4


def rows(where: Where) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "not slow", "--color=no"]
    command += ["-o", "addopts=--import-mode=importlib"]  # Triton reads kernels that no check of types wraps
    if where.small:
        command += ["tests/components/test_weightings.py", "-k", "cpu and uniform or cpu and popularity"]
    else:
        command += ["tests/components", "-k", where.device.type]
        command += ["-n", str(WORKERS)] if find_spec("xdist") else []
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        try:
            code: int | None = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(30)
            code = None
        out.seek(0)
        text = out.read()
    passed, failed = len(re.findall(r"\bPASSED\b", text)), sorted(set(re.findall(r"\bFAILED\b (\S+)", text)))
    failed += [one for one in re.findall(r"(\S+::\S.*?) FAILED\b", text) if one not in failed]
    # pytest says 5 where nothing was selected
    right = not failed and passed > 0 and code in (0, None)
    row = {"checks": passed, "failed": failed[:50], "all_reached": code is not None, "right": right}
    yield row if right or failed else row | {"error": text.strip()[-300:]}
