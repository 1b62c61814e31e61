"""A store on its way to another process: of its arrays nothing is sent, and each process opens it once."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fullrank.core.errors import UserError
from fullrank.core.files import whole_folder
from fullrank.core.locks import folder_lock
from fullrank.data.impressions.store import AnyStore, open_store
from fullrank.data.manifest import is_store

COPY_SECONDS = 3600.0
"""How long the processes of a node wait for the one that copies the store."""


@dataclass(frozen=True)
class StoreAt:
    """Where a store lies, and which one it has to be: what travels of it to another process."""

    path: Path
    fingerprint: str

    @classmethod
    def of(cls, store: AnyStore | StoreAt) -> StoreAt:
        return cls(Path(os.path.abspath(store.path)), store.fingerprint)

    def open(self, placed: Path | None = None) -> AnyStore:
        """The store, opened once in a process. `placed` is a folder of a node's local disk that it is copied into, once
        for all processes, and read from. Raises `UserError` where this machine has another one at its path.
        """
        return _opened(self, placed)


@cache
def _opened(there: StoreAt, placed: Path | None) -> AnyStore:
    store = open_store(there.path if placed is None else _copied(there, placed))
    if store.fingerprint != there.fingerprint:
        raise UserError(
            f"{store.path} is not the store that this was started with (the fingerprints differ); the path has to be "
            "the same store on every machine, and stay as it is",
            code="store-differs",
        )
    store.path = there.path  # what manifests of runs say: the place that every machine sees
    return store


def _copied(there: StoreAt, below: Path) -> Path:
    """The store on the local disk, copied unless another process of this node has done it."""
    copy = below / there.fingerprint[:16] / there.path.name
    with folder_lock(copy, "sweep", wait=COPY_SECONDS):
        if not is_store(copy):
            with whole_folder(copy) as part:
                shutil.copytree(there.path, part, dirs_exist_ok=True)
    return copy
