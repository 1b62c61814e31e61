"""The folder that a run is written into: its place, or one beside it for as long as an older run has to stay there.

A run that replaces another is built in a hidden folder beside it (`core.files`). With the first checkpoint the two are
exchanged in one step, and training goes on in the place. Until then the older run is whole, whatever happens; from then
on the new one can be resumed. Files in the older folder that are not a run's go over into the new one.
"""

from __future__ import annotations

import os
from pathlib import Path

from fullrank.core.errors import UserError
from fullrank.core.files import NotWritten, PendingFolder, reason_of
from fullrank.core.locks import sweep_folder
from fullrank.core.log import logger
from fullrank.training.state import RUN_FILES, clear_run

log = logger(__name__)


class RunFolder:
    """`begin`, write to `path`, `publish` at the first checkpoint, and `abandon` in any case.

    The caller holds the lock of `place`.
    """

    def __init__(self, place: Path, *, replaces: bool):
        self.place = place
        self._pending = PendingFolder(place, lambda name: name not in RUN_FILES) if replaces else None

    @property
    def path(self) -> Path:
        """Where to write now."""
        return self.place if self._pending is None else self._pending.folder

    @property
    def published(self) -> bool:
        """Whether the run is in its place."""
        return self._pending is None

    def begin(self, *, resume: bool) -> None:
        """Make the folder ready: empty, or as it was with what killed writers left taken out. Raises `UserError`."""
        if resume:
            for folder in (self.place, self.place / "checkpoints"):
                sweep_folder(folder)
        elif self._pending is None:
            clear_run(self.place)
        elif os.path.ismount(self.place):
            raise UserError(
                f"{self.place} is a disk of its own, so a new run cannot be exchanged for the old one in one step; "
                "name a folder on it, or delete the old run",
                code="not-exchangeable",
            )
        else:
            try:
                self._pending.begin()
            except OSError as error:
                raise NotWritten(self.place, reason_of(error), folder=True) from error

    def publish(self) -> bool:
        """Take the place of the older run; whether that was still to be done. Raises `UserError`."""
        if self._pending is None:
            return False
        try:
            self._pending.commit()
        except OSError as error:
            raise NotWritten(self.place, reason_of(error), folder=True) from error
        self._pending = None
        return True

    def abandon(self) -> None:
        """Remove what has not taken its place."""
        if self._pending is not None:
            self._pending.abandon()
            log.info(f"{self.place} keeps the run that was there: the new one wrote no checkpoint")
