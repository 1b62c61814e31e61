"""The check of `benchmarks.sharded`: green as it is, red where two processes train something else than one."""

from __future__ import annotations

import pytest

from benchmarks import sharded
from benchmarks.harness import Wrong

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def test_the_check_is_green() -> None:
    sharded.check()


def test_another_training_is_noticed() -> None:
    with pytest.raises(Wrong, match="loss of two processes"):
        sharded.check(("training.lr=0.01",))
