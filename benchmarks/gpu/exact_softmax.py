"""Exact softmax over a catalogue, forward and backward: memory and speed of ours against dense and compiled dense.

A query's loss is log sum_v exp(x . w_v) - x . w_target. `dense` is `F.cross_entropy` of all logits in memory.
`achieved_share` counts the three products that no exact softmax can do without (scores, d x, d w), whatever was
computed again. Goal: at a million items a thirtieth of the memory of dense, and no slower than compiled dense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.device import Where, achieved_share, milliseconds, peak_memory, refusals
from fullrank.ops.column_attention import GPU_ELEMENTS
from fullrank.ops.log_sum_exp import CHUNK_ELEMENTS, chunked_log_sum_exp

QUERIES = 4096
SIZES = ((100_000, 64), (100_000, 128), (1_000_000, 64), (1_000_000, 128))
TINY = ((300, 13),)
GAP = {torch.bfloat16: 5e-3, torch.float32: 1e-4}
"""Most that a loss may differ from the first of its kind, as a share of it; bf16 logits round to three digits."""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def rows(where: Where) -> Iterator[dict[str, Any]]:
    queries = where.of(QUERIES, 40)
    for items, width in TINY if where.small else SIZES:
        for dtype in (torch.bfloat16, torch.float32):
            given = inputs(where.device, dtype, queries, items, width)
            wanted: Tensor | None = None
            for name, loss in losses(where, dtype).items():
                row: dict[str, Any] = {
                    "loss": name, "dtype": str(dtype), "items": items, "width": width, "queries": queries
                }  # fmt: skip
                with refusals(row):
                    learning = partial(learn, loss, given)
                    found = learning()  # compiles
                    wanted = found if wanted is None else wanted
                    row["loss_value"], row["loss_gap"] = float(found), abs(float(found - wanted))
                    row["right"] = row["loss_gap"] <= GAP[dtype] * float(wanted)
                    row["peak_mb"] = megabytes(peak_memory(learning, where.device))
                    row["ms"] = milliseconds(learning, where.device, rounds=where.of(10, 1))
                    flops = 6 * queries * items * width
                    row["achieved_share"] = achieved_share(flops, row["ms"] / 1e3, where.device)
                yield row


def losses(where: Where, dtype: torch.dtype) -> dict[str, Loss]:
    """Ours by Triton (in half precision, where it takes the place of chunks), in chunks of two sizes, and dense."""
    found: dict[str, Loss] = {}
    if dtype != torch.float32 or where.small:
        from fullrank.ops.triton_log_sum_exp import triton_log_sum_exp

        found["triton"] = partial(ours, triton_log_sum_exp)
    for elements in (CHUNK_ELEMENTS, GPU_ELEMENTS):
        found[f"chunks of {elements:,}"] = partial(ours, partial(chunked_log_sum_exp, chunk_elements=elements))
    found["dense"] = dense
    found["compiled_dense"] = torch.compile(dense, backend="eager" if where.small else "inductor")
    return found


def ours(log_sum_exp: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return (log_sum_exp(x, w) - (x * w[target]).sum(-1).float()).mean()


def dense(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy((x @ w.T).float(), target)


def inputs(
    device: torch.device, dtype: torch.dtype, queries: int, items: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    x, w = (
        (torch.randn(n, width, generator=generator, device=device) / width**0.25).to(dtype) for n in (queries, items)
    )
    return x, w, torch.randint(items, (queries,), generator=generator, device=device)


def learn(loss: Loss, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The loss, and its gradients made."""
    x, w = (t.detach().requires_grad_() for t in given[:2])
    value = loss(x, w, given[2])
    torch.autograd.grad(value, (x, w))
    return value.detach()


def megabytes(found: int | None) -> float | None:
    return None if found is None else found / 2**20
