"""Checkpoints: a folder per checkpoint, and a pointer that is replaced once the folder is whole.

checkpoints/last.json names the newest folder, which holds weights.safetensors, optimizer.safetensors and state.json.
A process killed at any time leaves a pointer to a whole checkpoint.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.core.files import write_json
from fullrank.core.readers import read_json
from fullrank.core.tensor_files import read_tensors, write_tensors

Checkpoint = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]
"""Weights, optimizer state, and where the run stood."""


def write_checkpoint(out: Path, model: nn.Module, optimizer: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint and forget the one before it. `state["step"]` is the number of optimizer steps done."""
    root = out / "checkpoints"
    folder = root / f"step-{state['step']:09d}"
    write_tensors(folder / "weights.safetensors", dict(model.state_dict()))
    write_tensors(folder / "optimizer.safetensors", optimizer)
    write_json(folder / "state.json", state)
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
        raise UserError(f"{pointer} does not name a checkpoint; the folder is damaged")
    folder = out / "checkpoints" / name
    state = read_json(folder / "state.json")
    if not isinstance(state.get("step"), int):
        raise UserError(f"{folder / 'state.json'} has no step; the folder is damaged")
    return read_tensors(folder / "weights.safetensors"), read_tensors(folder / "optimizer.safetensors"), state
