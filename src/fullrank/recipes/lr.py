"""Logistic regression on the fields: the floor of every table of rankers.

Source: McMahan et al., KDD 2013.
Training as in `recipes/rankelastor.py`, so that a comparison differs in the ranker alone.

Command: ``fullrank train lr --data data/ctr --out runs/lr``.
Cost: an epoch takes about 2 s of one core on ml-1m. Numbers: results/rankelastor/.
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.lr import LR
from fullrank.models.ranking.model import RankingModel
from fullrank.recipes.rankelastor import SMALL


class LRRecipe(Spec):
    """Logistic regression on the fields at CPU size."""

    kind: Literal["lr"] = "lr"

    def build(self) -> Experiment:
        model = RankingModel(embedding=Embedding(l2=1e-5), ranker=LR())
        return Experiment(recipe="lr", model=model, training=SMALL)
