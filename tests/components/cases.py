"""Every kind of some rooms, for tests that run all of their checks."""

from typing import Any

import pytest
import torch

from discover import Pair, everything, load, name
from fullrank.testing import check_component

DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def every_kind(*rooms: str) -> Any:
    """One parameter `pair` for each kind. Nothing is imported before its test runs: a broken file fails alone."""
    return pytest.mark.parametrize("pair", everything(*rooms), ids=name)


def run_checks(pair: Pair) -> None:
    """Run all checks of a room on one of its kinds; the error names the check."""
    for device in DEVICES:
        check_component(load(pair), room=pair[0], device=device)
