"""A callback that kills the process it is called in, in a file that workers can import."""

import os
import signal
from pathlib import Path
from typing import Any


class KilledOnce:
    """A callback that kills its process, the first worker's, when an epoch ends; the next one finds the note."""

    def __init__(self, note: Path, epoch: int) -> None:
        self.note, self.epoch = note, epoch

    def on_epoch(self, state: Any) -> dict[str, float]:
        if state.epoch == self.epoch and not self.note.exists():
            self.note.write_text(str(state.step))
            os.kill(os.getpid(), signal.SIGKILL)
        return {}
