"""The state of training on disk: checkpoints, and whether a run may be written into a folder at all.

checkpoints/last.json names the newest folder, which holds weights.safetensors, optimizer.safetensors and state.json.
The pointer is replaced once that folder is whole: a process killed at any time leaves a pointer to a whole checkpoint.

A folder is checked before anything is written, and an old run is cleared only when the new one is known to be possible.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.core.files import foreign_files, is_leftover, write_json
from fullrank.core.readers import read_json
from fullrank.core.tensor_files import read_tensors, write_tensors
from fullrank.data.impressions.store import AnyStore
from fullrank.data.manifest import is_store
from fullrank.experiment import Experiment
from fullrank.run import Run, is_run

Checkpoint = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]
"""Weights, optimizer state, and where the run stood."""


def write_checkpoint(out: Path, model: nn.Module, optimizer: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint and forget the one before it. `state["step"]` is the number of optimizer steps done."""
    root = out / "checkpoints"
    folder = root / f"step-{state['step']:09d}"
    began = not folder.exists()
    try:
        write_tensors(folder / "weights.safetensors", dict(model.state_dict()))
        write_tensors(folder / "optimizer.safetensors", optimizer)
        write_json(folder / "state.json", state)
    except BaseException:
        if began:  # half a checkpoint is of no use, and may be what fills the disk
            shutil.rmtree(folder, ignore_errors=True)
        raise
    write_json(root / "last.json", {"folder": folder.name}, indent=None)
    for old in root.glob("step-*"):
        if old.name != folder.name:
            shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(out: Path) -> Checkpoint | None:
    """(weights, optimizer, state) of the newest whole checkpoint, or None where there is none yet."""
    pointer = out / "checkpoints" / "last.json"
    if not pointer.exists():
        return None
    name = read_json(pointer).get("folder")
    if not isinstance(name, str) or not name.startswith("step-") or not name[5:].isdigit():
        raise UserError(f"{pointer} does not name a checkpoint; the folder is damaged", code="file-damaged")
    folder = out / "checkpoints" / name
    state = read_json(folder / "state.json")
    if not isinstance(state.get("step"), int):
        raise UserError(f"{folder / 'state.json'} has no step; the folder is damaged", code="file-damaged")
    return read_tensors(folder / "weights.safetensors"), read_tensors(folder / "optimizer.safetensors"), state


RUN_FILES = (
    "checkpoints", "logs", "metrics.jsonl", "weights.safetensors", "spec.json", "items.parquet", "fields.json",
    "encoder.json", "vocabulary.parquet", "manifest.json", "diagnosis.jsonl",
)  # fmt: skip


LEARNED = ("checkpoints", "weights.safetensors")
"""What is written when the manifest is there already: without it, somebody has lost it."""


def check_folder(
    folder: Path, experiment: Experiment, store: AnyStore, *, resume: bool, overwrite: bool, init_from: Run | None
) -> None:
    """Raise `UserError` where training into `folder` would destroy or mix up something. Changes nothing."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder for the run", code="not-a-folder")
    if is_store(folder):
        raise UserError(f"{folder} is a prepared store; give another folder for the run", code="folder-of-others")
    if init_from is not None and init_from.path.resolve() == folder.resolve() and not resume:
        raise UserError(f"{folder} is the run to go on from; give another folder for the new run", code="same-folder")
    if not is_run(folder):
        strange = foreign_files(folder, RUN_FILES.__contains__)
        if strange:
            raise UserError(
                f"{folder} holds files that are no run ({strange[0]}, ...); choose an empty or new folder",
                code="foreign-files",
            )
        if not overwrite and any((folder / name).exists() for name in LEARNED):
            raise UserError(
                f"{folder} holds a run that has lost its manifest.json; replace it with --overwrite, or choose another",
                code="folder-holds-a-run",
            )
        return
    if resume:
        _same(Run.open(folder), experiment, store)
    elif not overwrite:
        raise UserError(
            f"{folder} holds a run; continue it with --resume, replace it with --overwrite, or choose another",
            code="folder-holds-a-run",
        )


def clear_run(folder: Path) -> None:
    """Remove what an old run left, also half written; files that are not a run's stay."""
    for name in [
        *RUN_FILES,
        *(path.name for path in (folder.iterdir() if folder.exists() else ()) if is_leftover(path.name)),
    ]:
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


def _same(old: Run, experiment: Experiment, store: AnyStore) -> None:
    if old.spec.dump() != experiment.dump():
        raise UserError(
            f"{old.path} was started with another spec: {first_difference(old.spec.dump(), experiment.dump())}",
            code="other-spec",
        )
    if old.manifest["data"]["split_fingerprint"] != store.fingerprint:
        raise UserError(
            f"{old.path} was started on other data (the split fingerprints differ); resume with the same store",
            code="other-data",
        )
