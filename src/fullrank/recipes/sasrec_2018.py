"""SASRec as published: binary cross-entropy with one negative (Kang & McAuley 2018, arXiv:1808.09781).

Post-embedding scale sqrt(d), pre-norm LayerNorm, feed-forward of the model's width, dropout on the residual paths.
Differs: AdamW without decay for Adam; rows of like length share a batch.

Command: ``fullrank train sasrec_2018 --data data/beauty --out runs/sasrec_2018``. Cost on amazon-beauty: at most 200
epochs of a few seconds on one core. Numbers:
`results/sequence/` (amazon-beauty and ml-1m, with the machine and the seconds of every run).
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment, Training
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.losses.bce import BCE


class SASRec2018Recipe(Spec):
    """The original SASRec."""

    kind: Literal["sasrec_2018"] = "sasrec_2018"

    def build(self) -> Experiment:
        encoder = Transformer(
            layers=2, attention=Softmax(heads=1, bias=True), norm="layer", norm_eps=1e-8, feed_forward="mlp",
            inner=64, activation="relu", bias=True, scale_input=True, dropout=0.5, positions_from="end",
        )  # fmt: skip
        model = Recommender(dim=64, encoder=encoder, loss=BCE())
        training = Training(max_epochs=200, lr=1e-3, batch_size=2048, betas=(0.9, 0.98), evaluate_every=5, patience=5)
        return Experiment(recipe="sasrec_2018", model=model, training=training)
