"""Command lines in a process of their own, for what may end or hold up the process: native code, memory, signals."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.attack.frame import SECONDS, Said, patience


def spawn(*words: object, seconds: float = SECONDS + 10, memory: int | None = None) -> Said:
    """Run ``python -m fullrank WORDS`` with at most `memory` bytes of address space; its whole group is ended in time.

    The ten seconds are those of starting Python on a busy machine.
    """
    given = tuple(str(word) for word in words)
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "fullrank", *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="backslashreplace", start_new_session=True, env=environment(),
        preexec_fn=None if memory is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
    )  # fmt: skip
    hung = False
    try:
        out, err = process.communicate(timeout=seconds * patience())
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        hung = True
    return Said(given, process.returncode, out, err, time.perf_counter() - begun, hung)


def environment() -> dict[str, str]:
    """This process's environment, with one thread and the package that is imported here."""
    import fullrank

    source = str(Path(fullrank.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
