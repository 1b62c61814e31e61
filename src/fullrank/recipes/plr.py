"""PLR and what it is compared with: the base, ReaRec-ERL, ReaRec-PRL, and PLR without each of its parts (PLR, Sec. 6).

Claim: several isolated streams of latent steps beat one pass and one stream of steps at a few
percent more compute (Tables 2 to 4: SASRec on CDs NDCG@20 .0305 -> ReaRec-ERL .0321 -> PLR .0339).

Commands: ``fullrank train plr --data data/beauty --out runs/plr``, or any function below as
``fullrank train fullrank.recipes.plr:base``. They differ in `model.reasoner` and `model.penalties`
alone. `base` .. `no_kl` are of CPU size and take any data: width 64, inner 128, at most 4 prefixes
per user and epoch, the last 50 events, 25 epochs. `cosine` and `cosine_base` are the functions
`plr` and `base` with the scoring of the recipe `sasrec`, cosine at temperature .06. The recipe
`plr` is `cosine` with triggers of size 1 and the residual of Eq. 4, which keep its streams apart:
chosen on validation (experiments/plr/look.yaml). The function `plr` has triggers of .02 and no
residual; its streams end as one (docs/log.md). `bert4rec` and `bert4rec_base` are PLR and the base
on covered positions, the paper's second backbone. `bidirectional`, `hstu` and `features` are PLR on
other parts (on s3rec-beauty ``--set model.items.categorical=[attributes]``, a list of the brand and
the category levels). `unisrec`, `unisrec_erl`, `unisrec_prl` and `unisrec_base` are PLR, ReaRec and
the base on items made of text vectors, the paper's third backbone, at its scoring
(`recipes/unisrec.py`); ``--set model.items.transductive=true`` adds ids. `cds`, `movies` and
`games` fix the paper's size and data, want a GPU and have not been run::

    fullrank download amazon --set year=2023 --set category=CDs_and_Vinyl --set subset=ratings --out downloads/cds
    fullrank prepare amazon --from downloads/cds --set source.year=2023 --set source.category=CDs_and_Vinyl
        --set source.subset=ratings --min-rating 4 --k-core 10 --split global_time --out data/cds

(`Movies_and_TV` with ``--k-core 5``, `Video_Games` with 10: the paper says at least 10 interactions for CDs and Games).

Cost: an epoch took 16 s of one core for the base and 60 s for PLR on amazon-beauty, 23 and 58 on
ml-1m-sequences, on a busy machine. Numbers: results/plr/. Three seeds on amazon-beauty, test,
`cosine_base` and the recipe: NDCG@10 .0325 and .0343, Recall@20 .0981 and .1049; the functions
`base` and `plr`, tuned alike: .0332 and .0336, .0967 and .0990 (docs/log.md).

Differs: batches of CPU size hold 4,096 events of rows of like length, of the paper's size 2,048
rows. Scores are inner products at temperature .2 (`model.scoring.temperature`; PLR says nothing,
ReaRec has .07: chosen for `base`, on amazon-beauty's validation, from 1, .2 and .07), KL is over
1,024 drawn items. The history is ranked like any other item (`evaluation.seen=keep`). The paper
searches the dropout of every model; here it is .3. Category levels of Amazon are two: the most
specific one and the whole path.
"""

from __future__ import annotations

from typing import Any

from fullrank.evaluation.spec import Evaluation
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.features import Features
from fullrank.models.sequential.items.unisrec import UniSRec
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.models.sequential.reasoning.rearec import ReaRec
from fullrank.models.sequential.regularizers.kl_diversity import KLDiversity
from fullrank.models.sequential.regularizers.progressive import Progressive
from fullrank.models.sequential.regularizers.reasoning_contrast import ReasoningContrast
from fullrank.recipes import recipe
from fullrank.recipes.bert4rec import bert_blocks
from fullrank.run.experiment import Experiment, Training

UNISREC = Scoring(similarity="cosine", temperature=0.07)
"""Scores of UniSRec."""
AMAZON = ("category", "categories", "brand")
"""Columns of Amazon's items: the most specific category, the path to it, the store."""
SCORING = Scoring(temperature=0.2)
COSINE = Scoring(similarity="cosine", temperature=0.06)
"""Scores of the recipe `sasrec`."""
PAPER = Training(max_epochs=200, lr=1e-3, batch_by="rows", batch_size=2048, patience=10)
"""At the papers' sizes, of LARES too."""
DROPOUT = 0.3
"""Dropout of hidden states and of attention weights alike (p_rep = p_attn in the paper, searched from
.1 to .6): the recipes' `dropout` sets both, and a search does by the axis ``model.encoder.dropout,
model.encoder.attention.dropout``. The best of Figure 2 lie in .2 to .5."""

_PLR: dict[str, Any] = {"reasoner": PLR(), "penalties": (ReasoningContrast(), KLDiversity())}
_ERL: dict[str, Any] = {
    "reasoner": ReaRec(answer="mean"),
    "penalties": (KLDiversity(weight=0.05, start=True),),
}
_PRL: dict[str, Any] = {"reasoner": ReaRec(answer="last"), "penalties": (Progressive(after_steps=250),)}
_APART = "model.reasoner.trigger_std=1.0", "model.reasoner.residual=true"
"""Settings that keep the streams of PLR apart."""


@recipe(needs="events", kind="plr")
def apart() -> Experiment:
    """PLR: latent reasoning steps behind the history, in parallel streams weighed by a gate."""
    return cosine().override("recipe=plr", *_APART)


def base(dropout: float = DROPOUT) -> Experiment:
    """The encoder alone, around which the others reason."""
    return reasoning_experiment("base", dropout)


