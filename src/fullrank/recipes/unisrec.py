"""UniSRec: universal sequence representations from text (Hou et al., KDD 2022, arXiv:2206.05941).

Claim: items made of text vectors by whitening experts, trained on several shops by contrast,
transfer to another shop, from text alone (inductive) or with a vector for each item besides
(transductive); above SASRec, FDSA and S3-Rec on five Amazon sets and an online shop.

Commands::

    fullrank train unisrec --data data/beauty --out runs/unisrec
    fullrank train fullrank.recipes.unisrec:transductive --data data/beauty --out runs/transductive
    fullrank train fullrank.recipes.unisrec:pretrain --data data/several --out runs/pretrained
    fullrank train unisrec --data data/beauty --from runs/pretrained --out runs/transferred

`unisrec` is the inductive one. `pretrain` has the two contrasts; `--data` is one store of the
events of several shops, whose users and items have ids of their own. Its weights are those that
either of the others starts from. `paper` is `unisrec` at the paper's size, for a GPU, and has not
been run. The text vectors are those of `model.items.vectors`, any source of `fullrank list
items.vectors`: by default all text columns of an item by all-MiniLM-L6-v2.

Numbers: `unisrec` in `docs/results/sequence.md`; `transductive`, `pretrain` and `paper` have none
yet.

Differs: the paper's text vectors are BERT's, 768 wide. In the second stage the authors train the
experts alone, here everything is. Every prefix is a row with them; here `unisrec` asks at every
position of a history at once, and in `pretrain` four prefixes of a user are drawn in each epoch.
The width is 64 (300), dropout .3 (.5).
"""

from __future__ import annotations

from typing import Any

from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.unisrec import UniSRec
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.losses.in_batch import InBatch
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.regularizers.sequence_contrast import SequenceContrast
from fullrank.recipes import recipe
from fullrank.recipes.bert4rec import bert_blocks
from fullrank.run.experiment import Experiment, Training

SCORING = Scoring(similarity="cosine", temperature=0.07)
DROPOUT = 0.3


@recipe(needs="events, titles", kind="unisrec")
def inductive() -> Experiment:
    """UniSRec: items made of text vectors by whitening experts, for catalogues without common ids (KDD 2022).

    Items are made of their text alone.
    """
    return _small("unisrec", UniSRec())


def transductive() -> Experiment:
    """Items of text, and a vector for each item besides."""
    return _small("transductive", UniSRec(transductive=True))


def pretrain() -> Experiment:
    """The contrasts of pre-training: targets of the batch, and histories with their augmented copies."""
    items = UniSRec.parse({"augmented": {"kind": "text", "word_drop": 0.2}})
    return _small(
        "pretrain", items, loss=InBatch(), task=LastItem(per_user=4), penalties=(SequenceContrast(words=0.1),)
    )


def paper() -> Experiment:
    """The paper's size: width 300, dropout .5, batches of 2,048 prefixes."""
    experiment = _small("unisrec_paper", UniSRec(), dim=300, encoder=_encoder(0.5), task=LastItem(per_user=None))
    training = Training(max_epochs=300, lr=1e-3, batch_by="rows", batch_size=2048, patience=10)
    return experiment.model_copy(update={"training": training})


def _encoder(dropout: float) -> Transformer:
    return bert_blocks(Softmax(heads=2, bias=True, dropout=dropout), dropout, inner=256)


def _small(name: str, items: UniSRec, **model: Any) -> Experiment:
    """UniSRec's encoder and scores at CPU size, with what `model` names in their place."""
    shared: dict[str, Any] = {"dim": 64, "max_length": 50, "encoder": _encoder(DROPOUT), "scoring": SCORING}
    training = Training(max_epochs=30, lr=1e-3, batch_size=4096, patience=5)
    return Experiment(recipe=name, model=Recommender(**shared | {"items": items} | model), training=training)
