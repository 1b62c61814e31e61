"""Exact retrieval over ten million items: vectors of users against all item vectors on the device, 100 best each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.device import Where, milliseconds, peak_memory, refusals
from benchmarks.gpu.exact_softmax import megabytes
from fullrank.inference.exact import top_k
from fullrank.models import DenseScorer

ITEMS, WIDTH, K = 10_000_000, 64, 100
BATCHES = (1, 64, 1024)
BLOCK = 262_144
"""Items whose scores are alive at once; of 1,024 users 1 GB."""


def rows(where: Where) -> Iterator[dict[str, Any]]:
    items, block = where.of(ITEMS, 3000), where.of(BLOCK, 1000)
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator(where.device).manual_seed(0)
        table = torch.empty(items, WIDTH, dtype=dtype, device=where.device)
        for low in range(0, items, block):
            part = table[low : low + block]
            part.copy_(torch.randn(part.shape, generator=generator, device=where.device))
        for users in (1, 3) if where.small else BATCHES:
            row: dict[str, Any] = {"items": items, "width": WIDTH, "dtype": str(dtype), "users": users, "k": K}
            with refusals(row):
                asked = torch.randn(users, WIDTH, generator=generator, device=where.device).to(dtype)

                @torch.inference_mode()
                def search(asked: torch.Tensor = asked, table: torch.Tensor = table) -> object:
                    return top_k(DenseScorer(asked, table), K, block=block)

                row["peak_mb"] = megabytes(peak_memory(search, where.device))
                row["ms"] = milliseconds(search, where.device, rounds=where.of(10, 1), warm=2)
                row["users_per_s"] = users / row["ms"] * 1e3
            yield row
        del table
