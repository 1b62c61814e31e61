"""References to stores, which other processes are sent in place of arrays: each process opens a store once."""

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
"""Longest wait of the processes of a node for the one that copies the store."""


@dataclass(frozen=True)
class StoreAt:
    """The path of a store and the fingerprint that it has to have there: the reference that is sent."""

    path: Path
    fingerprint: str

    @classmethod
    def of(cls, store: AnyStore | StoreAt) -> StoreAt:
        return cls(Path(os.path.abspath(store.path)), store.fingerprint)

    def open(self, placed: Path | None = None) -> AnyStore:
        """Open the store, once in a process.

        `placed` is a folder of a node's local disk into which it is copied, once for all processes,
        and read from. Raises `UserError` where this machine has another store at its path.
        """
        return _opened(self, placed)


@cache
def _opened(reference: StoreAt, placed: Path | None) -> AnyStore:
    store = open_store(reference.path if placed is None else _copied(reference, placed))
    if store.fingerprint != reference.fingerprint:
        raise UserError(
            f"{store.path} is not the store that this was started with (the fingerprints differ); the path has to be "
            "the same store on every machine, and stay as it is",
            code="store-differs",
        )
    store.path = reference.path  # manifests of runs name the path that every machine sees
    return store


def _copied(reference: StoreAt, below: Path) -> Path:
    """The path of the store on the local disk, copied unless another
    process of this node has done it."""
    copy = below / reference.fingerprint[:16] / reference.path.name
    with folder_lock(copy, "sweep", wait=COPY_SECONDS):
        if not is_store(copy):
            with whole_folder(copy) as part:
                shutil.copytree(reference.path, part, dirs_exist_ok=True)
    return copy
