"""BERT4Rec: bidirectional encoder trained on covered positions (Sun et al., arXiv:1904.06690).

Post-norm blocks, GELU, learned positions. Differs: one fresh cover per row and epoch for the pre-made ten, and our
exact softmax shares the item table without the output layer and bias.

Command: ``fullrank train bert4rec --data data/beauty --out runs/bert4rec``. Cost on amazon-beauty: 100 epochs of about
7 s on one core. Numbers:
`results/sequence/` (amazon-beauty and ml-1m, with the machine and the seconds of every run).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fullrank.experiment import Experiment, Training
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.recipes import RecipeSpec


class BERT4RecRecipe(RecipeSpec):
    """BERT4Rec: bidirectional encoder trained on covered positions (Sun et al. 2019, arXiv:1904.06690)."""

    kind: Literal["bert4rec"] = "bert4rec"
    needs: ClassVar[str] = "events"

    def build(self) -> Experiment:
        encoder = Transformer(
            layers=2, attention=Softmax(heads=2, causal=False, bias=True), norm="layer", norm_at="post",
            norm_eps=1e-12, norm_input=True, feed_forward="mlp", activation="gelu", bias=True,
            dropout=0.2, positions_from="end",
        )  # fmt: skip
        model = Recommender(dim=64, encoder=encoder, task=Cloze())
        training = Training(
            max_epochs=100, lr=1e-3, weight_decay=0.01, batch_size=2048, schedule="linear", warmup=0.05,
            clip_norm=5.0, evaluate_every=5, patience=8,
        )  # fmt: skip
        return Experiment(recipe="bert4rec", model=model, training=training)
