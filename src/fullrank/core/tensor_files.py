"""Read and write safetensors files: tensors without pickle, whole or absent."""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.core.files import NotWritten, reason_of, whole_file
from fullrank.core.readers import cannot_open, refuse_special


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file. Raises `UserError` where the disk refuses; an older file is then unchanged."""
    whole: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        place = flat.untyped_storage().data_ptr()
        whole[name] = flat.clone() if place in places else flat  # the format has no two names for one place
        places.add(place)
    with whole_file(path) as part:
        try:
            safetensors.torch.save_file(whole, str(part))
        except safetensors.SafetensorError as error:
            raise NotWritten(path, str(error)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; what is not one gives a `UserError`."""
    try:
        refuse_special(path)  # the library would wait where no signal reaches it
        open(path, "rb").close()  # the library takes all that it cannot open for missing
        return safetensors.torch.load_file(str(path))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; the folder is incomplete", code="missing-file") from None
    except RuntimeError as error:  # torch could not map the file
        raise UserError(f"cannot read {path}: {reason_of(error)}", code="file-unreadable") from None
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        if unopened := cannot_open(path, error):
            raise unopened from None
        opened = isinstance(error, safetensors.SafetensorError)  # else its size may be as unreadable as the file
        size = f", of {path.stat().st_size:,} bytes," if opened else ""
        raise UserError(
            f"{path}{size} is not a readable safetensors file ({error}); the folder is damaged",
            code="file-damaged",
        ) from None
