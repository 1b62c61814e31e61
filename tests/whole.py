"""A whole recommender on a pattern that can be learned in a few steps."""

from typing import Any

import torch
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.models.sequential.objectives.negatives import Negatives
from tiny import catalog, padded, plain

V = 12


def pattern(step: int = 0) -> Batch:
    """Every item is followed by the next one on a circle; rows start and end elsewhere in each step."""
    return padded([[(start + t) % V for t in range(3 + (start + step) % 4)] for start in range(V)], step=step)


def small(kind: str) -> Any:
    """A loss with few negatives."""
    loss = plain(("objectives.losses", kind))
    if hasattr(loss, "negatives"):
        return loss.model_copy(update={"negatives": Negatives(count=6, share="row", popularity=0.5)})
    return loss


def label(spec: Recommender) -> str:
    return "-".join((spec.task.kind_of(), spec.loss.kind_of(), spec.encoder.kind_of(), spec.scoring.similarity))


def build(spec: Recommender, seed: int = 0) -> RecommenderModel:
    torch.manual_seed(seed)
    return spec.build(catalog(V))


def scores(model: RecommenderModel) -> Tensor:
    with torch.inference_mode():
        return model.answer(pattern()).block(0, V)
