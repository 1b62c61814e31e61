"""Which machine a figure was taken on, and whether anything else was running on it meanwhile."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

BUSY_LOAD = 0.25
"""Load average per core, above which the machine counts as busy before a run."""
BUSY_SHARE = 0.05
"""Share of all cores' time that others may take during a run that still counts as quiet."""


def record(root: Path) -> dict[str, Any]:
    """Hardware, threads and versions."""
    import torch

    import fullrank

    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "fullrank": fullrank.__version__,
        "commit": commit(root),
    }


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_bytes() -> int | None:
    """Memory that could be taken now without swapping; None where the system does not tell."""
    try:
        found = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None


def use_threads(count: int) -> None:
    """Let torch use this many threads, whatever the environment says."""
    import torch

    torch.set_num_threads(max(1, count))


def commit(root: Path) -> str | None:
    """The commit that is checked out, with ``+changes`` where tracked files differ from it."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True)
    except OSError:
        return None
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "") if head.returncode == 0 else None


def slug(machine: dict[str, Any]) -> str:
    """A file name's part: cores and processor."""
    return re.sub(r"[^a-z0-9]+", "-", f"{machine['cores']}x {machine['cpu']}".lower()).strip("-")


class Watch:
    """From its making until `record`: the load average, and what share of the machine others used."""

    def __init__(self) -> None:
        self.load = _load()
        self.begun, self.busy, self.own = time.perf_counter(), _busy_seconds(), _own_seconds()
        high = self.load is not None and self.load > BUSY_LOAD * cores()
        self.busy_at_start = f"the machine is busy (load average {self.load} on {cores()} cores)" if high else ""

    def record(self) -> dict[str, Any]:
        """`others_share` is None where the system does not tell (anything but Linux)."""
        busy, share = _busy_seconds(), None
        if busy is not None and self.busy is not None:
            others = (busy - self.busy) - (_own_seconds() - self.own)
            share = round(max(0.0, others / ((time.perf_counter() - self.begun) * (os.cpu_count() or 1))), 4)
        return {
            "load_before": self.load,
            "load_after": _load(),
            "others_share": share,
            "quiet": None if share is None else share <= BUSY_SHARE,
        }


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _busy_seconds() -> float | None:
    """CPU seconds that all processes (and a stealing hypervisor) have used on all cores since the start."""
    try:
        user, nice, system, _, _, irq, soft, steal = Path("/proc/stat").read_text().split()[1:9]
    except (OSError, ValueError):
        return None
    return sum(map(int, (user, nice, system, irq, soft, steal))) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _cpu() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()
