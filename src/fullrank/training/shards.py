"""Parameters that several processes hold together, and their place in files.

Those are item tables (`training.shard_items`) and the blocks of a large encoder
(`training.shard_encoder`, FSDP2 of torch). Process r of W holds 1/W of the rows of every matrix in
the blocks, with their gradient and moments. A block is gathered when it is run, forward and again
backward, and its gradient is averaged into the rows of each (`fully_shard`). What is around the
blocks (item table, positions, norms) stays with DDP.

A run folder and a checkpoint hold them whole, as one process writes them, so either is read by any
number of processes. They are written by process 0, which gets the rows of the others piece by
piece; on the way back each process takes its own rows of the file, which is mapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.tensor_files import Pieces, in_file_order
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.ops.sharded_rows import RowShard, pieces_on_first
from fullrank.run import CatalogOrEncoder
from fullrank.run.experiment import Experiment
from fullrank.training.distributed import launched, lost_peers_refused

Tensors = dict[str, Tensor | Pieces]
Share = RowShard | DTensor
"""The part of a parameter that this process holds: rows of an item table, or as a parameter of FSDP2 says itself."""


def shard_of(experiment: Experiment, known: CatalogOrEncoder, callbacks: tuple[Any, ...] = ()) -> RowShard | None:
    """The rows of the item table that this process is to hold; None where each process holds all.

    All processes call it together. Raises `UserError` where `training.shard_items` is
    set and cannot be followed.
    """
    if not experiment.training.shard_items:
        return None
    _check_items(experiment)
    here = launched()
    if here.world == 1:
        return None
    assert isinstance(known, Catalog)  # a recommender's
    if callbacks:
        raise _watch_of_shards("training.shard_items", "item table")
    if known.size < here.world:
        raise UserError(
            f"the item table has {known.size} rows to be shared out to {here.world} processes: start fewer, or set "
            "training.shard_items=false",
            code="fewer-items-than-processes",
        )
    with lost_peers_refused():
        return RowShard(known.size, here.rank, here.world, torch.distributed.new_group())


def _check_items(experiment: Experiment) -> None:
    """Refuse what does not have one table of item vectors, or reads it whole."""
    model = experiment.model
    if not isinstance(model, Recommender) or model.items.kind_of() != "table":
        raise UserError(
            f"training.shard_items shares out a table of item vectors, and {experiment.recipe} has none: set "
            "model.items=table, or training.shard_items=false",
            code="items-not-sharded",
        )
    whole = [f"the penalty {penalty.kind_of()}" for penalty in model.penalties if penalty.build().reads_every_item]
    if model.loss.build().reads_every_item:
        whole.insert(0, f"label_smoothing of the loss {model.loss.kind_of()}")
    if whole:
        raise UserError(
            f"training.shard_items shares the item table out to processes, and {whole[0]} reads it whole: leave that "
            "out, or set training.shard_items=false",
            code="reads-every-item",
        )


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
        raise _watch_of_shards("training.shard_encoder", "encoder")


def _unfit(why: str, remedy: str) -> UserError:
    return UserError(
        f"training.shard_encoder {why}: {remedy}, or set training.shard_encoder=false", code="encoder-not-sharded"
    )


def _watch_of_shards(setting: str, what: str) -> UserError:
    """The error for callbacks where processes share the model."""
    return UserError(
        f"callbacks (--watch) look at the model on one process, and {setting} shares its {what} out to several: leave "
        f"them out, or set {setting}=false",
        code="watch-of-shards",
    )


def shard_blocks(model: nn.Module, device: torch.device) -> None:
    """Keep this process's part of every block of the encoder, in place. All processes call it together.

    They hold equal weights before. Nothing happens on one process.
    """
    if launched().world == 1:
        return
    with lost_peers_refused():
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
    blocks = [module for module in model.modules() if isinstance(module, FSDPModule)]
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


def sharded_parameters(model: nn.Module) -> dict[str, Share]:
    """The names of the parameters of which this process holds a part."""
    if not isinstance(model, RecommenderModel):
        return {}
    shares: dict[str, Share] = {name: p for name, p in model.named_parameters() if isinstance(p, DTensor)}
    if model.items.shard is not None:
        shares |= {f"items.{name}": model.items.shard for name, _ in model.items.named_parameters()}
    return shares


def exclude_from_ddp(holder: nn.Module, model: nn.Module, by_row: Sequence[nn.Parameter]) -> None:
    """Keep DDP from averaging gradients within `holder` (of the model) that it must not.

    Every process has rows of its own of what is shared out; tables `by_row` have sparse gradients,
    which are summed by row. Counts of a table that is shared out, which never change, are left out
    of what each step sends, too.
    """
    excluded = {*(id(model.get_parameter(name)) for name in sharded_parameters(model)), *map(id, by_row)}
    names = [name for name, parameter in holder.named_parameters() if id(parameter) in excluded]
    if isinstance(model, RecommenderModel) and model.items.shard is not None:
        names += [name for name, buffer in holder.named_buffers() if buffer is model.items.popularity]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(holder, names)


def parameter_count(model: nn.Module) -> int:
    """The numbers of all parameters, those of other processes' parts included."""
    shards = sharded_parameters(model)
    return sum(_whole_shape(p, shards.get(name)).numel() for name, p in model.named_parameters())


