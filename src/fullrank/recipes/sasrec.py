"""SASRec as we recommend it, as published and in the Llama style that SPRINT scales; CL4SRec and FDSA on its blocks.

`sasrec`: exact softmax over the catalogue and cosine scores with a temperature. Sources: Kang &
McAuley 2018 (arXiv:1808.09781) for the model; exact cross-entropy as in Petrov & Macdonald and
Klenitskiy & Vasilev (arXiv:2309.07602). Long histories want ``--set model.max_length=200 --set
model.encoder.dropout=0.2 --set model.encoder.input_dropout=0.2``. Cost on amazon-beauty: 30 epochs
of about 27 s on one core.

`sasrec_2018`: binary cross-entropy with one negative (Kang & McAuley 2018). Post-embedding scale
sqrt(d), pre-norm LayerNorm, feed-forward of the model's width, dropout on the residual paths.
Differs: AdamW without decay for Adam; rows of like length share a batch. Cost on amazon-beauty: at
most 200 epochs of a few seconds on one core.

`sasrec_plus`: SASRec++ (SPRINT, Sec. 5.1 and B.2). RoPE, RMSNorm before each sublayer,
SwiGLU of inner width 4d, dropout on attention weights alone, binary cross-entropy with 16
negatives per history. Differs: full-catalogue ranking leaves the history out by default;
the paper ranks it (``--set evaluation.seen=keep``). Cost on amazon-beauty: at most 100
epochs of about 4 s on one core.

`cl4srec`: `sasrec` with a contrast of cropped, masked and reordered histories (Xie et al., ICDE
2022, arXiv:2010.14395), of cosines. `cl4srec_published`, as ``fullrank train
fullrank.recipes.sasrec:cl4srec_published ...``, has the authors' sizes and inner products: width
64, two layers of two heads, binary cross-entropy with one negative, batches of 256 rows. Differs:
what `regularizers/cl4srec.py` says; AdamW for Adam.

`fdsa`: self-attention on ids and on features apart, joined by a linear layer (Zhang et al., IJCAI
2019), with half of the width for each stream. Items need a column `attributes` (a list of
categories and the brand), as those of data/s3rec-beauty; others:
``--set model.items.categorical=[brand,category]``. Differs: what `encoders/fdsa.py` and
`items/features.py` say; the exact softmax for binary cross-entropy, and no titles among the
features.

`hybrid`, as ``fullrank train fullrank.recipes.sasrec:hybrid ...``: `sasrec` on items of ids and
text (`models/sequential/items/hybrid.py`); so are `fmlp` and `hstu` with ``--set model.items=hybrid``.
Numbers: `results/blend/` (amazon-beauty, one seed).

Command: ``fullrank train sasrec --data data/beauty --out runs/sasrec``, and so for
the others. Numbers: `results/sequence/` (amazon-beauty and ml-1m, with the machine
and the seconds of every run).
"""

from __future__ import annotations

from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.fdsa import FDSA
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.features import Features
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropy
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.models.sequential.regularizers.cl4srec import CL4SRec
from fullrank.recipes import recipe
from fullrank.run.experiment import Experiment, Training


@recipe(needs="events")
def sasrec() -> Experiment:
    """SASRec as we recommend it: self-attention, exact softmax over the catalogue, cosine scores."""
    model = Recommender(
        dim=128, encoder=_blocks(), loss=CrossEntropy(), scoring=Scoring(similarity="cosine", temperature=0.06)
    )
    training = Training(max_epochs=30, lr=1e-3, batch_size=1024, warmup=0.02, patience=5)
    return Experiment(recipe="sasrec", model=model, training=training)


def hybrid() -> Experiment:
    """`sasrec` whose items have a vector of their own and one of their title and brand."""
    return sasrec().override("recipe=hybrid", "model.items=hybrid")


@recipe(needs="events")
def sasrec_2018() -> Experiment:
    """SASRec as published: binary cross-entropy with one negative (Kang & McAuley 2018, arXiv:1808.09781)."""
    encoder = Transformer(
        layers=2,
        attention=Softmax(heads=1, bias=True),
        norm="layer",
        norm_eps=1e-8,
        feed_forward="mlp",
        inner=64,
        activation="relu",
        bias=True,
        scale_input=True,
        dropout=0.5,
        positions_from="end",
    )
    model = Recommender(dim=64, encoder=encoder, loss=BCE())
    training = Training(max_epochs=200, lr=1e-3, batch_size=2048, betas=(0.9, 0.98), evaluate_every=5, patience=5)
    return Experiment(recipe="sasrec_2018", model=model, training=training)


@recipe(needs="events")
def sasrec_plus() -> Experiment:
    """SASRec++: the Llama-style SASRec that SPRINT scales (SPRINT, Sec. 5.1 and B.2)."""
    encoder = Transformer(
        layers=2,
        attention=Softmax(heads=2, rope=True, dropout=0.2),
        norm="rms",
        feed_forward="swiglu",
        positions="none",
        dropout=0.0,
    )
    negatives = Negatives(count=16, share="row", exclude="history")
    model = Recommender(dim=64, encoder=encoder, loss=BCE(negatives=negatives))
    training = Training(
        max_epochs=100,
        lr=1e-3,
        weight_decay=0.1,
        batch_size=4096,
        schedule="linear",
        warmup=0.05,
        clip_norm=1.0,
        evaluate_every=5,
        patience=5,
    )
    return Experiment(recipe="sasrec_plus", model=model, training=training)


@recipe(needs="events")
def cl4srec() -> Experiment:
    """CL4SRec: SASRec with a contrast of augmented histories (Xie et al. 2022, arXiv:2010.14395)."""
    base = sasrec()
    model = base.model.model_copy(update={"penalties": (CL4SRec(normalise=True, temperature=0.1),)})
    return base.model_copy(update={"recipe": "cl4srec", "model": model})


def cl4srec_published() -> Experiment:
    """The authors' sizes on SASRec as published."""
    base = sasrec_2018().override("model.encoder.attention.heads=2")
    model = base.model.model_copy(update={"penalties": (CL4SRec(),)})
    training = Training(max_epochs=200, lr=1e-3, batch_by="rows", batch_size=256, evaluate_every=5, patience=5)
    return Experiment(recipe="cl4srec-published", model=model, training=training)


@recipe(needs="events, attributes")
def fdsa() -> Experiment:
    """FDSA: self-attention on ids and on features apart (Zhang et al. 2019)."""
    stream = _blocks()
    model = Recommender(
        dim=128,
        items=Features(categorical=("attributes",), combine="beside"),
        encoder=FDSA(ids=stream, features=stream),
        scoring=Scoring(similarity="cosine", temperature=0.06),
    )
    training = Training(max_epochs=30, lr=1e-3, batch_size=1024, warmup=0.02, patience=5)
    return Experiment(recipe="fdsa", model=model, training=training)


def _blocks() -> Transformer:
    """The encoder that `sasrec` and both streams of `fdsa` have."""
    return Transformer(
        layers=2,
        attention=Softmax(heads=2, bias=True),
        norm="layer",
        feed_forward="mlp",
        activation="gelu",
        bias=True,
        dropout=0.4,
        input_dropout=0.5,
        scale_input=True,
        positions_from="end",
    )
