"""One of several gloo processes: compares sharded look-ups and sums with those of a whole table, forward and backward.

    sharded_worker.py RANK WORLD STORE [FAULT]

FAULT `scale` forgets that DDP averages, `own` sums over a process's own rows alone. Ends with status 1 where something
differs.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor

from fullrank.ops import sharded_rows as module
from fullrank.ops.log_sum_exp import log_sum_exp_reference
from fullrank.ops.sharded_rows import RowShard, gather_rows, pieces_on_first, sharded_log_sum_exp, sharded_rows

SIZES = [(7, 3, (2, 5, 0)), (29, 5, (1, 1, 1)), (3, 4, (0, 0, 3)), (101, 8, (40, 17, 23))]
"""Rows of the table, width, queries of each process."""


def close(found: Tensor, wanted: Tensor, what: str, rounded: float = 0.0) -> None:
    """Equal but for fp32's roundings, and for `rounded` of the whole's length."""
    if found.shape != wanted.shape or not torch.allclose(
        found, wanted, rtol=1e-5, atol=1e-6 + rounded * float(wanted.norm())
    ):
        raise SystemExit(f"{what}: {found.tolist()} and not {wanted.tolist()}")


def check_sums(shard: RowShard, table: Tensor, queries: list, fault: str, *, half: bool = False) -> None:
    """Values, and gradients as DDP would have them: the mean over processes of the gradients of world x loss.

    With `half`, in bf16 products of whole numbers, which bf16 holds: gradients alone are rounded.
    """
    rounded = 0.0
    if half:
        table, queries, rounded = table.round(), [q.round() for q in queries], 2**-7
    mine = queries[shard.rank].clone().requires_grad_()
    own = table[shard.low : shard.high].clone().requires_grad_()
    weights = torch.linspace(0.5, 2.0, len(mine)) if shard.rank else torch.ones(len(mine))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        found = sharded_log_sum_exp(mine, own, shard, chunk_elements=50)
    close(found, log_sum_exp_reference(mine, table), "the sum")
    (shard.world * (found * weights).sum()).backward()
    every, whole = [q.clone().requires_grad_() for q in queries], table.clone().requires_grad_()
    for rank, one in enumerate(every):
        factor = torch.linspace(0.5, 2.0, len(one)) if rank else torch.ones(len(one))
        (log_sum_exp_reference(one, whole) * factor).sum().backward()
    close(own.grad / (shard.world if fault == "scale" else 1), whole.grad[shard.low : shard.high], "d own", rounded)
    close(mine.grad / shard.world, every[shard.rank].grad, "d x", rounded)


def check_rows(shard: RowShard, table: Tensor, counts: tuple) -> None:
    """Ids that several processes want, or none of them."""
    size = len(table)
    wanted = [(torch.arange(count) * (rank + 2) + rank).remainder(size).unique() for rank, count in enumerate(counts)]
    own = table[shard.low : shard.high].clone().requires_grad_()
    found = sharded_rows(own, wanted[shard.rank], shard)
    close(found, table[wanted[shard.rank]], "the rows")
    (found.square().sum() * shard.world).backward()
    gradient = torch.zeros_like(table)
    for ids in wanted:
        gradient.index_add_(0, ids, 2 * table[ids])
    close(own.grad.to_dense(), gradient[shard.low : shard.high], "d rows")


def check_pieces(shard: RowShard, table: Tensor) -> None:
    pieces = list(pieces_on_first(table[shard.low : shard.high], shard))
    if shard.rank == 0:
        close(torch.cat(pieces), table, "the pieces")
    elif pieces:
        raise SystemExit("a process that is not the first has pieces")


def main() -> None:
    rank, world, store, fault = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], (*sys.argv[4:], "")[0]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    if fault == "own":
        module.dist.all_reduce = lambda *_, **__: None
    for size, width, counts in SIZES:
        generator = torch.Generator().manual_seed(size)
        table = torch.randn(size, width, generator=generator)
        queries = [torch.randn(count, width, generator=generator) for count in counts]
        shard = RowShard(size, rank, world)
        check_rows(shard, table, counts)
        check_pieces(shard, table)
        check_sums(shard, table, queries, fault)
        check_sums(shard, table, queries, fault, half=True)
        gathered, at = gather_rows(queries[rank])
        close(gathered, torch.cat(queries), "what was gathered")
        close(gathered[at], queries[rank], "its own part")
    dist.destroy_process_group()  # ends gloo's threads: those that still run at the exit abort the process at times


if __name__ == "__main__":
    main()
