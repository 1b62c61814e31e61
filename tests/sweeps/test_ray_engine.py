"""Sweeps on a Ray cluster of two nodes, one of which is killed. `make test MARK=cluster` runs these."""

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fullrank.core.readers import read_jsonl
from fullrank.parallel.ray import RayEngine
from tests.ray_nodes import stopped_task, two_nodes
from tests.training.conftest import same_weights

from .conftest import Sweeps, tiny
from .test_engine import lasting

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cheap")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_nodes() as found:
        yield found


def test_a_killed_node_costs_no_row_and_doubles_none(
    out: Path, tmp_path: Path, cluster: Any, caplog: pytest.LogCaptureFixture, swept: Sweeps
) -> None:
    """Twelve jobs, a CPU on each node. When three rows are there the second node is killed in the middle of a job.

    The process of that job is stopped first: running, it might end its job before it sees that its node is gone.
    """
    grid = tiny("[sasrec, gru4rec]", seeds=(0, 1, 2, 3, 4, 5), settings={"training.max_epochs": 12})
    engine, second = RayEngine(cluster.address), next(iter(cluster.worker_nodes))
    killed = list[int]()

    def kill() -> None:
        while len(written()) < 3 or (stopped := stopped_task(second, "sasrec", "gru4rec")) is None:
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)
        os.kill(stopped, signal.SIGKILL)
        killed.append(len(written()))

    def written() -> list[Any]:
        return read_jsonl(out / "rows.jsonl") if (out / "rows.jsonl").exists() else []

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    with caplog.at_level(logging.INFO, logger="fullrank"):
        rows = swept(grid, engine=engine)
    thread.join(30)
    assert killed and killed[0] < 12, "the node was lost while jobs were left"
    assert "is handed in again" in caplog.text, "a job was on it"
    lines = Counter((row["cell"], row["seed"]) for row in written())
    assert len(lines) == 12 and set(lines.values()) == {1} and not any(row.get("error") for row in rows)
    here = swept(grid, tmp_path / "here")
    for row, other in zip(lasting(rows), lasting(here), strict=True):
        assert row == {**other, "resumed_at_step": row["resumed_at_step"]}
    assert all(same_weights(out / n, tmp_path / "here" / n) for n in ("cells/sasrec-seed5", "cells/gru4rec-seed0"))
