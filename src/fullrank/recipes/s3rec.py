"""S3-Rec: pre-training on attributes and segments, then SASRec from those weights (Zhou et al., CIKM 2020).

Commands (arXiv:2008.07873)::

    fullrank train s3rec_pretrain --data data/s3rec-beauty --out runs/s3rec-pretrained
    fullrank train s3rec --from runs/s3rec-pretrained --data data/s3rec-beauty --out runs/s3rec

Items need a column `attributes` (a list of categories and the brand); others: ``--set
model.penalties=[{kind: s3rec, attributes: [brand, category]}]``. Without ``--from``, `s3rec` is
SASRec in the sizes of the pre-trained model. Both have the exact softmax and the cosine scores of
the recipe `sasrec`; the functions `published_pretrain` and `published` (``fullrank train
fullrank.recipes.s3rec:published ...``) have the authors' sizes, inner products and binary
cross-entropy with one negative.

Differs: what `regularizers/s3rec.py` says; every position of the second run is trained on; AdamW
for Adam. A run from another's weights begins with the best weights of validation of that run: the
authors choose the epoch of pre-training by what comes after it. Both runs, and the second alone:
`examples/s3rec.py`; numbers: `docs/results/sequence.md`.
"""

from __future__ import annotations

from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.losses import LossSpec
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropy
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.models.sequential.regularizers.s3rec import S3Rec
from fullrank.recipes import recipe
from fullrank.recipes.bert4rec import bert_blocks
from fullrank.run.experiment import Experiment, Training

SCORING = Scoring(similarity="cosine", temperature=0.06)
"""Scores of the recipe `sasrec`."""


@recipe(needs="events, attributes")
def s3rec_pretrain() -> Experiment:
    """S3-Rec, first run: masked items, attributes and segments (Zhou et al. 2020, arXiv:2008.07873)."""
    training = Training(max_epochs=30, lr=1e-3, batch_size=2048)
    return Experiment(recipe="s3rec_pretrain", model=_first(128, CrossEntropy(), SCORING), training=training)


@recipe(needs="events, a run of s3rec_pretrain")
def s3rec() -> Experiment:
    """S3-Rec, second run: next items, from the first run's weights (Zhou et al. 2020, arXiv:2008.07873)."""
    training = Training(max_epochs=30, lr=1e-3, batch_size=1024, warmup=0.02, patience=5)
    return Experiment(recipe="s3rec", model=_second(128, CrossEntropy(), SCORING), training=training)


def published_pretrain() -> Experiment:
    """The first run in the authors' sizes."""
    training = Training(max_epochs=100, lr=1e-3, batch_by="rows", batch_size=200, evaluate_every=10)
    return Experiment(recipe="s3rec-published-pretrain", model=_first(64, BCE(), Scoring()), training=training)


def published() -> Experiment:
    """The second run in the authors' sizes."""
    training = Training(max_epochs=200, lr=1e-3, batch_by="rows", batch_size=256, patience=10)
    return Experiment(recipe="s3rec-published", model=_second(64, BCE(), Scoring()), training=training)


def _encoder(causal: bool) -> Transformer:
    """BERT's blocks."""
    return bert_blocks(Softmax(heads=2, causal=causal, bias=True, dropout=0.5), 0.5, positions_from="end")


def _first(dim: int, loss: LossSpec, scoring: Scoring) -> Recommender:
    """The model of the first run: a cloze with the penalty."""
    task = Cloze(share=0.2, last=0.0)
    return Recommender(
        dim=dim, encoder=_encoder(causal=False), task=task, loss=loss, scoring=scoring, penalties=(S3Rec(),)
    )


def _second(dim: int, loss: LossSpec, scoring: Scoring) -> Recommender:
    """The model of the second run: next items, by the same blocks made causal."""
    return Recommender(dim=dim, encoder=_encoder(causal=True), loss=loss, scoring=scoring)
