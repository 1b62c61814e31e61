"""Read and write safetensors files: tensors without pickle, whole or absent.

A tensor that is in no memory whole (`Pieces`) is written piece by piece. The library writes whole
tensors alone, so the header of such a file is made here: 8 bytes of its length, JSON, then the
numbers of one tensor after another.
"""

from __future__ import annotations

import json
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.core.files import NotWritten, open_whole, whole_file
from fullrank.core.readers import cannot_open, cannot_read, missing_file, refuse_special

_ALIGNED = 8
"""Bytes that the header of the format is padded to a multiple of."""
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""The format's names of dtypes."""


@dataclass(frozen=True)
class Pieces:
    """A tensor of which pieces are made when it is written, by rows in order."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Iterator[Tensor]]


def in_file_order(tensors: Mapping[str, Tensor | Pieces]) -> list[str]:
    """The names in file order: wide dtypes first, so that all are aligned; then by name."""
    return sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))


def write_tensors(path: Path, tensors: Mapping[str, Tensor | Pieces]) -> None:
    """Write a safetensors file, whole. Raises `UserError` where the disk refuses."""
    whole: dict[str, Tensor] = {}
    addresses: set[int] = set()
    if any(isinstance(tensor, Pieces) for tensor in tensors.values()):
        _write_pieces(path, tensors)
        return
    for name, tensor in tensors.items():
        assert isinstance(tensor, Tensor)
        flat = tensor.detach().cpu().contiguous()
        address = flat.untyped_storage().data_ptr()
        whole[name] = flat.clone() if address in addresses else flat  # the format has no two names for one place
        addresses.add(address)
    with whole_file(path) as part, _held_interrupt():
        try:
            safetensors.torch.save_file(whole, str(part))
        except safetensors.SafetensorError as error:
            raise NotWritten(path, str(error)) from error


def _write_pieces(path: Path, tensors: Mapping[str, Tensor | Pieces]) -> None:
    names, header, end = in_file_order(tensors), {}, 0
    for name in names:
        shape, dtype = tuple(tensors[name].shape), tensors[name].dtype
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [start, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % _ALIGNED)
    with open_whole(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in names:
            tensor = tensors[name]
            for piece in tensor.make() if isinstance(tensor, Pieces) else [tensor]:
                file.write(piece.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; what is not one gives a `UserError`."""
    try:
        refuse_special(path)  # the library would wait where no signal reaches it
        open(path, "rb").close()  # the library takes all that it cannot open for missing
        with _held_interrupt():
            return safetensors.torch.load_file(str(path))
    except FileNotFoundError:
        raise missing_file(path) from None
    except RuntimeError as error:  # torch could not map the file
        raise cannot_read(path, error) from None
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        if unopened := cannot_open(path, error):
            raise unopened from None
        opened = isinstance(error, safetensors.SafetensorError)  # else its size may be as unreadable as the file
        size = f", of {path.stat().st_size:,} bytes," if opened else ""
        raise UserError(
            f"{path}{size} is not a readable safetensors file ({error}); the folder is damaged",
            code="file-damaged",
        ) from None


@contextmanager
def _held_interrupt() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block: the library would report it as a damaged file."""
    handle, held = signal.getsignal(signal.SIGINT), []
    if threading.current_thread() is not threading.main_thread() or not callable(handle):
        yield
        return
    signal.signal(signal.SIGINT, lambda *arguments: held.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handle)
        if held:
            handle(*held[0])
