"""GRU4Rec: recurrent next-item prediction (Hidasi et al., arXiv:1511.06939).

Differs: whole histories of users for session-parallel batches, and the exact softmax for the pairwise losses.

Command: ``fullrank train gru4rec --data data/beauty --out runs/gru4rec``. Cost on amazon-beauty: at most 40 epochs of
about 20 s on one core. Numbers:
`results/sequence/` (amazon-beauty and ml-1m, with the machine and the seconds of every run).
"""

from __future__ import annotations

from fullrank.experiment import Experiment, Training
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.recipes import recipe


@recipe(needs="events")
def gru4rec() -> Experiment:
    """GRU4Rec: recurrent next-item prediction (Hidasi et al. 2016, arXiv:1511.06939)."""
    model = Recommender(dim=128, encoder=GRU(dropout=0.5), scoring=Scoring(similarity="cosine", temperature=0.06))
    training = Training(max_epochs=40, lr=1e-3, batch_size=1024, patience=5)
    return Experiment(recipe="gru4rec", model=model, training=training)
