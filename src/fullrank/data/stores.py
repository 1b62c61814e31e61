"""A folder as the store that it is: histories of users, or impressions."""

from __future__ import annotations

from pathlib import Path

from fullrank.data import impression_manifest, manifest
from fullrank.data.impressions import ImpressionStore
from fullrank.data.pack import Store

AnyStore = Store | ImpressionStore


def open_store(path: str | Path) -> AnyStore:
    """Open a store of either kind. Raises `UserError` where the folder is none."""
    folder = Path(path)
    return ImpressionStore.open(folder) if impression_manifest.is_store(folder) else Store.open(folder)


def is_any_store(folder: Path) -> bool:
    """Whether a folder says that it is a store, of any kind and version."""
    return manifest.is_store(folder) or impression_manifest.is_store(folder)
