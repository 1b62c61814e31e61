"""Blocks of a large encoder that several processes hold together (`training.shard_encoder`): FSDP2 of torch.

Process r of W holds 1/W of the rows of every matrix in the blocks, with their gradient and moments. A block is gathered
when it is run, forward and again backward, and its gradient is averaged into the rows of each (`fully_shard`). What is
around the blocks (item table, positions, norms) stays with DDP. Files hold whole matrices (`shards.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from fullrank.core.errors import UserError
from fullrank.experiment import Experiment
from fullrank.models.sequential.model import Recommender
from fullrank.training.distributed import launched, told_of_peers
from fullrank.training.shards import watch_of_shards


def check_encoder(experiment: Experiment, callbacks: tuple[Any, ...] = ()) -> None:
    """Raise `UserError` where `training.shard_encoder` is set and cannot be followed."""
    if not experiment.training.shard_encoder:
        return
    model = experiment.model
    if not isinstance(model, Recommender) or model.encoder.kind_of() not in ("transformer", "fmlp"):
        raise _unfit(
            f"shares out the blocks of an encoder, and {experiment.recipe} has none that are run one by one",
            "choose model.encoder=transformer or fmlp",
        )
    if model.reasoner is not None:
        raise _unfit(
            f"gathers a block when a whole history runs through it, and the reasoner {model.reasoner.kind_of()} adds "
            "single steps",
            "leave out model.reasoner",
        )
    if model.penalties:
        raise _unfit(
            f"leaves each process a part of every matrix, and the penalty {model.penalties[0].kind_of()} may read them "
            "whole",
            "leave out model.penalties",
        )
    if experiment.training.compile:
        raise _unfit("runs blocks that torch.compile does not see whole", "leave out training.compile")
    if callbacks and launched().world > 1:
        raise watch_of_shards("training.shard_encoder", "encoder")


def shard_blocks(model: nn.Module, device: torch.device) -> None:
    """Keep this process's part of every block of the encoder, in place. All processes call it together.

    They hold equal weights before. Nothing happens on one process.
    """
    if launched().world == 1:
        return
    with told_of_peers():
        # a group of its own: its messages never meet those of DDP
        mesh: Any = DeviceMesh.from_group(torch.distributed.new_group(), device.type)
        encoder: Any = model.get_submodule("encoder")
        for block in encoder.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        around = {p for name, p in encoder.named_parameters() if not name.startswith("blocks.")}
        fully_shard(encoder, mesh=mesh, ignored_params=around)  # the root: it fetches the next block ahead


@contextmanager
def whole_blocks(model: nn.Module) -> Iterator[None]:
    """Hold all blocks whole, for a time in which processes run them unequally often. All enter and leave together.

    Their gradients, which the last step has used, make room.
    """
    blocks = [one for one in model.modules() if isinstance(one, FSDPModule)]
    for parameter in (p for block in blocks for p in block.parameters() if isinstance(p, DTensor)):
        parameter.grad = None
    for block in blocks:
        block.unshard()
        block.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for block in blocks:
            block.reshard()
            block.set_reshard_after_forward(True, recurse=False)


def _unfit(why: str, remedy: str) -> UserError:
    return UserError(
        f"training.shard_encoder {why}: {remedy}, or set training.shard_encoder=false", code="encoder-not-sharded"
    )
