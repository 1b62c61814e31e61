"""SASRec++: the Llama-style SASRec that SPRINT scales (SPRINT, Sec. 5.1 and B.2).

RoPE, RMSNorm before each sublayer, SwiGLU of inner width 4d, dropout on attention weights alone, binary cross-entropy
with 16 negatives per history. Differs: full-catalogue ranking leaves the history out by default; the paper ranks it
(``--set evaluation.seen=keep``).

Command: ``fullrank train sasrec_plus --data data/beauty --out runs/sasrec_plus``. Cost on amazon-beauty: at most 100
epochs of about 4 s on one core. Numbers:
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
from fullrank.models.sequential.objectives.negatives import Negatives


class SASRecPlusRecipe(Spec):
    """SASRec++ of SPRINT."""

    kind: Literal["sasrec_plus"] = "sasrec_plus"

    def build(self) -> Experiment:
        encoder = Transformer(
            layers=2, attention=Softmax(heads=2, rope=True, dropout=0.2), norm="rms", feed_forward="swiglu",
            positions="none", dropout=0.0,
        )  # fmt: skip
        negatives = Negatives(count=16, share="row", exclude="history")
        model = Recommender(dim=64, encoder=encoder, loss=BCE(negatives=negatives))
        training = Training(
            max_epochs=100, lr=1e-3, weight_decay=0.1, batch_size=4096, schedule="linear", warmup=0.05, clip_norm=1.0,
            evaluate_every=5, patience=5,
        )  # fmt: skip
        return Experiment(recipe="sasrec_plus", model=model, training=training)
