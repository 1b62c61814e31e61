"""Train the top of a model alone: gradual unfreezing, as SRT's authors fine-tune (SIGIR 2024, Sec. 4.5).

With `training.top_blocks=i` the tables of the items (tokens, ids), the encoder's table of positions and all but the top
i blocks keep the weights that training starts from. What joins them is trained at any i: the map behind the tables of
items, norms, what the task, the reasoner and penalties add.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fullrank.core.errors import UserError
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.reading import reader_of


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
    below = [*_tables(model.items), *_tables(reader, but=stack), *blocks[: len(blocks) - top_blocks]]
    for module in below:
        module.requires_grad_(False)


def _tables(module: nn.Module, but: nn.Module | None = None) -> list[nn.Module]:
    """The tables of vectors within a module, without those of the module `but`."""
    own = set() if but is None else set(but.modules())
    return [found for found in module.modules() if isinstance(found, nn.Embedding) and found not in own]
