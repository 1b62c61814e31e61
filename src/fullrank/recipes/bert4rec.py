"""BERT4Rec: bidirectional encoder trained on covered positions (Sun et al., arXiv:1904.06690).

Post-norm blocks, GELU, learned positions. Differs: one fresh cover per row and epoch for the
pre-made ten, and our exact softmax shares the item table without the output layer and bias.

Command: ``fullrank train bert4rec --data data/beauty --out runs/bert4rec``. Cost on amazon-beauty:
100 epochs of about 7 s on one core. Numbers: `results/sequence/` (amazon-beauty and ml-1m, with the
machine and the seconds of every run).
"""

from __future__ import annotations

from typing import Literal

from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.recipes import recipe
from fullrank.run.experiment import Experiment, Training


@recipe(needs="events")
def bert4rec() -> Experiment:
    """BERT4Rec: bidirectional encoder trained on covered positions (Sun et al. 2019, arXiv:1904.06690)."""
    encoder = bert_blocks(Softmax(heads=2, causal=False, bias=True), 0.2, positions_from="end")
    model = Recommender(dim=64, encoder=encoder, task=Cloze())
    training = Training(
        max_epochs=100,
        lr=1e-3,
        weight_decay=0.01,
        batch_size=2048,
        schedule="linear",
        warmup=0.05,
        clip_norm=5.0,
        evaluate_every=5,
        patience=8,
    )
    return Experiment(recipe="bert4rec", model=model, training=training)


def bert_blocks(
    attention: Softmax,
    dropout: float,
    *,
    layers: int = 2,
    inner: int | None = None,
    positions_from: Literal["start", "end"] | None = None,
) -> Transformer:
    """BERT's blocks, which other papers took over: LayerNorm behind each sublayer, GELU, biases everywhere."""
    return Transformer(
        layers=layers,
        attention=attention,
        norm="layer",
        norm_at="post",
        norm_eps=1e-12,
        norm_input=True,
        feed_forward="mlp",
        activation="gelu",
        inner=inner,
        bias=True,
        dropout=dropout,
        positions_from=positions_from,
    )
