"""How much memory there is, by files that say so."""

import platform
import sys
from pathlib import Path

import pytest

from folders import python
from fullrank.core import memory
from refusals import refused


def test_the_least_of_machine_group_and_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("1000\n")
    (tmp_path / "a" / "memory.current").write_text("900\n")
    (tmp_path / "a" / "memory.stat").write_text("anon 850\ninactive_file 50\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("900\n")
    files = {
        "/proc/meminfo": ["MemTotal: 9 kB", "MemAvailable: 4 kB", "SwapFree: 1 kB"],
        "/proc/self/cgroup": ["0::/a/b"],
    }
    real = memory._lines
    monkeypatch.setattr(memory, "_lines", lambda path: files.get(str(path)) or real(path))
    monkeypatch.setattr(memory, "GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_limit", lambda: iter(()))
    assert memory.available_bytes() == 1000 - 900 + 50
    files["/proc/meminfo"][1] = "MemAvailable: 0 kB"
    files["/proc/meminfo"][2] = "SwapFree: 0 kB"
    assert memory.available_bytes() == 0
    with refused("too-large-for-memory", "a table", "0.0 GiB", "smaller"):
        memory.require_memory(memory.SMALL + 1, "a table", "make it smaller")


def test_a_system_that_does_not_say_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_lines", lambda path: [])
    assert memory.available_bytes() is None
    memory.require_memory(2**60, "a table", "make it smaller")


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's here")
def test_the_limit_of_the_process_counts() -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "from fullrank.core.memory import available_bytes\nprint(available_bytes())"
    )
    assert 0 < int(python(script).stdout) < 2**30


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's malloc")
def test_freed_memory_is_kept_for_the_next_batch() -> None:
    """Blocks of 20 MiB that are freed together and taken again bring no new pages; where a variable of the environment
    has the last word they do, each time."""
    script = (
        "import resource, torch\nfrom fullrank.core.memory import keep_freed_memory\nkept = keep_freed_memory()\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    blocks = [torch.ones(5 * 2**20) for _ in range(5)]\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "first = [faults() for _ in range(3)]\nprint(kept, faults())"
    )
    kept, faults = python(script).stdout.split()
    assert kept == "True" and int(faults) < 100
    kept, faults = python(script, MALLOC_MMAP_THRESHOLD_="131072").stdout.split()
    assert kept == "False" and int(faults) > 5_000
