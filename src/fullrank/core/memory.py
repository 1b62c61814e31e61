"""How much memory this process may still take: of the machine, of its control group, and of its own limit.

What is larger than that is refused before it is made, with its size in the sentence: a process
that takes more is killed without one. `keep_freed_memory` says what a process may keep of the
memory that it has freed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fullrank.core.errors import UserError

GROUPS = Path("/sys/fs/cgroup")
SMALL = 2**26
"""Bytes below which `require_memory` does not look: asking the system takes longer than a short answer."""
KEPT = 2**28
"""Bytes of freed memory that a process keeps at most at the end of its heap (`keep_freed_memory`)."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Two settings of `mallopt`, by their numbers in glibc's malloc.h."""


def keep_freed_memory() -> bool:
    """Have malloc keep the memory of one batch for the next; whether it does.

    glibc gives the end of its heap back once 64 MiB of it are free, and tensors of 32 MiB and more
    at once. The next batch gets the same pages again, each by a fault that costs more than filling
    it. A variable `MALLOC_...` of the environment has the last word, and where the library is not
    glibc nothing changes.
    """
    if not sys.platform.startswith("linux") or any(
        name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # The largest tensors stay apart, so that the heap has no holes of their size. Setting one
    # threshold alone would keep glibc from raising the other.
    return mallopt is not None and bool(mallopt(M_TRIM_THRESHOLD, KEPT) and mallopt(M_MMAP_THRESHOLD, 2**25))


def available_bytes() -> int | None:
    """Bytes that this process may still take, with swap; None where the system does not say."""
    limits = [*_machine(), *_groups(), *_limit()]
    return max(0, min(limits)) if limits else None


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Raise `UserError` where `what` needs more bytes than there are; `remedy` says what to do."""
    if needed <= SMALL:
        return
    free = available_bytes()
    if free is not None and needed > free:
        raise UserError(
            f"{what} takes {gibibytes(needed)} of memory and {gibibytes(free)} are free: {remedy}",
            code="too-large-for-memory",
        )


def gibibytes(count: int) -> str:
    """A number of bytes in words, such as `1.5 GiB`."""
    return f"{count / 2**30:,.1f} GiB"


def _machine() -> Iterator[int]:
    """Free bytes of the machine."""
    entries = {}
    for line in _lines(Path("/proc/meminfo")):
        name, _, value = line.partition(":")
        entries[name] = int(value.split()[0]) * 1024 if value.split() else 0
    if "MemAvailable" in entries:
        yield entries["MemAvailable"] + entries.get("SwapFree", 0)


def _groups() -> Iterator[int]:
    """Free bytes of the control groups (version 2) of this process; file caches are free."""
    for line in _lines(Path("/proc/self/cgroup")):
        if line.startswith("0::"):
            group = GROUPS / line.removeprefix("0::").strip().lstrip("/")
            while group.is_relative_to(GROUPS):
                most, used = _lines(group / "memory.max"), _lines(group / "memory.current")
                if most and used and most[0].strip().isdecimal():
                    stat = dict(entry.split()[:2] for entry in _lines(group / "memory.stat") if len(entry.split()) == 2)
                    yield int(most[0]) - int(used[0]) + int(stat.get("inactive_file", 0))
                group = group.parent


def _limit() -> Iterator[int]:
    """Free bytes of the address space of this process (`ulimit -v`)."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = next(iter(_lines(Path("/proc/self/statm"))), "").split()
    if soft != resource.RLIM_INFINITY and pages:
        yield soft - int(pages[0]) * os.sysconf("SC_PAGE_SIZE")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
