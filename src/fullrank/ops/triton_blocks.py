"""Parts of every Triton kernel: a block of rows of a matrix, its size, and the unit that scores are computed in.

`triton` is imported here, so nothing imports this module but the kernels, and the kernels
are imported when they run.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from fullrank.ops.kernels import block_of, triton_dtype

BLOCK = 64
"""Queries of a program of attention, and keys that it meets at a time; half as many in fp32, of
which more would not fit shared memory. Not measured."""
LOG2_E = tl.constexpr(math.log2(math.e))
"""Scores times this are in bits: GPUs have an instruction for exp2, none for exp."""


def launch(q: Tensor, v: Tensor, **fixed: Any) -> tuple[tuple[int, int], tuple[int, int, int], dict[str, Any]]:
    """The grid (heads of users, blocks of a row), T, e and f, and what is fixed
    when such a kernel is compiled."""
    (b, h, t, e), f = q.shape, v.shape[3]
    block = BLOCK // 2 if q.dtype == torch.float32 else BLOCK
    fixed |= {
        "BLOCK_T": block,
        "BLOCK_E": block_of(e),
        "BLOCK_F": block_of(f),
        "DTYPE": triton_dtype(q.dtype),
        "num_warps": 4 if max(e, f) <= 32 else 8,
    }
    return (b * h, triton.cdiv(t, block)), (t, e, f), fixed


def trial_heads(
    device: torch.device, dtype: torch.dtype, blocks: tuple[int, ...], sizes: tuple[int, int, int]
) -> list[Float[Tensor, "B H T _"]]:
    """Random queries, keys and values of `sizes` (rows, heads, length), of odd widths inside the blocks."""
    generator = torch.Generator().manual_seed(sizes[2])
    widths = blocks[0] - 3, blocks[0] - 3, blocks[1] - 5
    return [torch.randn(*sizes, width, generator=generator).to(device, dtype) for width in widths]


@triton.jit
def rows_of(pointer, at, most, width, BLOCK_D: tl.constexpr, DTYPE: tl.constexpr):
    """Rows `at` of a matrix of `most` rows of this width, zero where there are none."""
    d = tl.arange(0, BLOCK_D)
    mask = (at < most)[:, None] & (d < width)[None, :]
    return tl.load(pointer + at.to(tl.int64)[:, None] * width + d[None, :], mask=mask, other=0.0).to(DTYPE)


@triton.jit
def put_rows(pointer, at, most, width, rows, BLOCK_D: tl.constexpr):
    """Write rows `at` of such a matrix, those that there are."""
    d = tl.arange(0, BLOCK_D)
    mask = (at < most)[:, None] & (d < width)[None, :]
    tl.store(pointer + at.to(tl.int64)[:, None] * width + d[None, :], rows, mask=mask)
