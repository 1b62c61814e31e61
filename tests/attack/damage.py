"""What all damages of files are made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Write = Callable[[Path], object]
CANARY = "FULLRANK_CANARY"
"""Environment variable with the path of a file that exists only after code of an opened folder was run."""


@dataclass(frozen=True)
class Mutation:
    """One damage of one file."""

    name: str
    write: Write
    """Writes the damaged file at a path where nothing is; does nothing where the damage is that it lacks."""


class Evil:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f'touch "${CANARY}"',))


def put_bytes(content: bytes) -> Write:
    """Writes these bytes."""
    return lambda path: path.write_bytes(content)


def put_text(content: str) -> Write:
    """Writes this text as UTF-8."""
    return put_bytes(content.encode())
