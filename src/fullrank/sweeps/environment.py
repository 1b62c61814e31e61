"""What a number was measured on and with: hardware, and the version of this code."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fullrank import __version__


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, threads, accelerator, torch."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


@cache
def code() -> dict[str, Any]:
    """Version of fullrank; where it runs from a git checkout, the commit and whether its source was edited since.

    As it was at the first call: what a process has loaded does not change with the files.
    """
    here = Path(__file__).resolve().parents[1]
    if _git(here, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {"fullrank": __version__, "commit": None, "edited": None}
    edited = _git(here, "status", "--porcelain", "--", ".")
    return {"fullrank": __version__, "commit": _git(here, "rev-parse", "HEAD"), "edited": bool(edited)}


def cpu_model() -> str:
    """`AMD EPYC 7763 64-Core Processor` where the system tells, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says, or None where it is absent, fails or hangs."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
