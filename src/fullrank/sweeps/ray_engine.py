"""The nodes of a Ray cluster, a task for each job. Satisfies `Engine`.

A task has the resources that were asked for, and of the store the path alone. Where its node or its process is lost the
job is handed in again and goes on from its last checkpoint, so run folders lie where every node sees them. Ray's own
retries are off: a job that ends its process each time (out of memory) is to end as a row with that error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullrank.core.checks import check_number, check_whole
from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.core.ray_cluster import ray_cluster, require_ray
from fullrank.sweeps.engine import Work, failed_row
from fullrank.sweeps.records import Row
from fullrank.sweeps.sent_work import SentWork

log = logger(__name__)

POLL_SECONDS = 5.0
"""How often it is looked whether nodes have come or gone while no job ends."""
LOST = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError", "OwnerDiedError")
"""Errors of Ray (`ray.exceptions`) about what ran a job, rather than the job."""


@dataclass(frozen=True)
class RayEngine:
    """Jobs as tasks on a Ray cluster (extra `ray`)."""

    address: str = "auto"
    """`auto`: the cluster that this machine belongs to; `local`: one is started here; or HOST:PORT of its head."""
    jobs: int | None = None
    """Jobs at a time, those that wait for a free node included; None: as many as the nodes have room for."""
    cpus: float = 1.0
    """CPUs of a job; it runs as many threads, at least one."""
    gpus: float = 0.0
    """GPUs of a job; a share lets several jobs use one."""
    device: str = "auto"
    """Where models run; auto is cuda for a job with a GPU, else cpu."""
    placed: Path | None = None
    """Folder of each node's local disk that the store is copied into, once per node; None: read where it lies."""
    tries: int = 4
    """How often a job is started whose node or process is lost."""

    def __post_init__(self) -> None:
        check_whole("tries", self.tries, 1, 1024)
        if self.jobs is not None:
            check_whole("jobs", self.jobs, 1, 10_000)
        for name in ("cpus", "gpus"):
            value = check_number(name, getattr(self, name))
            if not 0 <= value <= 1024 or (value > 1 and value != int(value)):
                raise UserError(
                    f"{name}={value:g}: give a number from 0 to 1024, above 1 a whole one", code="setting-out-of-range"
                )

    def check(self) -> None:
        """Raise `UserError` where there is no such cluster, or no node of it has room for a job."""
        require_ray(self.address)
        if self.address != "local":
            with ray_cluster(self.address) as ray:
                self._require_room(ray)

    def run(self, work: Iterable[Work]) -> Iterator[tuple[Work, Row]]:
        with ray_cluster(self.address) as ray:
            self._require_room(ray)
            yield from self._run(ray, iter(work))

    def _run(self, ray: Any, left: Iterator[Work]) -> Iterator[tuple[Work, Row]]:
        lost = tuple(getattr(ray.exceptions, name) for name in LOST)
        task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(_run_sent)
        running: dict[Any, tuple[Work, int]] = {}
        try:
            while True:
                places = self.jobs or self._places(ray)
                while len(running) < places and (one := next(left, None)) is not None:
                    running[self._submit(task, one)] = (one, 1)
                if not running:
                    return
                for ref in ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)[0]:
                    one, tried = running.pop(ref)
                    try:
                        row: Row = ray.get(ref)
                    except lost as error:
                        reason = type(error).__name__
                        if tried < self.tries:
                            log.info(f"{one.job.folder}: what ran it is lost ({reason}), it is handed in again")
                            running[self._submit(task, one)] = (one, tried + 1)
                            continue
                        row = failed_row(one.job, one.store, RuntimeError(f"lost {tried} times ({reason})"), 0.0)
                    except Exception as error:  # such as a node without this library
                        row = failed_row(one.job, one.store, error, 0.0)
                    yield one, row
        finally:
            for ref in running:
                ray.cancel(ref, force=True)
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=POLL_SECONDS)

    def _submit(self, task: Any, one: Work) -> Any:
        device = self.device if self.device != "auto" else "cuda" if self.gpus else "cpu"
        sent = SentWork.of(one, threads=max(1, int(self.cpus)), placed=self.placed)
        return task.options(name=one.job.folder).remote(sent, device)

    def _places(self, ray: Any) -> int:
        """How many jobs the nodes that are alive have room for, whoever else uses them."""
        asked = [(name, n) for name, n in (("CPU", self.cpus), ("GPU", self.gpus)) if n]
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return sum(min((int(node.get(name, 0) / n) for name, n in asked), default=1) for node in nodes)

    def _require_room(self, ray: Any) -> None:
        if self.jobs is None and not self._places(ray):
            raise UserError(
                f"no node of the Ray cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs for a job: ask for less, or "
                "give jobs= where nodes are still to come",
                code="no-room",
            )


def _run_sent(work: SentWork, device: str) -> Row:
    return work.run(device)
