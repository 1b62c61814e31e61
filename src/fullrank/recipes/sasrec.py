"""SASRec as we recommend it: self-attention, exact softmax over the catalogue, cosine scores.

Sources: Kang & McAuley 2018 (arXiv:1808.09781) for the model; exact cross-entropy as in Petrov & Macdonald and
Klenitskiy & Vasilev (arXiv:2309.07602); cosine scores with a temperature.

Command: ``fullrank train sasrec --data data/beauty --out runs/sasrec``; long histories want ``--set
model.max_length=200 --set model.encoder.dropout=0.2 --set model.encoder.input_dropout=0.2``. Cost on amazon-beauty: 30
epochs of about 27 s on one core.
Numbers: `results/sequence/` (amazon-beauty and ml-1m, with the machine and the seconds of every run).
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment, Training
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropy


class SASRecRecipe(Spec):
    """Self-attentive sequential recommendation with an exact softmax."""

    kind: Literal["sasrec"] = "sasrec"

    def build(self) -> Experiment:
        encoder = Transformer(
            layers=2, attention=Softmax(heads=2, bias=True), norm="layer", feed_forward="mlp", activation="gelu",
            bias=True, dropout=0.4, input_dropout=0.5, scale_input=True, positions_from="end",
        )  # fmt: skip
        model = Recommender(
            dim=128, encoder=encoder, loss=CrossEntropy(), scoring=Scoring(similarity="cosine", temperature=0.06)
        )
        training = Training(max_epochs=30, lr=1e-3, batch_size=1024, warmup=0.02, patience=5)
        return Experiment(recipe="sasrec", model=model, training=training)
