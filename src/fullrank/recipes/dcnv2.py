"""DCN V2: three cross layers beside a perceptron of 3 x 400.

Source: Wang et al., WWW 2021, arXiv:2008.13535.
Training as in `recipes/rankelastor.py`, so that a comparison differs in the ranker alone.

Command: ``fullrank train dcnv2 --data data/ctr --out runs/dcnv2``.
Cost: an epoch takes about 25 s of one core on ml-1m. Numbers: results/rankelastor/.
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.models.ranking.dcnv2 import DCNv2
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.model import RankingModel
from fullrank.recipes.rankelastor import SMALL


class DCNv2Recipe(Spec):
    """DCN V2 at CPU size."""

    kind: Literal["dcnv2"] = "dcnv2"

    def build(self) -> Experiment:
        model = RankingModel(embedding=Embedding(l2=1e-5), ranker=DCNv2())
        return Experiment(recipe="dcnv2", model=model, training=SMALL)
