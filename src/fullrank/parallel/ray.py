"""The nodes of a Ray cluster, a task for each item; the cluster is the one that is there, one at an
address, or a small one started on this machine.

Ray's own retries are off: an item that ends its process each time (out of memory) is to end with
that error. Where its node or its process is lost it is handed in again, so what tasks write lies
where every node sees it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fullrank.core.checks import check_number, check_that, check_whole
from fullrank.core.errors import UserError, no_effect, package, reason_line
from fullrank.parallel import POLL_SECONDS, Attempt, Outcomes, Runner, pull

A = TypeVar("A")
R = TypeVar("R")

LOST = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError", "OwnerDiedError")
"""Errors of Ray (`ray.exceptions`) about what ran an item, rather than the item."""

STORE_BYTES = 128 * 2**20
"""Shared memory of a cluster started here: what we send through it are paths and rows."""
ANSWER_SECONDS = 10.0
"""How long the head of a cluster may take to accept a connection."""


def require_ray(address: Any) -> Any:
    """The module `ray`. Raises `UserError` where `address` is none, or the package is missing."""
    name = address if isinstance(address, str) else ""
    host, _, port = name.rpartition(":")
    sound = name in ("auto", "local") or bool(host and port.isascii() and port.isdigit())
    allowed = " (allowed: auto, the Ray cluster of this machine; local, one that is started here; HOST:PORT of a head)"
    check_that(sound, "address", address, allowed, code="invalid-address")
    return package("ray", "ray", "this")


@contextmanager
def ray_cluster(address: str) -> Iterator[Any]:
    """The module `ray`, connected to the cluster at `address` (`auto`, `local`, or `HOST:PORT`) while the block runs.

    A connection that this process has already is used and stays; an address of another cluster is
    then an error. Raises `UserError`, also where no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless the user asks for it
    ray = require_ray(address)
    if ray.is_initialized():
        used = ray.get_runtime_context().gcs_address
        if address not in ("auto", used):
            why = f"since this process is connected to the Ray cluster at {used}"
            raise no_effect(f"the address {address!r}", why, "give auto, or leave that one by ray.shutdown()")
        yield ray
        return
    options: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        _require_answer(address)
        ray.init(address=address, logging_level=logging.WARNING, **(options if address == "local" else {}))
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster could be reached at {address!r} ({reason_line(error)}); start one with `ray start "
            "--head`, name its HOST:PORT, or take local",
            code="ray-not-reached",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Raise `OSError` where nobody listens at HOST:PORT: Ray itself tries again for minutes."""
    if address not in ("auto", "local"):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS):
            pass


@dataclass(frozen=True)
class RayEngine(Runner):
    """Jobs as tasks on a Ray cluster (extra `ray`)."""

    address: str = "auto"
    """`auto`: this machine's cluster; `local`: a new one here; or HOST:PORT of its head."""
    jobs: int | None = None
    """Jobs at a time, waiting ones included; None: as many as the nodes have room for."""
    cpus: float = 1.0
    """CPUs of a job; it runs as many threads, at least one."""
    gpus: float = 0.0
    """GPUs of a job; a share lets several jobs use one."""
    device: str = "auto"
    """Where models run; auto is cuda for a job with a GPU, else cpu."""
    placed: Path | None = None
    """A node's local folder that the store is copied into; None: read where it lies."""
    tries: int = 4
    """How often a job is started whose node or process is lost."""
    remote = True

    def __post_init__(self) -> None:
        check_whole("tries", self.tries, 1, 1024)
        if self.jobs is not None:
            check_whole("jobs", self.jobs, 1, 10_000)
        for name in ("cpus", "gpus"):
            count = check_number(name, getattr(self, name))
            sound = 0 <= count <= 1024 and (count <= 1 or count == int(count))
            check_that(sound, name, count, ": give 0 to 1024, above 1 a whole number", code="setting-out-of-range")
        if self.device == "auto":
            object.__setattr__(self, "device", "cuda" if self.gpus else "cpu")

    def check(self) -> None:
        """Raise `UserError` where there is no such cluster, or no node of it has room for a job."""
        require_ray(self.address)
        if self.address != "local":
            with ray_cluster(self.address) as ray:
                self._require_room(ray)

    def map(self, task: Callable[[A], R], items: Iterable[A]) -> Outcomes[A, R]:
        with ray_cluster(self.address) as ray:
            self._require_room(ray)
            lost = tuple(getattr(ray.exceptions, name) for name in LOST)
            remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(Attempt.sent)
            attempt, refs = ray.put(Attempt(task, max(1, int(self.cpus)))), dict[Future[Any], Any]()

            def start(item: A) -> Future[R | Exception]:
                ref = remote.options(name=str(item)).remote(attempt, item)
                refs[future := ref.future()] = ref
                future.add_done_callback(refs.pop)  # or Ray would keep every result
                return future

            try:
                for item, outcome in pull(start, lambda: self.jobs or self.room(ray), items, self.tries, lost):
                    if isinstance(outcome, ray.exceptions.RayError):  # such as a node without this library
                        reason = str(outcome).strip().splitlines()[-1][:300]
                        outcome = UserError(f"Ray could not do it: {reason}", code="ray-failed")
                    yield item, outcome
            finally:
                for ref in (running := [*refs.values()]):
                    ray.cancel(ref, force=True)
                if running:
                    ray.wait(running, num_returns=len(running), timeout=POLL_SECONDS)

    def share(self, files: Callable[[], dict[str, bytes]]) -> RayObject:
        import ray

        return RayObject(ray.put(files()))

    def room(self, ray: Any) -> int:
        """How many jobs the nodes that are alive have room for, whoever else uses them."""
        wanted = [(name, n) for name, n in (("CPU", self.cpus), ("GPU", self.gpus)) if n]
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return sum(min((int(node.get(name, 0) / n) for name, n in wanted), default=1) for node in nodes)

    def _require_room(self, ray: Any) -> None:
        if self.jobs is None and not self.room(ray):
            raise UserError(
                f"no node of the Ray cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs for a job: ask for less, or "
                "give jobs= where nodes are still to come",
                code="no-room",
            )


@dataclass(frozen=True)
class RayObject:
    """An object in Ray's store, fetched where it is asked for."""

    ref: Any

    @property
    def value(self) -> Any:
        import ray

        return ray.get(self.ref)
