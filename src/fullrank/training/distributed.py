"""Processes of one training: which one this is, how they find each other (torchrun), and sums over all of them.

A process that is lost takes the others down: none can go on without its share of a batch.
They end with one sentence.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed
from jaxtyping import Float
from torch import Tensor

from fullrank.core.errors import UserError, brief, reason_line
from fullrank.ops.sharded_rows import gather_rows

JOIN_SECONDS = 300.0
"""Seconds that a process waits for the others when it starts: torchrun starts them at once."""
ANSWER_SECONDS = 1800.0
"""Seconds that it waits for them in training, where the first one may be writing or measuring alone."""
_COUNTS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
_NEEDED = (*_COUNTS, "MASTER_ADDR")
"""Variables that torchrun sets, of which `_COUNTS` are whole numbers."""
_LOST = ("gloo", "NCCL", "TCPStore", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""Words of torch's errors about a peer: gloo raises a plain `RuntimeError`, which has no other mark."""


@dataclass(frozen=True)
class ProcessRank:
    """The number of this process, of `world` ones."""

    rank: int = 0
    world: int = 1


def launched() -> ProcessRank:
    """This process among those that torchrun started, known before they form a group; one of one without torchrun.

    Raises `UserError` where the environment is not what torchrun makes it: incomplete,
    or of impossible numbers.
    """
    process = ProcessRank(_count("RANK", 0), _count("WORLD_SIZE", 1))
    if process.world == 1 and process.rank == 0:
        return process
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        raise _incomplete(f"lacks {', '.join(missing)}")
    for name in _COUNTS:
        _count(name, 0)
    local, here = _count("LOCAL_WORLD_SIZE", 1), _count("LOCAL_RANK", 0)
    fits = process.rank < process.world and here < local and process.world % max(1, local) == 0
    if not (fits and _count("MASTER_PORT", 0) < 2**16):
        numbers = ", ".join(f"{name}={os.environ[name]}" for name in _COUNTS)
        raise _incomplete(f"has {numbers}, which do not fit together")
    return process


def join_processes(device: torch.device) -> None:
    """Wait until all processes that torchrun started are here, and form their group; nothing for one process alone.

    Raises `UserError` where some do not come within `JOIN_SECONDS`.
    """
    here = launched()
    if here.world == 1 or _has_group():
        return
    patience = timedelta(seconds=JOIN_SECONDS)
    try:
        store, rank, world = next(torch.distributed.rendezvous("env://", timeout=patience))
        store.set(f"fullrank/{rank}", b"here")
        store.wait([f"fullrank/{peer}" for peer in range(world)], patience)
    except torch.distributed.DistError as error:  # the address cannot be reached, or the time is over
        raise UserError(
            f"process {here.rank} of {here.world} waited {JOIN_SECONDS:g} s at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} for the others ({reason_line(error)}); check that all of "
            "them were started, and the network between them",
            code="peers-missing",
        ) from None
    answer = timedelta(seconds=ANSWER_SECONDS)
    store.set_timeout(answer)
    with lost_peers_refused():
        torch.distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=world, timeout=answer
        )
    atexit.register(_end_gloo)


def _end_gloo() -> None:
    """End the threads of a gloo group: those that still run when Python ends abort a
    process whose work is done."""
    if _has_group() and torch.distributed.get_backend() == "gloo":
        torch.distributed.destroy_process_group()


@contextmanager
def lost_peers_refused() -> Iterator[None]:
    """Raise `UserError` (code `peer-lost`) for what torch raises in the block when another process is gone."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, torch.distributed.DistError) or any(word in str(error) for word in _LOST)
        if launched().world == 1 or not lost:
            raise
        raise _peer_lost() from error


def is_distributed() -> bool:
    """Whether other processes have a share in what is computed here.

    Raises `UserError` (code `peer-lost`) where they had and their group is gone: Ray takes it from
    a training that still runs when it ends the workers, and a sum over this process alone would go
    into the next checkpoint.
    """
    if _has_group():
        return True
    if launched().world > 1:
        raise _peer_lost()
    return False


def sum_over_ranks(value: Tensor) -> float:
    """The sum of the numbers of all processes."""
    if is_distributed():
        value = value.clone()
        torch.distributed.all_reduce(value)
    return float(value)


def gather_ranks(value: Float[Tensor, "n"]) -> Float[Tensor, "N"]:
    """The numbers of every process behind each other."""
    return gather_rows(value)[0] if is_distributed() else value


def mean_by_row(grad: Tensor) -> Tensor:
    """The mean of the sparse gradients of all processes, summed by row; equal on each of them."""
    local = grad.coalesce()
    rows, _ = gather_rows(local.indices()[0])
    values, _ = gather_rows(local.values())
    world = torch.distributed.get_world_size()
    return torch.sparse_coo_tensor(rows[None], values / world, grad.shape, check_invariants=False).coalesce()


def _count(name: str, without: int) -> int:
    """A whole number of the environment, `without` where it is not set. Raises
    `UserError` for anything else."""
    text = os.environ.get(name, str(without))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _incomplete(f"has {name}={brief(text, 80)}, which is no count")
    return int(text)


def _incomplete(what: str) -> UserError:
    """The error for an environment that torchrun did not make."""
    return UserError(
        f"the environment of this process {what}; start several processes by torchrun, which sets "
        f"{', '.join(_NEEDED)}, or unset RANK and WORLD_SIZE for one",
        code="launch-incomplete",
    )


def _has_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _peer_lost() -> UserError:
    """The error for a group of which another process is gone."""
    here = launched()
    return UserError(
        f"process {here.rank} of {here.world} has lost another one, and ends; see what that one said, and "
        "start all of them again with --resume",
        code="peer-lost",
    )
