"""Any result as what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """What JSON can hold: paths, dates and numpy scalars made plain, NaN and infinity made null."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(inner) for inner in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if hasattr(value, "item") and not isinstance(value, int | float):
        return plain(value.item())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return str(value)
