"""HGN: gates on features and events, and products of items with items (Ma, Kang & Liu, KDD 2019, arXiv:1906.09217).

`hgn` has the exact softmax and the cosine scores of the recipe `sasrec`; the function `published`, as ``fullrank train
fullrank.recipes.hgn:published ...``, what the authors' code starts from: width 50, one negative, inner products.

Command: ``fullrank train hgn --data data/beauty --out runs/hgn``. Learning rate and dropout are the choice of
`experiments/sequence/tune_classics.yaml`. Numbers: `docs/results/sequence.md`.

Differs: what `encoders/hgn.py` says, above all that there is no vector of the user; binary cross-entropy for the
pairwise loss in `published`, AdamW for Adam; a batch is a number of events in whole histories, not of windows.
"""

from __future__ import annotations

from fullrank.experiment import Experiment, Training
from fullrank.models.sequential.encoders.hgn import HGN
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.recipes import recipe


@recipe(needs="events")
def hgn() -> Experiment:
    """HGN: gates on features and events of the last few (Ma, Kang & Liu 2019, arXiv:1906.09217)."""
    encoder = HGN(dropout=0.5)
    model = Recommender(dim=128, encoder=encoder, scoring=Scoring(similarity="cosine", temperature=0.06))
    training = Training(max_epochs=40, lr=2.7e-3, batch_size=1024, patience=5)
    return Experiment(recipe="hgn", model=model, training=training)


def published() -> Experiment:
    """The settings that the authors' code starts from."""
    model = Recommender(dim=50, encoder=HGN(), loss=BCE(negatives=Negatives(count=1, exclude="history")))
    training = Training(max_epochs=200, lr=1e-3, weight_decay=1e-3, batch_size=4096, evaluate_every=5, patience=5)
    return Experiment(recipe="hgn-published", model=model, training=training)
