"""A Ray cluster of two nodes on this machine, for the tests that carry the mark `cluster`."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

MEMORY = 100 * 2**20
"""Bytes of each node's shared memory."""


@contextmanager
def two_nodes(cpus: int = 1) -> Iterator[Any]:
    """A `ray.cluster_utils.Cluster` whose head and second node have so many CPUs each; gone when the block ends.

    The head has the resource `head`, the other one `second`.
    """
    pytest.importorskip("ray", reason="ray is not installed (pip install 'fullrank[ray]')")
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cpus, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster()
    try:
        cluster.add_node(**node, resources={"head": 1})
        cluster.add_node(**node, resources={"second": 1})
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def stopped_task(node: Any, *names: str) -> int | None:
    """A process of this node that is in the middle of a task whose name begins so, stopped; None where none is."""
    raylet = node.all_processes["raylet"][0].process.pid
    begins = tuple(f"ray::{name}".encode() for name in names)
    with suppress(OSError):  # of processes that end meanwhile
        for children in Path(f"/proc/{raylet}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                os.kill(child, signal.SIGSTOP)  # before it is looked at: it cannot end its task in between
                if Path(f"/proc/{child}/cmdline").read_bytes().startswith(begins):
                    return child
                os.kill(child, signal.SIGCONT)
    return None
