"""The check of `benchmarks.ray`: green as it is, red where another process measures something else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from benchmarks import ray
from benchmarks.harness import Wrong
from fullrank.sweeps.engine import Local, Work


@pytest.mark.slow
def test_the_check_is_green() -> None:
    ray.check()


def test_other_metrics_are_noticed() -> None:
    class Other:
        def __init__(self, jobs: int) -> None:
            pass

        def run(self, work: Iterable[Work]) -> Iterator[tuple[Work, Any]]:
            yield from ((one, {**row, "metrics": {}}) for one, row in Local().run(work))

    ray.check(lambda jobs: Local())
    with pytest.raises(Wrong, match="other metrics"):
        ray.check(Other)
