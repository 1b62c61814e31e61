"""The obvious training step: rows padded to the longest history, all positions scored, all logits in memory at once.

Same modules, weights and batches as the library's step, and the same loss to the last few digits.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.models.sequential.model import RecommenderModel

IGNORED = -100


def padded_loss(model: RecommenderModel, batch: Batch) -> Float[Tensor, ""]:
    """Mean cross-entropy of the next item over the valid positions of [B, max_length, V] logits."""
    inputs, targets = padded(batch, model.max_length)
    states = model.encoder(model.items.embed(inputs.items), inputs).tokens
    logits = states @ model.items.all().T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def bytes_needed(rows: int, width: int, items: int) -> int:
    """Memory of one step: the logits, their log-softmax and their gradient, [rows, width, items] in fp32 each."""
    return 3 * 4 * rows * width * items


def padded(batch: Batch, width: int) -> tuple[Batch, Int[Tensor, "B L"]]:
    """Inputs of exactly `width` positions a row, and the target of each position (`IGNORED` where there is none)."""
    items = F.pad(batch.items, (0, width + 1 - batch.items.shape[1]))
    valid = torch.arange(width) < batch.lengths[:, None] - 1
    inputs = replace(batch, items=items[:, :-1], lengths=batch.lengths - 1)
    return inputs, torch.where(valid, items[:, 1:], IGNORED)
