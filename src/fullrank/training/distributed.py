"""Which process this is, and numbers over all processes (torchrun)."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class ProcessRank:
    """Which process this is, of how many."""

    rank: int = 0
    world: int = 1


def launched() -> ProcessRank:
    """This process among those that torchrun started, known before they form a group; one of one without torchrun."""
    return ProcessRank(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def sum_over_ranks(value: Tensor) -> float:
    if is_distributed():
        value = value.clone()
        torch.distributed.all_reduce(value)
    return float(value)


def gather_ranks(value: Float[Tensor, "n"]) -> Float[Tensor, "N"]:
    """The numbers of every process behind each other."""
    if not is_distributed():
        return value
    count = torch.tensor([len(value)], device=value.device)
    counts = [torch.zeros_like(count) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(counts, count)
    longest = int(torch.stack(counts).max())
    padded = F.pad(value, (0, longest - len(value)))
    parts = [torch.zeros_like(padded) for _ in counts]
    torch.distributed.all_gather(parts, padded)
    return torch.cat([part[: int(n)] for part, n in zip(parts, counts, strict=True)])
