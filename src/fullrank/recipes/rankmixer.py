"""RankMixer: block transpose and GELU networks per token, 16 tokens of width 32.

Source: Zhu et al. 2025, arXiv:2507.15551.
Training as in `recipes/rankelastor.py`, so that a comparison differs in the ranker alone.

Command: ``fullrank train rankmixer --data data/ctr --out runs/rankmixer``.
Cost: an epoch takes about 40 s of one core on ml-1m. Numbers: results/rankelastor/.
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.model import RankingModel
from fullrank.models.ranking.rankmixer import RankMixer
from fullrank.recipes.rankelastor import SMALL, TOKENS


class RankMixerRecipe(Spec):
    """RankMixer at CPU size."""

    kind: Literal["rankmixer"] = "rankmixer"

    def build(self) -> Experiment:
        return Experiment(
            recipe="rankmixer",
            model=RankingModel(embedding=Embedding(l2=1e-5), ranker=RankMixer(width=32, tokeniser=TOKENS)),
            training=SMALL,
        )
