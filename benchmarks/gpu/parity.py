"""Every Triton kernel against its reference on the device: values and gradients, at odd sizes, in fp32 and bf16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.device import Where, refusals
from fullrank.ops.kernels import NAMES, TOLERANCE, trial

Case = tuple[tuple[int, ...], tuple[int, ...]]
TINY: dict[str, list[Case]] = {
    "triton_log_sum_exp": [((16,), (35, 70))],
    "triton_column_attention": [((16, 16), (1, 2, 33))],
    "triton_silu_attention": [((16, 16), (1, 2, 33))],
}
CASES: dict[str, list[Case]] = {
    "triton_log_sum_exp": [((16,), (1, 1)), ((64,), (67, 141)), ((64,), (1000, 5003)), ((128,), (333, 20_011))],
    "triton_column_attention": [((16, 16), (1, 1, 1)), ((32, 64), (3, 2, 77)), ((64, 64), (3, 4, 201))],
    "triton_silu_attention": [((16, 16), (1, 1, 1)), ((32, 64), (3, 2, 77)), ((64, 64), (3, 4, 201))],
}
"""Kernel -> blocks that hold the widths, and sizes, of its trial."""
HALF_ALONE: dict[str, list[Case]] = {
    "triton_log_sum_exp": [((256,), (100, 999))],
    "triton_column_attention": [((128, 128), (2, 2, 130))],
    "triton_silu_attention": [((128, 128), (2, 2, 130))],
}
"""Widths that are taken in half precision alone."""


def rows(where: Where) -> Iterator[dict[str, Any]]:
    for name in NAMES:
        errors = trial(name)
        for dtype in (torch.float32, torch.bfloat16):
            more = HALF_ALONE[name] if dtype == torch.bfloat16 else []
            for blocks, sizes in TINY[name] if where.small else [*CASES[name], *more]:
                row: dict[str, Any] = {"kernel": name, "dtype": str(dtype), "blocks": blocks, "sizes": sizes}
                with refusals(row):
                    found = errors(where.device, dtype, blocks, sizes)
                    worst = max(found, key=lambda what: found[what])
                    row |= {"largest_error": found[worst], "of": worst, "tolerance": TOLERANCE[dtype]}
                    row["right"] = all(error <= TOLERANCE[dtype] for error in found.values())
                yield {**row, "right": row.get("right", False)}
