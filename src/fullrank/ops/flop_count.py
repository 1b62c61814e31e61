"""The operations of matrix products as torch counts them while they run: what analytic counts are checked against.

Two operations for each multiplication with its addition; element-wise work, norms, softmax and look-ups count nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
PICKED = torch.ops.aten._embedding_bag_per_sample_weights_backward


def counted(run: Callable[[], object]) -> int:
    """The operations of everything that `run` computes."""
    counter = FlopCounterMode(display=False, custom_mapping={FUSED: _fused, PICKED: _picked})
    with counter:
        run()
    return int(counter.get_total_flops())


def _fused(q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """The fused attention of the CPU, which torch's counter does not know, in its convention: the whole square."""
    return int(sdpa_flop_count(q, k, v))


def _picked(queries: Any, table: Any, places: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """`fullrank.ops.picked_dots`: the product of a query with each row that was picked for it."""
    return 2 * int(places[0]) * int(table[1])
