"""Random numbers as a function of their place: hash(seed, step, row, draw), the same on every shard and resume."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_M1, _M2, _GOLDEN = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15, -0x61C8864680B583EB  # splitmix64, as signed 64-bit


def uniform(seed: int, step: int, rows: Int[Tensor, "R"], draws: int) -> Float[Tensor, "R draws"]:
    """Float64 in [0, 1): `draws` numbers for each row id, independent of which other rows are asked for."""
    place = _mix(torch.tensor(seed % 2**63, dtype=torch.int64, device=rows.device) * _GOLDEN + step)
    row = _mix(place ^ (rows.long() * _M1))
    count = torch.arange(1, draws + 1, dtype=torch.int64, device=rows.device)
    bits = _mix(row[:, None] + count * _GOLDEN)
    return ((bits >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def _mix(x: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    x = (x ^ _shift(x, 30)) * _M1
    x = (x ^ _shift(x, 27)) * _M2
    return x ^ _shift(x, 31)


def _shift(x: Int[Tensor, "*n"], by: int) -> Int[Tensor, "*n"]:
    """Logical shift to the right."""
    return (x >> by) & ((1 << (64 - by)) - 1)
