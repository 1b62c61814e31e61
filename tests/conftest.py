"""What all tests share: thread counts, hypothesis settings, real data, durations, and who may start processes."""

from __future__ import annotations

import json
import multiprocessing.process as processes
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before anything imports torch or polars: two thread pools on the same cores slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "2")

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "build" / "durations.json"
"""Test -> CPU seconds of its call, of the last run of all tests; read by `tests/durations.py`."""
SLOWEST = 10

# Derandomized: a run of the tests is repeatable, and a failure is the change's, not the draw's.
settings.register_profile("fullrank", deadline=None, derandomize=True, max_examples=40, database=None)
settings.load_profile("fullrank")

_running: list[pytest.Item] = []
"""The test that runs now, while it is not marked `process`."""


def pytest_configure() -> None:
    sys.addaudithook(_refuse_processes)
    start = processes.BaseProcess.start

    def audited_start(self: Any) -> None:  # multiprocessing's own spawn raises no audit event
        _refuse_processes("os.fork", ())
        start(self)

    processes.BaseProcess.start = audited_start  # type: ignore[method-assign]


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """End a test that starts a Python process without saying so: `make test` has none, they cost seconds each."""
    if not _running or event not in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        return
    program = arguments[0] if arguments else "python"
    if event != "subprocess.Popen" or "python" in Path(os.fsdecode(program)).name:
        test = _running.pop()
        pytest.fail(f"{test.nodeid} starts a process: mark it with pytest.mark.process, or call the code in this one")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _running[:] = [] if item.get_closest_marker("process") else [item]
    try:
        return (yield)
    finally:
        _running.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    begin = time.process_time()
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_seconds", round(time.process_time() - begin, 3)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write what each test took into `RECORD`, and name the slowest."""
    reports = [r for group in ("passed", "failed") for r in terminalreporter.stats.get(group, ()) if r.when == "call"]
    seconds = {r.nodeid: dict(r.user_properties).get("cpu_seconds", r.duration) for r in reports}
    slowest = sorted(seconds, key=lambda test: -seconds[test])[:SLOWEST]
    if len(seconds) > SLOWEST:
        terminalreporter.section(f"slowest of {len(seconds)} tests, {sum(seconds.values()):,.0f} CPU seconds in all")
        for test in slowest:
            terminalreporter.write_line(f"{seconds[test]:7.2f}  {test}")
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(dict(sorted(seconds.items())), indent=0) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """``real_data("amazon-beauty")``: that folder of the real data, or the test is skipped with the reason.

    The folder is the environment variable FULLRANK_DATA, by default ``../shared/data`` beside the repository.
    """
    root = Path(os.environ.get("FULLRANK_DATA") or ROOT.parent / "shared" / "data")

    def folder(name: str) -> Path:
        if not (root / name).is_dir():
            pytest.skip(f"real data {name!r} is not in {root}; set FULLRANK_DATA to the folder that holds it")
        return root / name

    return folder
