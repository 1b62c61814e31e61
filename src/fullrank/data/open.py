"""Open the store in a folder, whichever problem it is for."""

from __future__ import annotations

from pathlib import Path

from fullrank.data.events.manifest import is_store
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import ImpressionStore

AnyStore = Store | ImpressionStore


def open_store(path: str | Path) -> AnyStore:
    """Open a store of either kind, which its manifest names. Raises `UserError` where the folder is none."""
    folder = Path(path)
    return ImpressionStore.open(folder) if is_store(folder, "ranking") else Store.open(folder)
