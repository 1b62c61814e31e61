"""What all tests share: thread counts, hypothesis settings, real data, durations, and who may start processes."""

import gc
import json
import multiprocessing.process as processes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before anything imports torch or polars: two thread pools on the same cores slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "2")
# A recipe by its name trains in fp32 on every machine; tests of bf16 name it.
os.environ["FULLRANK_BF16"] = "0"

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = {"slow", "process", "page", "redis", "cluster"}
"""Marks of the tests that `make test` leaves out."""
SLOWEST = 10

# Derandomized: a run of the tests is repeatable, and a failure is the change's, not the draw's.
settings.register_profile("fullrank", deadline=None, derandomize=True, max_examples=40, database=None)
settings.load_profile("fullrank")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script began with &
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Nobody pulls the plug under a test: waiting for the disk, 18 seconds in all, would find nothing.
os.fsync = os.fstat  # type: ignore[assignment]

_running: list[pytest.Item] = []
"""The test of `make test` that runs now."""


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test, of the wheel in an empty environment, begins first: at the end one worker would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_packaging.py")


def pytest_collection_finish() -> None:
    """Modules and tests live until the end: the collector of garbage need not walk them again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what is left at exit would be told as a leak, of triton's bindings


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _running[:] = [] if LEFT_OUT & {mark.name for mark in item.iter_markers()} else [item]
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


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name the slowest tests, and write what each took (CPU seconds of its call) for `tests/durations.py`."""
    reports = [r for group in ("passed", "failed") for r in terminalreporter.stats.get(group, ()) if r.when == "call"]
    seconds = {r.nodeid: dict(r.user_properties).get("cpu_seconds", r.duration) for r in reports}
    if len(seconds) <= SLOWEST:
        return
    terminalreporter.section(f"slowest of {len(seconds)} tests, {sum(seconds.values()):,.0f} CPU seconds in all")
    for test in sorted(seconds, key=lambda test: -seconds[test])[:SLOWEST]:
        terminalreporter.write_line(f"{seconds[test]:7.2f}  {test}")
    if config.getoption("jaxtyping_packages"):
        record, recorded = "durations_all.json", set(seconds)
    else:
        record, recorded = "durations.json", {r.nodeid for r in reports if not LEFT_OUT & set(r.keywords)}
    (ROOT / "build").mkdir(exist_ok=True)
    text = json.dumps({test: seconds[test] for test in sorted(recorded)}, indent=0)
    (ROOT / "build" / record).write_text(text + "\n", encoding="utf-8")


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
