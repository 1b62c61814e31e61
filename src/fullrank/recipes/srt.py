"""SRT: items as text, sampled softmax by popularity (Zivic, Vazquez and Sánchez, SIGIR 2024, 10.1145/3626772.3657816).

Claim: with items made of their titles and brands the parameters do not grow with the catalogue,
and with enough negatives (SRT-X has X) the model is as good as one with a vector per item:
NDCG@5 of SRT-10, 100, 300 and 1K .0235, .0318, .0340, .0366 on Beauty, .0138, .0171, .0180,
.0195 on Sports (Table 1).

Command: ``fullrank train srt --data data/s3rec-beauty --out runs/srt``, or a function below in
place of `srt`, as in ``fullrank train fullrank.recipes.srt:srt_300 ...``. `srt_10` .. `srt_1k` draw
for each example, as the paper does; `srt` has one pool of 1,024 for a batch, which is cheaper, and
`full` the exact softmax beside them. `paper` is the largest model of the paper, `l16_d256` ..
`l4_d64` are the others of Table 3; these want a GPU. The items need the columns `title` and
`attributes` (whose first is the brand); other columns: ``--set model.items.fields=...``.

Differs: every prefix is a query of its history's row, not a row of its own, so a batch holds whole
histories; weight decay is decoupled. At CPU size the width is 64, the learning rate 3.2e-3, the
blocks' dropout 0.2 and there are 20 epochs; the warm-up is the released one, by cosine (the paper
says linear). Brands are read from `attributes`. The history is excluded from lists; RecBole, on
which the authors' code is built, ranks it (``fullrank evaluate RUN --set seen=keep``). Cost on
s3rec-beauty: 3 to 15 minutes of one core of a busy machine. Numbers: `results/scaling/` (of the
functions; `srt` itself was not run in full).
"""

from __future__ import annotations

from typing import Literal

from fullrank.evaluation.spec import Evaluation
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.items.text import Text, TextField
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.losses import LossSpec
from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropy
from fullrank.models.sequential.objectives.losses.sampled_softmax import SampledSoftmax
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.recipes import recipe
from fullrank.recipes.bert4rec import bert_blocks
from fullrank.run.experiment import Experiment, Training

ITEMS = Text(
    fields=(
        TextField(column="title", tokens=40),
        TextField(column="attributes", first=True, tokens=8, empty="unknown"),
    )
)
SMALL = Training(max_epochs=20, lr=3.2e-3, batch_size=1024, schedule="one_cycle", warmup=0.3, clip_norm=1.0, patience=5)
"""At CPU size; chosen on validation among four trials (`experiments/scaling/srt_tune.yaml`)."""
PAPER = Training(
    max_epochs=50,
    lr=1e-4,
    batch_by="rows",
    batch_size=128,
    weight_decay=1e-5,
    schedule="one_cycle",
    warmup=0.3,
    clip_norm=1.0,
    evaluate_every=5,
)
"""Peak 1e-4 from a 25th up in three tenths of the steps, then down to a tenth."""
EVALUATION = Evaluation(ks=(5, 10), selection="ndcg@5", sampled=10_000)
"""In full, and among 10,000 sampled items as in the paper's laws of scale, with the gap between the two."""


@recipe(needs="events, titles")
def srt() -> Experiment:
    """SRT: items as text, sampled softmax by popularity (Zivic, Vazquez and Sánchez, SIGIR 2024)."""
    return _small("srt", sampled(1024, "batch"))


def srt_10() -> Experiment:
    """10 negatives for each example."""
    return _small("srt_10", sampled(10))


def srt_100() -> Experiment:
    """100 negatives for each example."""
    return _small("srt_100", sampled(100))


def srt_300() -> Experiment:
    """300 negatives for each example."""
    return _small("srt_300", sampled(300))


def srt_1k() -> Experiment:
    """1,000 negatives for each example."""
    return _small("srt_1k", sampled(1000))


def full() -> Experiment:
    """Exact softmax over the whole catalogue, on the same items."""
    return _small("srt_full", CrossEntropy())


def paper() -> Experiment:
    """24 layers of 4 heads, width 256."""
    return _large(24, 4, 256)


def l16_d256() -> Experiment:
    """16 layers of 4 heads, width 256."""
    return _large(16, 4, 256)


def l8_d256() -> Experiment:
    """8 layers of 4 heads, width 256."""
    return _large(8, 4, 256)


def l8_d128_h4() -> Experiment:
    """8 layers of 4 heads, width 128."""
    return _large(8, 4, 128)


def l8_d128() -> Experiment:
    """8 layers of 2 heads, width 128."""
    return _large(8, 2, 128)


def l4_d128() -> Experiment:
    """4 layers of 2 heads, width 128."""
    return _large(4, 2, 128)


def l2_d128() -> Experiment:
    """2 layers of 2 heads, width 128."""
    return _large(2, 2, 128)


def l4_d64() -> Experiment:
    """4 layers of 2 heads, width 64."""
    return _large(4, 2, 64)


def sampled(count: int, share: Literal["query", "row", "batch"] = "query") -> SampledSoftmax:
    """Negatives by popularity, each score corrected by the log of its share; the
    target is no negative of its own."""
    return SampledSoftmax(negatives=Negatives(count=count, uniform=0, popularity=1, share=share), log_q="all")


def model(layers: int, heads: int, dim: int, loss: LossSpec, dropout: float = 0.5) -> Recommender:
    """BERT's blocks, causal, with the model's width inside, around items of text.
    Attention's dropout stays at 0.5."""
    encoder = bert_blocks(Softmax(heads=heads, bias=True, dropout=0.5), dropout, layers=layers, inner=dim)
    return Recommender(dim=dim, max_length=50, items=ITEMS, encoder=encoder, loss=loss)


def _small(name: str, loss: LossSpec) -> Experiment:
    """A model at CPU size with this loss."""
    return Experiment(recipe=name, model=model(2, 2, 64, loss, dropout=0.2), training=SMALL, evaluation=EVALUATION)


def _large(layers: int, heads: int, dim: int) -> Experiment:
    """A model of Table 3 under the paper's training."""
    name = f"srt-{layers}x{heads}x{dim}"
    whole = model(layers, heads, dim, sampled(300))
    return Experiment(recipe=name, model=whole, training=PAPER, evaluation=EVALUATION)
