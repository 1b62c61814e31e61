"""Every check of a room, on every kind that it has, on every device: what the tests of components are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from discover import Pair, everything, load, name
from fullrank.testing import checks, checks_of, name_of

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
DEVICES = ("cpu", pytest.param("cuda", marks=NO_GPU))


def every_check(room: str) -> Callable[[Any], Any]:
    """Parameters `pair`, `check` and `device`. No kind is imported before its tests run: a broken file fails alone."""

    def marked(test: Any) -> Any:
        of_device = pytest.mark.parametrize("device", DEVICES)
        of_check = pytest.mark.parametrize("check", [name_of(check) for check in checks_of(room)])
        return of_device(of_check(pytest.mark.parametrize("pair", everything(room), ids=name)(test)))

    return marked


def run_check(pair: Pair, check: str, device: str) -> None:
    """Run one check of a room on one of its kinds."""
    dict(checks(load(pair), room=pair[0]))[check](device)
