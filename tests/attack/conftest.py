"""One folder of shared worlds for all processes of a run, and the watchdog of native code."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.frame import SHARED

NATIVE_SECONDS = 240
"""Behind the alarm of a case: code that no signal interrupts ends the worker, and pytest names the case."""


@pytest.fixture(scope="session", autouse=True)
def worlds(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """The folder that `shared` fills: one for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    home = (base if worker_id == "master" else base.parent) / "attack"
    home.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SHARED, str(home))
        yield


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """End a worker whose case no signal interrupts."""
    faulthandler.dump_traceback_later(NATIVE_SECONDS, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
