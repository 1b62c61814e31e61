"""FDSA: self-attention on ids and on features apart, joined by a linear layer (Zhang et al., IJCAI 2019).

Command: ``fullrank train fdsa --data data/s3rec-beauty --out runs/fdsa``. Items need a column `attributes` (a list of
categories and the brand); others: ``--set model.items.categorical=[brand,category]``.

`fdsa` has the blocks, the exact softmax and the cosine scores of the recipe `sasrec`, with half of the width for each
stream.

Differs: what `encoders/fdsa.py` and `items/features.py` say; the exact softmax for binary cross-entropy, and no titles
among the features.
"""

from __future__ import annotations

from fullrank.experiment import Experiment, Training
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.fdsa import FDSA
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.features import Features
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.recipes import recipe


@recipe(needs="events, attributes")
def fdsa() -> Experiment:
    """FDSA: self-attention on ids and on features apart (Zhang et al. 2019)."""
    stream = Transformer(
        layers=2, attention=Softmax(heads=2, bias=True), norm="layer", feed_forward="mlp", activation="gelu",
        bias=True, dropout=0.4, input_dropout=0.5, scale_input=True, positions_from="end",
    )  # fmt: skip
    model = Recommender(
        dim=128, items=Features(categorical=("attributes",), combine="beside"),
        encoder=FDSA(ids=stream, features=stream), scoring=Scoring(similarity="cosine", temperature=0.06),
    )  # fmt: skip
    training = Training(max_epochs=30, lr=1e-3, batch_size=1024, warmup=0.02, patience=5)
    return Experiment(recipe="fdsa", model=model, training=training)
