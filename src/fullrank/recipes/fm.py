"""Factorization machine: inner products of all pairs of fields.

Source: Rendle, ICDM 2010.
Training as in `recipes/rankelastor.py`, so that a comparison differs in the ranker alone.

Command: ``fullrank train fm --data data/ctr --out runs/fm``.
Cost: an epoch takes about 4 s of one core on ml-1m. Numbers: results/rankelastor/.
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.fm import FM
from fullrank.models.ranking.model import RankingModel
from fullrank.recipes.rankelastor import SMALL


class FMRecipe(Spec):
    """Factorization machine at CPU size."""

    kind: Literal["fm"] = "fm"

    def build(self) -> Experiment:
        model = RankingModel(embedding=Embedding(l2=1e-5), ranker=FM())
        return Experiment(recipe="fm", model=model, training=SMALL)
