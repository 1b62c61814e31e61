"""HSTU++: the generalised HSTU that SPRINT scales (SPRINT, Sec. 5.1 and B.2; the example configuration of its code).

SiLU attention without gate, norm and relative biases, RoPE after the SiLU, RMSNorm before each sublayer and at the end,
SwiGLU of inner width 4d, no learned positions, dropout on attention weights alone, binary cross-entropy with 16
negatives per history. It reads no times. Differs: attention divides by `max_length` where SPRINT's code takes the
padded length of the batch; full-catalogue ranking leaves the history out by default, the paper ranks it (``--set
evaluation.seen=keep``).

Command: ``fullrank train hstu_plus --data data/beauty --out runs/hstu_plus``. At most 100 epochs. No numbers yet.
"""

from __future__ import annotations

from typing import Literal

from fullrank.attention.hstu import HSTU
from fullrank.encoders.transformer import Transformer
from fullrank.experiment import Experiment, Training
from fullrank.objectives.losses.bce import BCE
from fullrank.objectives.negatives import Negatives
from fullrank.recommender import Recommender
from fullrank.spec import Spec


class HSTUPlusRecipe(Spec):
    """The HSTU of SPRINT's tables."""

    kind: Literal["hstu_plus"] = "hstu_plus"

    def build(self) -> Experiment:
        attention = HSTU(heads=2, gate=False, rel_bias="none", rope=True, bias=False, weight_dropout=0.2)
        encoder = Transformer(
            layers=2, attention=attention, norm="rms", feed_forward="swiglu", positions="none", dropout=0.0
        )  # fmt: skip
        negatives = Negatives(count=16, share="row", exclude="history")
        model = Recommender(dim=64, encoder=encoder, loss=BCE(negatives=negatives))
        training = Training(
            max_epochs=100, lr=1e-3, weight_decay=0.1, batch_size=4096, schedule="linear", warmup=0.05, clip_norm=1.0,
            evaluate_every=5, patience=5,
        )  # fmt: skip
        return Experiment(recipe="hstu_plus", model=model, training=training)
