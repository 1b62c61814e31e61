"""Which device a model runs on: the one policy behind every `device=` and `--device`."""

from __future__ import annotations

from itertools import chain

import torch

from fullrank.core.errors import UserError, brief
from fullrank.core.memory import keep_freed_memory


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """`auto` is the first CUDA device, else the CPU; else a name that torch knows (`cpu`, `cuda`, `cuda:1`, `mps`).

    Apple's `mps` is taken by name only: it has no double precision, which click probabilities are
    computed in. A process that is to run a model on the CPU keeps the memory that one batch frees
    for the next (`keep_freed_memory`). Raises `UserError` for a device that is not there.
    """
    if isinstance(name, str) and name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if not isinstance(name, str | torch.device):  # a number would be a GPU's
            raise TypeError(name)
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UserError(
            f"the device {brief(name, 80)} is unknown; allowed: auto, cpu, cuda, cuda:N, mps", code="unknown-device"
        ) from None
    if device.type == "cpu":
        keep_freed_memory()
        return device
    room = getattr(torch, device.type, None) or getattr(torch.backends, device.type, None)
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    there = getattr(room, "is_available", lambda: False)() and (device.index or 0) < count
    if not there:
        raise UserError(
            f"the device {str(name)!r} is not available here: this machine has none that torch can use (`fullrank "
            "doctor` tells more); take auto or cpu",
            code="device-unavailable",
        )
    return device


def device_of(model: object) -> torch.device:
    """Where a model's weights are; the CPU for one without any."""
    tensors = chain(model.parameters(), model.buffers()) if isinstance(model, torch.nn.Module) else iter(())
    first: torch.Tensor | None = next(tensors, None)
    return torch.device("cpu") if first is None else first.device


def seed_draws(seed: int, device: torch.device) -> None:
    """Seed the draws on a device; on the CPU faster than `torch.manual_seed`."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
