"""Preparation of a model before its first step: a part is compiled, blocks below the top ones are frozen.

`training.compile`: the part that torch.compile gains by, in place, for training and validation.
That is the encoder of a recommender and the ranker behind the embeddings of a ranking model: what
is around them (items of any number, exact softmax, sparse look-ups) is one large product or changes
its shape with every batch. Weights and their names stay as they are.

`training.top_blocks=i` trains the top of a model alone: gradual unfreezing, as SRT's authors
fine-tune (SIGIR 2024, Sec. 4.5). The tables of the items (tokens, ids), the encoder's table of
positions and all but the top i blocks keep the weights that training starts from. What joins
them is trained at any i: the map behind the tables of items, norms, what the task, the
reasoner and penalties add.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fullrank.core.errors import UserError, brief, reason_line
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.model.reading import reader_of
from fullrank.run.experiment import Training

BACKEND = "inductor"
"""The compiler behind torch.compile."""


def compile_part(model: RecommenderModel | RankingModule, training: Training, device: torch.device) -> None:
    """Compile the part where the setting says so, for batches of any number and length of rows.

    Raises `UserError` where nothing can be compiled for this device, which one addition shows at
    once.
    """
    if not training.compile:
        return
    try:
        torch.compile(lambda x: x + 1, backend=BACKEND)(torch.zeros(2, device=device))
    except Exception as error:  # of torch's own, of a compiler, of a driver: there is no common class
        raise UserError(
            f"torch.compile makes no kernels for {device.type} here ({brief(reason_line(error))}): install a C++ "
            "compiler, on a GPU Triton too, or leave out training.compile",
            code="compiler-missing",
        ) from None
    part: nn.Module = model.encoder if isinstance(model, RecommenderModel) else model.ranker
    part.compile(backend=BACKEND, dynamic=True)


def freeze_below(model: nn.Module, top_blocks: int | None) -> None:
    """Turn off the gradients of what lies below the top blocks; None leaves all as it is.

    Raises `UserError` for a model without blocks, and where it has fewer.
    """
    if top_blocks is None:
        return
    if not isinstance(model, RecommenderModel) or (reader := reader_of(model)) is None:
        raise UserError(
            "training.top_blocks is of a recommender whose encoder has blocks (transformers); leave it out here",
            code="encoder-without-blocks",
        )
    stack: Any = reader.blocks
    blocks = list(stack)
    if top_blocks > len(blocks):
        raise UserError(
            f"training.top_blocks={top_blocks} and the encoder has {len(blocks)} blocks; allowed: 0 to {len(blocks)}",
            code="setting-out-of-range",
        )
    inside = set(stack.modules())
    around = [module for module in (*model.items.modules(), *reader.modules()) if module not in inside]
    tables = [module for module in around if isinstance(module, nn.Embedding)]
    for module in (*tables, *blocks[: len(blocks) - top_blocks]):
        module.requires_grad_(False)
