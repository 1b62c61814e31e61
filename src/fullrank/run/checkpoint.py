"""Checkpoints: the state of training on disk, from which a run that was cut off goes on.

checkpoints/last.json names the newest folder, which holds weights.safetensors,
optimizer.safetensors and state.json. The pointer is replaced once that folder is whole: a process
killed at any time leaves a pointer to a whole checkpoint.

The hashes form a chain. state.json holds those of the two tensor files and the pointer that of
state.json, so one flipped bit in any of them is found. Hashes find damage and mix-ups, not malice.
A checkpoint of version 0.1 has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fullrank.core.errors import UserError, brief, in_context
from fullrank.core.files import write_json
from fullrank.core.locks import remove_tree
from fullrank.core.readers import read_json
from fullrank.core.tensor_files import Pieces, read_tensors, write_tensors
from fullrank.data.manifest import damaged_file, sha256_file

POINTER = "checkpoints/last.json"
"""A run folder's pointer to its newest checkpoint."""
TENSOR_FILES = ("weights.safetensors", "optimizer.safetensors")
MOST_STEPS = 10**12
"""Optimizer steps, and whatever is counted in them; far above any training, and within every integer type."""

Count = Annotated[int, Field(ge=0, le=MOST_STEPS)]
Events = Annotated[int, Field(ge=0, le=2**62)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class CheckpointState(BaseModel):
    """The state of the training loop, beside the weights and the optimizer's moments."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    step: Count = 0
    """Optimizer steps done."""
    best: float | None = None
    """The best validation score so far; NaN where the metric was not defined on the validation split."""
    best_epoch: Count | None = None
    stale: Count = 0
    """Validations without improvement since."""
    sums: dict[str, Finite] = {}
    """The terms of the loss, summed over the steps of the epoch so far."""
    pace: Annotated[tuple[Events, Events, Annotated[Finite, Field(ge=0)]], Field(strict=False)] = (0, 0, 0.0)
    """Events, positions computed (with padding), and seconds of the epoch so far."""
    finished: bool = False
    cuts: Count = 0
    """Cuts of the learning rate so far (schedule `plateau`)."""
    files: dict[str, str] = {}
    """SHA-256 of each tensor file; none in a checkpoint of version 0.1."""
    run_weights: str | None = None
    """SHA-256 of the run's own weights, the best so far; None before the first, and in older checkpoints."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: CheckpointState
    folder: Path

    def check_total(self, total: int) -> None:
        """Raise `UserError` where the step is none of a run of `total` optimizer steps."""
        step, finished = self.state.step, self.state.finished
        if step > total or (step == total and not finished):
            reason = f"step {step:,}, {'finished' if finished else 'not finished'}, is none of a run of {total:,} steps"
            raise damaged_checkpoint(self.folder / "state.json", reason)


def write_checkpoint(
    out: Path,
    weights: Mapping[str, Tensor | Pieces],
    optimizer: Mapping[str, Tensor | Pieces],
    state: CheckpointState,
) -> None:
    """Write a checkpoint into the run folder `out` and forget the one before it."""
    root = out / "checkpoints"
    folder = root / f"step-{state.step:09d}"
    began = not folder.exists()
    try:
        for name, tensors in zip(TENSOR_FILES, (weights, optimizer), strict=True):
            write_tensors(folder / name, tensors)
        hashes = {name: sha256_file(folder / name) for name in TENSOR_FILES}
        write_json(folder / "state.json", state.model_dump() | {"files": hashes})
    except BaseException:
        if began:  # half a checkpoint is of no use, and may be what fills the disk
            remove_tree(folder)
        raise
    pointer = {"folder": folder.name, "state_sha256": sha256_file(folder / "state.json")}
    write_json(root / "last.json", pointer, indent=None)
    forget_other_checkpoints(folder)


def check_run_weights(out: Path, expected: str | None) -> None:
    """Raise `UserError` where the weights of the run folder `out` are not those that
    training wrote (their SHA-256)."""
    path = out / TENSOR_FILES[0]
    if expected is not None and not (path.is_file() and sha256_file(path) == expected):
        raise damaged_checkpoint(path, "it is not what training wrote")


def forget_other_checkpoints(newest: Path) -> None:
    """Remove the checkpoints beside the one that counts: earlier ones, and what a kill
    left half written or removed."""
    for other in newest.parent.glob("step-*"):
        if other.name != newest.name:
            remove_tree(other)


def read_checkpoint(out: Path) -> Checkpoint | None:
    """The newest whole checkpoint of the run folder `out`, or None where there is none yet.

    Raises `UserError` where it is damaged or incomplete: of the wrong types, out of
    bounds, or not of its hashes.
    """
    pointer = out / POINTER
    if not pointer.exists():
        return None
    named = _json(pointer)
    name, hashed = named.get("folder"), named.get("state_sha256")
    if not isinstance(name, str) or re.fullmatch(r"step-[0-9]{1,13}", name) is None:
        raise damaged_checkpoint(pointer, f"it names the folder {brief(name, 80)}, which is no checkpoint")
    folder = pointer.parent / name
    state = _state(folder / "state.json", hashed)
    if state.step != int(name.removeprefix("step-")):
        raise damaged_checkpoint(folder / "state.json", f"it is of step {state.step:,}")
    if bool(state.files) != (hashed is not None):  # both came with the same version
        held, listed = "no" if hashed is None else "a", "some" if state.files else "none"
        raise damaged_checkpoint(pointer, f"it holds {held} hash of state.json, which holds {listed} of its files")
    if set(state.files) not in (set(), set(TENSOR_FILES)):
        reason = f"it lists the files {brief(sorted(state.files), 80)}, not {', '.join(TENSOR_FILES)}"
        raise damaged_checkpoint(folder / "state.json", reason)
    weights, optimizer = (_tensors(folder / file, state.files.get(file)) for file in TENSOR_FILES)
    return Checkpoint(weights, optimizer, state, folder)


def steps_done(out: Path) -> int:
    """Optimizer steps in the newest checkpoint of a run folder, as its pointer says; 0 without one."""
    pointer = out / POINTER
    digits = str(read_json(pointer).get("folder", "")).removeprefix("step-") if pointer.is_file() else ""
    return int(digits) if digits.isdigit() and len(digits) < 14 else 0


def damaged_checkpoint(path: Path, reason: str) -> UserError:
    """The error for a file of a checkpoint, or for a run's weights in training, that is not what it should be."""
    return damaged_file(path, reason, _advice(path))


def _advice(path: Path) -> str:
    """Advice about a damaged file: of a checkpoint, of the pointer to
    it, or the weights of the run."""
    inside = {"checkpoints": path.parent, "step": path.parents[1]}
    root = inside.get(path.parent.name.partition("-")[0], path.parent / "checkpoints")
    return f"delete {str(root)!r} and resume again, which trains the run from its beginning"


def _state(path: Path, hashed: object) -> CheckpointState:
    tree = _json(path)
    if hashed is not None and sha256_file(path) != hashed:
        raise damaged_checkpoint(path, "its hash is not the one in last.json")
    try:
        return CheckpointState.model_validate(tree)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in wrong["loc"])
        raise damaged_checkpoint(path, f"{where}: {wrong['msg']}, not {brief(wrong['input'], 80)}") from None


def _json(path: Path) -> dict[str, object]:
    with in_context("", f"; {_advice(path)}"):
        return read_json(path)


def _tensors(path: Path, hashed: str | None) -> dict[str, Tensor]:
    if hashed is not None and path.is_file() and sha256_file(path) != hashed:
        raise damaged_checkpoint(path, "its hash is not the one in state.json")
    with in_context("", f"; {_advice(path)}"):
        return read_tensors(path)
