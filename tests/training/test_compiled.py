"""Runs `compiled_cases.py` in a process without checks of types: a compiled run is the run that it was."""

import pytest

from unwrapped import run_cases


@pytest.mark.slow
def test_a_compiled_run_is_the_same_run() -> None:
    assert run_cases("tests/training/compiled_cases.py") == 3
