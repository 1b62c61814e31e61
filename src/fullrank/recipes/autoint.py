"""AutoInt+: three layers of attention over the fields beside a perceptron of 3 x 400.

Source: Song et al., CIKM 2019, arXiv:1810.11921.
Training as in `recipes/rankelastor.py`, so that a comparison differs in the ranker alone.

Command: ``fullrank train autoint --data data/ctr --out runs/autoint``.
Cost: not measured yet. Numbers: none recorded yet.
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.models.ranking.autoint import AutoInt
from fullrank.models.ranking.deep import Deep
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.model import RankingModel
from fullrank.recipes.rankelastor import SMALL


class AutoIntRecipe(Spec):
    """AutoInt+ at CPU size."""

    kind: Literal["autoint"] = "autoint"

    def build(self) -> Experiment:
        return Experiment(
            recipe="autoint",
            model=RankingModel(embedding=Embedding(l2=1e-5), ranker=AutoInt(deep=Deep())),
            training=SMALL,
        )
