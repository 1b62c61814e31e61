"""`training.compile`: the part of a model that torch.compile gains by, compiled in place for training and validation.

That is the encoder of a recommender and the ranker behind the embeddings of a ranking model: what is around them (items
of any number, exact softmax, sparse look-ups) is one large product or changes its shape with every batch. Weights and
their names stay as they are.
"""

from __future__ import annotations

from torch import nn

from fullrank.experiment import Training
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import RecommenderModel

BACKEND = "inductor"


def compile_part(model: RecommenderModel | RankingModule, training: Training) -> None:
    """Compile it where the setting says so, for batches of any number and length of rows."""
    if training.compile:
        part: nn.Module = model.encoder if isinstance(model, RecommenderModel) else model.ranker
        part.compile(backend=BACKEND, dynamic=True)
