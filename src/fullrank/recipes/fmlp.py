"""FMLP-Rec: filters in the frequency domain for self-attention (Zhou et al., WWW 2022, arXiv:2202.13556).

`fmlp` trains on all positions of a history in one pass, with causal filters, the exact softmax and the cosine scores of
the recipe `sasrec`. `published`, as ``fullrank train fullrank.recipes.fmlp:published ...``, has the authors' circular
filters and sizes: every prefix of a history is a row that predicts its next item, with one negative.

Command: ``fullrank train fmlp --data data/beauty --out runs/fmlp``.

Differs: what `encoders/fmlp.py` says; binary cross-entropy for the pairwise loss in `published`, AdamW for Adam, and
batches of events of rows of like length.
"""

from __future__ import annotations

from fullrank.experiment import Experiment, Training
from fullrank.models.sequential.encoders.fmlp import FMLP
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.recipes import recipe


@recipe(needs="events")
def fmlp() -> Experiment:
    """FMLP-Rec: learnable filters in the frequency domain (Zhou et al. 2022, arXiv:2202.13556)."""
    model = Recommender(dim=128, encoder=FMLP(), scoring=Scoring(similarity="cosine", temperature=0.06))
    training = Training(max_epochs=40, lr=1e-3, batch_size=1024, warmup=0.02, patience=5)
    return Experiment(recipe="fmlp", model=model, training=training)


def published() -> Experiment:
    """Circular filters, a row for each prefix, one negative: the authors' sizes."""
    model = Recommender(
        dim=64, encoder=FMLP(causal=False), task=LastItem(per_user=None),
        loss=BCE(negatives=Negatives(count=1, exclude="history")),
    )  # fmt: skip
    training = Training(max_epochs=200, lr=1e-3, batch_by="rows", batch_size=256, patience=10)
    return Experiment(recipe="fmlp-published", model=model, training=training)
