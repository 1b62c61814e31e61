"""Work for another process: plain data of a few kB, since of the store its place alone travels.

A process opens the store once, for the first job that it runs. On a node of a cluster the store may be placed on the
local disk first, once for all its processes.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from fullrank.core.files import whole_folder
from fullrank.core.locks import folder_lock
from fullrank.data.impressions.store import AnyStore, open_same_store
from fullrank.data.manifest import is_store
from fullrank.sweeps.cost import JobCost
from fullrank.sweeps.engine import CELLS, Work, failed_row
from fullrank.sweeps.jobs import Job
from fullrank.sweeps.records import Row

LOCK_SECONDS = 60.0
"""How long a job waits for its run folder: whoever had it before may have been given up, and not have ended yet."""
PLACING_SECONDS = 3600.0
"""How long the processes of a node wait for the one that places the store."""


@dataclass(frozen=True)
class SentStore:
    """Where a store lies, and which one it has to be."""

    path: Path
    fingerprint: str
    placed: Path | None = None
    """Folder of a node's local disk that the store is copied into, and read from there."""


@dataclass(frozen=True)
class SentWork:
    """One job and all that it needs, as another process takes it."""

    job: Job
    store: SentStore
    out: Path
    """Folder of the sweep, the same on every machine."""
    cost: JobCost | None
    home: Path
    """The folder that relative paths in the job's settings start from."""
    threads: int

    @classmethod
    def of(cls, work: Work, *, threads: int, placed: Path | None = None) -> SentWork:
        """The same work, without lines of its training: those of several jobs could not be told apart."""
        store = SentStore(Path(os.path.abspath(work.store.path)), work.store.fingerprint, placed)
        return cls(work.job, store, Path(os.path.abspath(work.out)), work.cost, Path.cwd(), threads)

    def run(self, device: str) -> Row:
        """The job's row, whatever happens (an interrupt apart), as by `Work.run`."""
        torch.set_num_threads(self.threads)
        try:
            with suppress(OSError):
                os.chdir(self.home)
            store = open_sent(self.store)
            with folder_lock(self.out / CELLS / self.job.folder, "sweep", wait=LOCK_SECONDS):
                return Work(self.job, store, self.out, self.cost).run(device)
        except Exception as error:
            return failed_row(self.job, self.store, error, 0.0)


@cache
def open_sent(sent: SentStore) -> AnyStore:
    """The store, opened once in a process. Raises `UserError` where it is another one."""
    local = sent.path if sent.placed is None else _place(sent, sent.placed)
    store = open_same_store(local, sent.fingerprint)
    store.path = sent.path  # what manifests of runs say: the place that every machine sees
    return store


def _place(sent: SentStore, under: Path) -> Path:
    """Copy the store to the local disk, unless another process of this node has done it."""
    place = under / sent.fingerprint[:16] / sent.path.name
    with folder_lock(place, "sweep", wait=PLACING_SECONDS):
        if not is_store(place):
            with whole_folder(place) as part:
                shutil.copytree(sent.path, part, dirs_exist_ok=True)
    return place
