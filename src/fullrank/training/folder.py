"""May a run be written here? Checks first, and clears an old run only when the new one is known to be possible."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError
from fullrank.core.files import foreign_files, is_litter
from fullrank.data.impressions.store import AnyStore
from fullrank.data.manifest import is_store
from fullrank.experiment import Experiment
from fullrank.run import Run, is_run

OWN = (
    "checkpoints", "logs", "metrics.jsonl", "weights.safetensors", "spec.json", "items.parquet", "fields.json",
    "encoder.json", "vocabulary.parquet", "manifest.json", "diagnosis.jsonl",
)  # fmt: skip


def check(
    folder: Path, experiment: Experiment, store: AnyStore, *, resume: bool, overwrite: bool, init_from: Run | None
) -> None:
    """Raise `UserError` where training into `folder` would destroy or mix up something. Changes nothing."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder for the run")
    if is_store(folder):
        raise UserError(f"{folder} is a prepared store; give another folder for the run")
    if init_from is not None and init_from.path.resolve() == folder.resolve() and not resume:
        raise UserError(f"{folder} is the run to go on from; give another folder for the new run")
    if not is_run(folder):
        strange = foreign_files(folder, OWN.__contains__)
        if strange:
            raise UserError(f"{folder} holds files that are no run ({strange[0]}, ...); choose an empty or new folder")
        return
    if resume:
        _same(Run.open(folder), experiment, store)
    elif not overwrite:
        raise UserError(
            f"{folder} holds a run; continue it with --resume, replace it with --overwrite, or choose another"
        )


def clear(folder: Path) -> None:
    """Remove what an old run left, also half written; files that are not a run's stay."""
    for name in [*OWN, *(path.name for path in (folder.iterdir() if folder.exists() else ()) if is_litter(path.name))]:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)


def first_source(folder: Path) -> Run | None:
    """The run that a run was started from, as its manifest says."""
    source = Run.open(folder).manifest.get("init_from")
    return None if source is None else Run.open(source)


def differing(a: Any, b: Any, path: str = "") -> str:
    """The first setting in which two dumped specs differ, as a sentence part."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            if a.get(key) != b.get(key):
                return differing(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    return f"{path} was {a!r} and is now {b!r}"


def _same(old: Run, experiment: Experiment, store: AnyStore) -> None:
    if old.spec.dump() != experiment.dump():
        raise UserError(f"{old.path} was started with another spec: {differing(old.spec.dump(), experiment.dump())}")
    if old.manifest["data"]["split_fingerprint"] != store.fingerprint:
        raise UserError(
            f"{old.path} was started on other data (the split fingerprints differ); resume with the same store"
        )