def erl() -> Experiment:
    """ReaRec with the mean of all steps, driven apart."""
    return reasoning_experiment("erl", **_ERL)


def prl() -> Experiment:
    """ReaRec with the last step; the noise begins after about two epochs of amazon-beauty."""
    return reasoning_experiment("prl", **_PRL)


def plr(dropout: float = DROPOUT) -> Experiment:
    """Two streams of two steps from triggers of .02, inner products; the parts below are left out of this one."""
    return reasoning_experiment("plr", dropout, **_PLR)


def cosine(dropout: float = DROPOUT) -> Experiment:
    """The function `plr` at cosine scores."""
    return reasoning_experiment("cosine", dropout, scoring=COSINE, **_PLR)


def cosine_base(dropout: float = DROPOUT) -> Experiment:
    """The encoder alone at cosine scores: `cosine` without its reasoning."""
    return reasoning_experiment("cosine_base", dropout, scoring=COSINE)


def no_gate() -> Experiment:
    """PLR whose streams weigh the same."""
    return reasoning_experiment("no_gate", **_PLR | {"reasoner": PLR(gate="uniform")})


def no_contrast() -> Experiment:
    """PLR that reads every row once."""
    return reasoning_experiment("no_contrast", reasoner=PLR(), penalties=(KLDiversity(),))


def no_kl() -> Experiment:
    """PLR whose states are not driven apart."""
    return reasoning_experiment("no_kl", reasoner=PLR(), penalties=(ReasoningContrast(),))


def bidirectional() -> Experiment:
    """PLR behind a history that is read from both sides, next items as targets."""
    attention = Softmax(causal=False, bias=True, dropout=DROPOUT)
    return reasoning_experiment(
        "bidirectional", encoder=_encoder(128).model_copy(update={"attention": attention}), **_PLR
    )


def bert4rec() -> Experiment:
    """PLR around BERT4Rec: covered positions, the reasoner behind the last one; its streams kept apart."""
    return _covered("bert4rec", **_PLR).override(*_APART)


def bert4rec_base() -> Experiment:
    """BERT4Rec alone, at the same size and with the same positions covered."""
    return _covered("bert4rec_base")


def hstu() -> Experiment:
    """PLR around HSTU without times."""
    encoder = Transformer(
        layers=2,
        attention=HSTU(rel_bias="positions", dropout=DROPOUT),
        norm="layer",
        feed_forward="none",
        dropout=0.0,
        input_dropout=DROPOUT,
    )
    return reasoning_experiment("hstu", encoder=encoder, **_PLR)


def unisrec() -> Experiment:
    """PLR around UniSRec, its streams kept apart as in the recipe."""
    return reasoning_experiment("unisrec", items=UniSRec(), scoring=UNISREC, **_PLR).override(*_APART)


def unisrec_erl() -> Experiment:
    """ReaRec-ERL around UniSRec."""
    return reasoning_experiment("unisrec_erl", items=UniSRec(), scoring=UNISREC, **_ERL)


def unisrec_prl() -> Experiment:
    """ReaRec-PRL around UniSRec."""
    return reasoning_experiment("unisrec_prl", items=UniSRec(), scoring=UNISREC, **_PRL)


def unisrec_base() -> Experiment:
    """UniSRec alone, of the same size."""
    return reasoning_experiment("unisrec_base", items=UniSRec(), scoring=UNISREC)


def features(categorical: tuple[str, ...] = AMAZON, reasoning: bool = True) -> Experiment:
    """PLR, or the base, on items from these columns and their id."""
    return reasoning_experiment("features", items=Features(categorical=categorical), **(_PLR if reasoning else {}))


def cds(reasoning: bool = True) -> Experiment:
    """The paper's size on Amazon 2023 CDs and Vinyl; without `reasoning` the base."""
    return _paper("cds", reasoning)


def movies(reasoning: bool = True) -> Experiment:
    """The paper's size on Amazon 2023 Movies and TV."""
    return _paper("movies", reasoning)


def games(reasoning: bool = True) -> Experiment:
    """The paper's size on Amazon 2023 Video Games."""
    return _paper("games", reasoning)


def _encoder(inner: int, dropout: float = DROPOUT) -> Transformer:
    """ReaRec's backbone."""
    return bert_blocks(Softmax(heads=2, bias=True, dropout=dropout), dropout, inner=inner)


def _covered(name: str, **model: Any) -> Experiment:
    """Covered positions as BERT4Rec has them, the last one always, with what `model` names."""
    encoder = _encoder(128).model_copy(update={"attention": Softmax(causal=False, bias=True, dropout=DROPOUT)})
    task = Cloze(covers_end=True)
    return reasoning_experiment(name, encoder=encoder, task=task, scoring=COSINE, **model)


def reasoning_experiment(name: str, dropout: float = DROPOUT, **model: Any) -> Experiment:
    """A small recommender under the protocol of PLR, with what `model` names in its place."""
    shared: dict[str, Any] = {"dim": 64, "max_length": 50, "task": LastItem(per_user=4), "scoring": SCORING}
    whole = Recommender(**shared | {"encoder": _encoder(128, dropout)} | model)
    training = Training(max_epochs=25, lr=1e-3, batch_size=4096, patience=5)
    return Experiment(recipe=name, model=whole, training=training, evaluation=Evaluation(seen="keep"))


def _paper(name: str, reasoning: bool) -> Experiment:
    """The paper's size, with PLR's reasoning or without."""
    experiment = reasoning_experiment(
        name,
        dim=256,
        encoder=_encoder(300),
        task=LastItem(per_user=None),
        items=Features(categorical=AMAZON),
        **(_PLR if reasoning else {}),
    )
    return experiment.model_copy(update={"training": PAPER})
