"""Caser: convolutions over the last events (Tang & Wang, WSDM 2018, arXiv:1809.07426).

`caser` has the exact softmax and the cosine scores of the recipe `sasrec`; the function `published`, as ``fullrank
train fullrank.recipes.caser:published ...``, what the authors' code starts from: width 50, 16 horizontal filters of
each height and 4 vertical ones, binary cross-entropy with 3 negatives.

Command: ``fullrank train caser --data data/beauty --out runs/caser``. Learning rate and dropout are the choice of
`experiments/sequence/tune_classics.yaml`. Numbers: `docs/results/sequence.md`.

Differs: what `encoders/caser.py` says, above all that there is no vector of the user; AdamW for Adam; a batch is a
number of events in whole histories, not of windows.
"""

from __future__ import annotations

from fullrank.experiment import Experiment, Training
from fullrank.models.sequential.encoders.caser import Caser
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.recipes import recipe


@recipe(needs="events")
def caser() -> Experiment:
    """Caser: convolutions over the last events (Tang & Wang 2018, arXiv:1809.07426)."""
    encoder = Caser(activation="tanh", dropout=0.5)
    model = Recommender(dim=128, encoder=encoder, scoring=Scoring(similarity="cosine", temperature=0.06))
    training = Training(max_epochs=40, lr=2.7e-3, batch_size=1024, patience=5)
    return Experiment(recipe="caser", model=model, training=training)


def published() -> Experiment:
    """The settings that the authors' code starts from."""
    model = Recommender(dim=50, encoder=Caser(), loss=BCE(negatives=Negatives(count=3, exclude="history")))
    training = Training(max_epochs=50, lr=1e-3, weight_decay=1e-6, batch_size=1024, evaluate_every=5, patience=5)
    return Experiment(recipe="caser-published", model=model, training=training)
