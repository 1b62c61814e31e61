"""Files that are either whole or absent, and tensors without pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fullrank.errors import UserError


def write_text(path: Path, text: str) -> None:
    """Write beside the file, then rename over it: a killed process or a full disk leaves the old one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, atomically."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    whole: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        place = flat.untyped_storage().data_ptr()
        whole[name] = flat.clone() if place in places else flat  # the format has no two names for one place
        places.add(place)
    try:
        safetensors.torch.save_file(whole, str(fresh))
        with open(fresh, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except (OSError, safetensors.SafetensorError) as error:
        fresh.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; what is not one gives a `UserError`."""
    try:
        return safetensors.torch.load_file(str(path))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; the folder is incomplete") from None
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise UserError(f"{path} is not a readable safetensors file ({error}); the folder is damaged") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; anything else gives a `UserError`."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; the folder is incomplete") from None
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not readable JSON ({error}); the folder is damaged") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds no JSON object; the folder is damaged")
    return tree
