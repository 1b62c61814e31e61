"""A worker that is killed at its first run, for workers that have none of pytest's paths."""

import os
import signal
from pathlib import Path
from typing import Any

import fullrank as fr


def dying(flag: Path, caller: int, at: Path, on: str) -> Any:
    """Opens a run; the first worker that does is killed, while the flag is there."""
    if os.getpid() != caller and flag.exists():
        flag.unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return fr.load(at, device=on)