def sharded_moments(optimizer: torch.optim.Optimizer, moments: Iterable[str], model: nn.Module) -> dict[str, Share]:
    """The names among `moments` of which this process holds a part: those of sharded parameters.

    A name is NUMBER.NAME, as `dump_optimizer` has it, by the number that the
    optimizer gives the parameter.
    """
    shards = sharded_parameters(model)
    owners = {id(p): shards[name] for name, p in model.named_parameters() if name in shards}
    groups: list[JsonObject] = optimizer.param_groups
    shares = [owners.get(id(p)) for group in groups for p in group["params"]]
    numbers = {str(number): share for number, share in enumerate(shares) if share is not None}
    return {name: numbers[number] for name in moments if (number := name.partition(".")[0]) in numbers}


def whole(tensors: Mapping[str, Tensor], shares: Mapping[str, Share]) -> Tensors:
    """Tensors as a file holds them: those of `shares` are put together from all processes."""
    return {name: _whole(tensor, shares.get(name)) for name, tensor in tensors.items()}


def own(tensors: Mapping[str, Tensor], shares: Mapping[str, Share]) -> dict[str, Tensor]:
    """This process's part of the tensors of a file. One without the table's rows is left for the reader."""
    return {name: _own(tensor, shares.get(name)) for name, tensor in tensors.items()}


def send_pieces(*files: Tensors) -> None:
    """Send this process's rows to the first one, in the order in which that writes these files."""
    for tensors in files:
        for name in in_file_order(tensors):
            tensor = tensors[name]
            if isinstance(tensor, Pieces):
                for _ in tensor.make():
                    pass


def _whole_shape(part: Tensor, share: Share | None) -> torch.Size:
    return torch.Size((share.size, *part.shape[1:])) if isinstance(share, RowShard) else part.shape


def _whole(part: Tensor, share: Share | None) -> Tensor | Pieces:
    """A tensor as a file holds it: as it is, or in pieces that are put
    together from all processes."""
    if share is None or not part.ndim:  # counts of steps have no rows
        return part
    detached = part.detach()
    if isinstance(share, RowShard):
        make = partial(pieces_on_first, detached, share)
    else:
        assert isinstance(detached, DTensor)  # as the parameter that says its share, and as its moments
        make = partial(_gathered_on_first, detached)
    return Pieces(tuple(_whole_shape(part, share)), part.dtype, make)


def _gathered_on_first(part: DTensor) -> Iterator[Tensor]:
    """On process 0 the whole tensor, in one piece; on the others nothing. Every
    process must iterate to the end."""
    whole = part.full_tensor()
    if part.device_mesh.get_rank() == 0:
        yield whole


def _own(whole: Tensor, share: Share | None) -> Tensor:
    """This process's rows of a whole tensor, where the table's rows are in it."""
    if isinstance(share, DTensor) and whole.shape == share.shape:
        return distribute_tensor(whole.to(share.device), share.device_mesh, share.placements, src_data_rank=None)
    if isinstance(share, RowShard) and whole.ndim > 0 and len(whole) == share.size:
        return whole[share.low : share.high]
    return whole
