"""`training.compile`: the part of a model that torch.compile gains by, compiled in place for training and validation.

That is the encoder of a recommender and the ranker behind the embeddings of a ranking model: what is around them (items
of any number, exact softmax, sparse look-ups) is one large product or changes its shape with every batch. Weights and
their names stay as they are.
"""

from __future__ import annotations

import torch
from torch import nn

from fullrank.core.errors import UserError, brief
from fullrank.experiment import Training
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import RecommenderModel

BACKEND = "inductor"


def compile_part(model: RecommenderModel | RankingModule, training: Training, device: torch.device) -> None:
    """Compile it where the setting says so, for batches of any number and length of rows.

    Raises `UserError` where nothing can be compiled for this device, which one addition shows at once.
    """
    if not training.compile:
        return
    try:
        torch.compile(lambda x: x + 1, backend=BACKEND)(torch.zeros(2, device=device))
    except Exception as error:  # of torch's own, of a compiler, of a driver: there is no common class
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"torch.compile makes no kernels for {device.type} here ({brief(first)}): install a C++ compiler, on a GPU "
            "Triton too, or leave out training.compile",
            code="compiler-missing",
        ) from None
    part: nn.Module = model.encoder if isinstance(model, RecommenderModel) else model.ranker
    part.compile(backend=BACKEND, dynamic=True)
