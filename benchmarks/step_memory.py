"""Peak memory of one training step in a process of its own: ``python -m benchmarks.step_memory MODE ROWS LENGTH``.

Modes: `fused` without SPRINT (torch's attention), `blocked` with it, `slow` with it and the twin that holds weights.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import polars as pl
import torch
from torch import Tensor

from benchmarks.memory import in_a_process, peak_above
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.attention import softmax
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.models.sequential.regularizers.sprint import Sprint
from fullrank.ops.column_attention import column_attention_reference

MODES = ("fused", "blocked", "slow")
ITEMS = 12_101
"""As many as amazon-beauty has."""


def model_of(mode: str, dim: int = 256) -> RecommenderModel:
    """SASRec++ of 4 layers and 4 heads without dropout, with SPRINT or without."""
    if mode == "slow":
        softmax.column_attention = _holding_weights  # type: ignore[assignment]
    encoder = Transformer(layers=4, attention=Softmax(heads=4, rope=True), positions="none", dropout=0.0)
    spec = Recommender(
        dim=dim, max_length=1024, encoder=encoder, loss=BCE(negatives=Negatives(count=16, share="row")),
        penalties=() if mode == "fused" else (Sprint(),),
    )  # fmt: skip
    torch.manual_seed(0)
    counts = np.maximum(1, 10_000 // np.arange(1, ITEMS + 1))
    frame = pl.DataFrame({"item": np.arange(ITEMS), "item_id": np.arange(ITEMS), "train_count": counts})
    return spec.build(Catalog(frame))


def _holding_weights(q: Tensor, k: Tensor, v: Tensor, valid: Tensor, *, causal: bool, **_: object) -> object:
    return column_attention_reference(q, k, v, valid, causal=causal)


def rows_of(rows: int, length: int) -> Batch:
    """Full rows of random items: `length` predictions each."""
    draw = torch.Generator().manual_seed(rows)
    items = torch.randint(0, ITEMS, (rows, length + 1), generator=draw)
    return Batch(items, torch.full((rows,), length + 1), rows=torch.arange(rows))


def measured(mode: str, rows: int, length: int, *, threads: int) -> float:
    """Megabytes of a step above the level before it, in a fresh process."""
    return in_a_process("benchmarks.step_memory", mode, rows, length, threads)["peak_mb"]


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("rows", type=int)
    parser.add_argument("length", type=int)
    parser.add_argument("threads", type=int, nargs="?", default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = model_of(options.mode).train()

    def step(rows: int, length: int) -> None:
        torch.stack(list(model(rows_of(rows, length)).values())).sum().backward()

    step(2, 16)  # code and thread pools in memory, gradients allocated
    _, peak = peak_above(lambda: step(options.rows, options.length))
    print(json.dumps({"peak_mb": peak}))


if __name__ == "__main__":
    _main()
