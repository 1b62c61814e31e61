"""xDeepFM: two CIN layers of 16 maps, a perceptron of 3 x 400, and the linear part.

Source: Lian et al., KDD 2018, arXiv:1803.05170.
Training as in `recipes/rankelastor.py`, so that a comparison differs in the ranker alone.

Command: ``fullrank train xdeepfm --data data/ctr --out runs/xdeepfm``.
Cost: an epoch takes about 75 s of one core on ml-1m. Numbers: results/rankelastor/.
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.model import RankingModel
from fullrank.models.ranking.xdeepfm import XDeepFM
from fullrank.recipes.rankelastor import SMALL


class XDeepFMRecipe(Spec):
    """xDeepFM at CPU size."""

    kind: Literal["xdeepfm"] = "xdeepfm"

    def build(self) -> Experiment:
        model = RankingModel(embedding=Embedding(l2=1e-5), ranker=XDeepFM())
        return Experiment(recipe="xdeepfm", model=model, training=SMALL)
