"""What all tests share: thread counts, hypothesis settings, and the folder of real data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

# Before anything imports torch or polars: two thread pools on the same cores slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "2")

import pytest
from hypothesis import settings

import typechecker

ROOT = Path(__file__).resolve().parent.parent

# Derandomized: a run of the tests is repeatable, and a failure is the change's, not the draw's.
settings.register_profile("fullrank", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("fullrank")


def pytest_runtest_setup() -> None:
    typechecker.begin_test()


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
