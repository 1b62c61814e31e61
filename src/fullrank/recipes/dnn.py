"""DNN: a perceptron of 3 x 400 on all field vectors.

Source: Covington et al., RecSys 2016, as BARS configures it.
Training as in `recipes/rankelastor.py`, so that a comparison differs in the ranker alone.

Command: ``fullrank train dnn --data data/ctr --out runs/dnn``.
Cost: an epoch takes about 20 s of one core on ml-1m. Numbers: results/rankelastor/.
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.models.ranking.dnn import DNN
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.model import RankingModel
from fullrank.recipes.rankelastor import SMALL


class DNNRecipe(Spec):
    """DNN at CPU size."""

    kind: Literal["dnn"] = "dnn"

    def build(self) -> Experiment:
        model = RankingModel(embedding=Embedding(l2=1e-5), ranker=DNN())
        return Experiment(recipe="dnn", model=model, training=SMALL)
