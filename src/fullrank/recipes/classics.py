"""Sequence models without attention: GRU4Rec, Caser, HGN and FMLP-Rec.

All have the exact softmax and the cosine scores of the recipe `sasrec`. The
functions `caser_published`, `hgn_published` and `fmlp_published`, as ``fullrank
train fullrank.recipes.classics:caser_published ...``, have the settings that the
authors' code starts from.

`gru4rec`: recurrent next-item prediction (Hidasi et al., arXiv:1511.06939). Differs: whole
histories of users for session-parallel batches, and the exact softmax for the pairwise losses. Cost
on amazon-beauty: at most 40 epochs of about 20 s on one core.

`caser`: convolutions over the last events (Tang & Wang, WSDM 2018, arXiv:1809.07426). Published:
width 50, 16 horizontal filters of each height and 4 vertical ones, binary cross-entropy with 3
negatives. Differs: what `encoders/caser.py` says, above all that there is no vector of the user;
AdamW for Adam; a batch is a number of events in whole histories, not of windows.

`hgn`: gates on features and events, and products of items with items (Ma, Kang & Liu,
KDD 2019, arXiv:1906.09217). Published: width 50, one negative, inner products.
Differs: what `encoders/hgn.py` says, and as `caser`; binary cross-entropy for the
pairwise loss in `hgn_published`.

`fmlp`: filters in the frequency domain for self-attention (Zhou et al., WWW 2022,
arXiv:2202.13556), which trains on all positions of a history in one pass, with causal
filters. Published: the authors' circular filters and sizes, where every prefix of a history
is a row that predicts its next item, with one negative. Differs: what `encoders/fmlp.py`
says; binary cross-entropy for the pairwise loss in `fmlp_published`, AdamW for Adam, and
batches of events of rows of like length.

`fmlp_hybrid`, as ``fullrank train fullrank.recipes.classics:fmlp_hybrid ...``: `fmlp` on items of
ids and text (`models/sequential/items/hybrid.py`), the choice of `experiments/blend/fmlp_hybrid.yaml`.

Command: ``fullrank train caser --data data/beauty --out runs/caser``, and so for the others.
Learning rate and dropout of `caser` and `hgn` are the choice of
`experiments/sequence/tune_classics.yaml`. Numbers: `docs/results/sequence.md`, `results/sequence/`
(amazon-beauty and ml-1m, with the machine and the seconds of every run).
"""

from __future__ import annotations

from fullrank.models.sequential.encoders import EncoderSpec
from fullrank.models.sequential.encoders.caser import Caser
from fullrank.models.sequential.encoders.fmlp import FMLP
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.hgn import HGN
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.recipes import recipe
from fullrank.run.experiment import Experiment, Training


@recipe(needs="events")
def gru4rec() -> Experiment:
    """GRU4Rec: recurrent next-item prediction (Hidasi et al. 2016, arXiv:1511.06939)."""
    return _recommended("gru4rec", GRU(dropout=0.5), lr=1e-3)


@recipe(needs="events")
def caser() -> Experiment:
    """Caser: convolutions over the last events (Tang & Wang 2018, arXiv:1809.07426)."""
    return _recommended("caser", Caser(activation="tanh", dropout=0.5), lr=2.7e-3)


def caser_published() -> Experiment:
    """The settings that the authors' code starts from."""
    model = Recommender(dim=50, encoder=Caser(), loss=BCE(negatives=Negatives(count=3, exclude="history")))
    training = Training(max_epochs=50, lr=1e-3, weight_decay=1e-6, batch_size=1024, evaluate_every=5, patience=5)
    return Experiment(recipe="caser-published", model=model, training=training)


@recipe(needs="events")
def hgn() -> Experiment:
    """HGN: gates on features and events of the last few (Ma, Kang & Liu 2019, arXiv:1906.09217)."""
    return _recommended("hgn", HGN(dropout=0.5), lr=2.7e-3)


def hgn_published() -> Experiment:
    """The settings that the authors' code starts from."""
    model = Recommender(dim=50, encoder=HGN(), loss=BCE(negatives=Negatives(count=1, exclude="history")))
    training = Training(max_epochs=200, lr=1e-3, weight_decay=1e-3, batch_size=4096, evaluate_every=5, patience=5)
    return Experiment(recipe="hgn-published", model=model, training=training)


@recipe(needs="events")
def fmlp() -> Experiment:
    """FMLP-Rec: learnable filters in the frequency domain (Zhou et al. 2022, arXiv:2202.13556)."""
    return _recommended("fmlp", FMLP(), lr=1e-3, warmup=0.02)


def fmlp_hybrid() -> Experiment:
    """`fmlp` on items of ids and text, the id left out half of the time, with a learning rate that falls to zero."""
    schedule = ("training.schedule=linear", "training.max_epochs=16", "training.patience=null")
    return fmlp().override("recipe=fmlp_hybrid", "model.items={kind: hybrid, id_dropout: 0.5}", *schedule)


def fmlp_published() -> Experiment:
    """Circular filters, a row for each prefix, one negative: the authors' sizes."""
    model = Recommender(
        dim=64,
        encoder=FMLP(causal=False),
        task=LastItem(per_user=None),
        loss=BCE(negatives=Negatives(count=1, exclude="history")),
    )
    training = Training(max_epochs=200, lr=1e-3, batch_by="rows", batch_size=256, patience=10)
    return Experiment(recipe="fmlp-published", model=model, training=training)


def _recommended(name: str, encoder: EncoderSpec, **training: float) -> Experiment:
    """An encoder under the exact softmax and the cosine scores of the recipe `sasrec`."""
    model = Recommender(dim=128, encoder=encoder, scoring=Scoring(similarity="cosine", temperature=0.06))
    settings = Training(max_epochs=40, batch_size=1024, patience=5).model_copy(update=training)
    return Experiment(recipe=name, model=model, training=settings)
