"""The folder that a run is written into: checked, cleared of an old run, and put in its place at the first checkpoint.

A folder is checked before anything is written, and an old run is cleared only when the new one is
known to be possible. A run that replaces another is built in a hidden folder beside it
(`core/files.py`). With the first checkpoint the two are exchanged in one step, and training goes on
in the place. Until then the older run is whole, whatever happens; from then on the new one can be
resumed. Files in the older folder that are not a run's go over into the new one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError
from fullrank.core.files import PendingFolder, foreign_files, not_written
from fullrank.core.locks import is_leftover, sweep_folder
from fullrank.core.log import logger
from fullrank.data.impressions.store import AnyStore
from fullrank.data.manifest import require_elsewhere, require_no_store
from fullrank.run import Run, is_run
from fullrank.run.experiment import Experiment
from fullrank.run.manifest import RUN_FILES

log = logger(__name__)

LEARNED = ("checkpoints", "weights.safetensors")
"""Files that are written when the manifest is there already: without it, somebody has lost it."""


def check_folder(
    folder: Path, experiment: Experiment, store: AnyStore, *, resume: bool, overwrite: bool, init_from: Run | None
) -> None:
    """Raise `UserError` where training into `folder` would destroy or mix up something. Changes nothing."""
    if init_from is not None and not resume:
        require_elsewhere(folder, init_from.path)
    check_place(folder, resume=resume, overwrite=overwrite)
    if resume and is_run(folder):
        known = "the folder knows it, so give resume=True and out= alone"
        require_same(Run.open(folder), experiment, store, (known, "resume with the same store"))


def check_place(folder: Path, *, resume: bool = False, overwrite: bool = False) -> None:
    """Check as `check_folder` does, before experiment and store are known."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder for the run", code="not-a-folder")
    require_no_store(folder, "run")
    whole = is_run(folder)
    if not whole and (strange := foreign_files(folder, RUN_FILES.__contains__)):
        raise UserError(
            f"{folder} holds files that are no run ({strange[0]}, ...); choose an empty or new folder",
            code="foreign-files",
        )
    in_the_way = not resume if whole else any((folder / name).exists() for name in LEARNED)
    if in_the_way and not overwrite:
        state = "; continue it with resume=True," if whole else " that has lost its manifest.json;"
        raise UserError(
            f"{folder} holds a run{state} replace it with overwrite=True, or choose another",
            code="folder-holds-a-run",
        )


def clear_run(folder: Path) -> None:
    """Remove what an old run left, also half written; files that are not a run's stay."""
    present = folder.iterdir() if folder.exists() else ()
    for name in [*RUN_FILES, *(path.name for path in present if is_leftover(path.name))]:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)


def initial_run(folder: Path) -> Run | None:
    """The run that a run was started from, as its manifest says."""
    source = Run.open(folder).manifest.get("init_from")
    return None if source is None else Run.open(source)


def first_difference(a: Any, b: Any, path: str = "") -> str:
    """The first setting in which two dumped specs differ, as a sentence part."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            if a.get(key) != b.get(key):
                return first_difference(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    return f"{path} was {a!r} and is now {b!r}"


def require_same(old: Run, experiment: Experiment, store: AnyStore, remedies: tuple[str, str]) -> None:
    """Raise `UserError` where a run was started with another spec, or on other data;
    `remedies`: what to do then."""
    if old.spec.dump() != experiment.dump():
        raise UserError(
            f"{old.path} was started with another spec: {first_difference(old.spec.dump(), experiment.dump())}; "
            f"{remedies[0]}",
            code="other-spec",
        )
    if old.manifest["data"]["split_fingerprint"] != store.fingerprint:
        raise UserError(
            f"{old.path} was started on other data (the split fingerprints differ); {remedies[1]}", code="other-data"
        )


class RunFolder:
    """A run's folder while it is written: `begin`, write to `path`, `publish` at the first checkpoint, then `abandon`.

    The caller holds the lock of `target`.
    """

    def __init__(self, target: Path, *, replaces: bool):
        self.target = target
        self._pending = PendingFolder(target, lambda name: name not in RUN_FILES) if replaces else None

    @property
    def path(self) -> Path:
        """The folder to write into now."""
        return self.target if self._pending is None else self._pending.folder

    @property
    def published(self) -> bool:
        """Whether the run is in its place."""
        return self._pending is None

    def begin(self, *, resume: bool) -> None:
        """Make the folder ready: empty, or as it was but for what killed writers left. Raises `UserError`."""
        if resume:
            for folder in (self.target, self.target / "checkpoints"):
                sweep_folder(folder)
        elif self._pending is None:
            clear_run(self.target)
        elif os.path.ismount(self.target):
            raise UserError(
                f"{self.target} is a disk of its own, so a new run cannot be exchanged for the old one in one step; "
                "name a folder on it, or delete the old run",
                code="not-exchangeable",
            )
        else:
            with not_written(self.target, folder=True):
                self._pending.begin()

    def publish(self) -> bool:
        """Take the place of the older run; whether that was still to be done. Raises `UserError`."""
        if self._pending is None:
            return False
        with not_written(self.target, folder=True):
            self._pending.commit()
        self._pending = None
        return True

    def abandon(self) -> None:
        """Remove what has not taken its place."""
        if self._pending is not None:
            self._pending.abandon()
            log.info(f"{self.target} keeps the run that was there: the new one wrote no checkpoint")
