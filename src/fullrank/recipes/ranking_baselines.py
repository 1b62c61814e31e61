"""Ranking (CTR) models that RankElastor is compared with, at CPU size.

They share training and embedding with `recipes/rankelastor.py`, so that a comparison differs in the
ranker alone. The papers are named at each class, the equations in `models/ranking/`.

Commands: ``fullrank train dcnv2 --data data/ctr --out runs/dcnv2``, and so for the others;
``fullrank train fullrank.recipes.ranking_baselines:dcnv2_frappe --data data/frappe --out
runs/dcnv2`` for any function below. Cost of an epoch on one core on ml-1m: lr 2 s, fm 4 s, dnn 20
s, dcnv2 25 s, rankmixer 40 s, xdeepfm 75 s; autoint and finalmlp were not measured. Numbers:
`docs/results/rankers.md`.

The functions `*_frappe` hold the best settings that BARS publishes for frappe_x1
(github.com/reczoo/BARS, ranking/ctr/MODEL/MODEL_frappe_x1, trained by FuxiCTR): vectors of width
10, their L2 on whole tables, batch norm in every perceptron, batches of 4,096, at most 100 epochs,
a tenth of the rate at each epoch without gain in validation AUC and a stop after two. Each says
which test AUC BARS has. Differs: BARS has the seed 2021 and calls a gain what is more than 1e-6;
its xDeepFM has a bias per feature map, which with one CIN layer is the bias of the logit; its
negatives and its split may be others than those of a store (`data/sources/frappe.py`).
"""

from __future__ import annotations

from fullrank.models.ranking import RankerSpec
from fullrank.models.ranking.autoint import AutoInt
from fullrank.models.ranking.dcnv2 import DCNv2
from fullrank.models.ranking.dnn import DNN, Deep
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.finalmlp import FinalMLP
from fullrank.models.ranking.fm import FM
from fullrank.models.ranking.lightgbm import LightGBM
from fullrank.models.ranking.lr import LR
from fullrank.models.ranking.rankmixer import RankMixer
from fullrank.models.ranking.xdeepfm import XDeepFM
from fullrank.recipes import recipe
from fullrank.recipes.rankelastor import HEAD, NORMED, ranking_experiment
from fullrank.run.experiment import Experiment, Training


@recipe(needs="impressions")
def lr() -> Experiment:
    """Logistic regression on the fields, the floor of every table of rankers (McMahan et al., KDD 2013)."""
    return ranking_experiment("lr", LR())


@recipe(needs="impressions")
def fm() -> Experiment:
    """Factorization machine: inner products of all pairs of fields (Rendle, ICDM 2010)."""
    return ranking_experiment("fm", FM())


@recipe(needs="impressions")
def dnn() -> Experiment:
    """DNN: a perceptron of 3 x 400 on all field vectors (Covington et al., RecSys
    2016, as BARS configures it)."""
    return ranking_experiment("dnn", DNN())


@recipe(needs="impressions")
def dcnv2() -> Experiment:
    """DCN V2: three cross layers beside a perceptron of 3 x 400 (Wang et al., WWW 2021, arXiv:2008.13535)."""
    return ranking_experiment("dcnv2", DCNv2())


@recipe(needs="impressions")
def xdeepfm() -> Experiment:
    """xDeepFM: two CIN layers of 16 maps, a perceptron of 3 x 400, and the linear part
    (KDD 2018, arXiv:1803.05170)."""
    return ranking_experiment("xdeepfm", XDeepFM())


@recipe(needs="impressions")
def autoint() -> Experiment:
    """AutoInt+: three layers of attention over the fields beside a perceptron of 3 x 400 (arXiv:1810.11921)."""
    return ranking_experiment("autoint", AutoInt(deep=Deep()))


@recipe(needs="impressions")
def finalmlp() -> Experiment:
    """FinalMLP: two perceptrons of 3 x 400 on gated fields and their bilinear fusion
    (AAAI 2023, arXiv:2304.00902)."""
    return ranking_experiment("finalmlp", FinalMLP())


@recipe(needs="impressions")
def lightgbm() -> Experiment:
    """LightGBM: boosted decision trees on the fields (Ke et al. 2017); needs the extra `lightgbm`."""
    return Experiment(recipe="lightgbm", model=LightGBM(), training=Training(max_epochs=1000, lr=0.1, patience=50))


@recipe(needs="impressions")
def rankmixer() -> Experiment:
    """RankMixer: block transpose and GELU networks per token, 16 tokens of width 32 (arXiv:2507.15551).

    Tokeniser and head are RankElastor's: the two differ in mixing, FFN and width alone.
    The paper's head is `mean`.
    """
    return ranking_experiment("rankmixer", RankMixer(width=32, tokeniser=NORMED, head=HEAD))


def dnn_frappe() -> Experiment:
    """BARS: DNN of 3 x 400, dropout .2, L2 .05. Test AUC .9840 (mean of five seeds)."""
    return _bars("dnn", DNN(deep=Deep(dropout=0.2, batch_norm=True)), l2=0.05)


def dcnv2_frappe() -> Experiment:
    """BARS: DCN V2, four crosses beside a perceptron of 3 x 400, dropout .4, L2 .05.
    Test AUC .9838 (five seeds)."""
    return _bars("dcnv2", DCNv2(crosses=4, deep=Deep(dropout=0.4, batch_norm=True)), l2=0.05)


def xdeepfm_frappe() -> Experiment:
    """BARS: xDeepFM, one CIN layer of 64 maps, a perceptron of 3 x 400, dropout .2,
    L2 .1. Test AUC .9841 (five)."""
    return _bars("xdeepfm", XDeepFM(cin=(64,), deep=Deep(dropout=0.2, batch_norm=True)), l2=0.1)


def autoint_frappe() -> Experiment:
    """BARS: AutoInt+, five layers of width 128 and four heads, a perceptron of 3 x 400,
    L2 .1. Test AUC .9848 (one)."""
    attention = AutoInt(
        layers=5,
        width=128,
        heads=4,
        residual_map="as_needed",
        norm=True,
        scale=True,
        dropout=0.1,
        deep=Deep(dropout=0.1, batch_norm=True),
    )
    return _bars("autoint", attention, l2=0.1)


def finalmlp_frappe() -> Experiment:
    """BARS: FinalMLP, one layer of 400 and one of 100, five heads, gates of user and
    item. Test AUC .9861 (one)."""
    ranker = FinalMLP(
        first=Deep(hidden=(400,), dropout=0.4, batch_norm=True),
        second=Deep(hidden=(100,), dropout=0.4, batch_norm=True),
        heads=5,
        gate_hidden=(400,),
        first_context=("user",),
        second_context=("item",),
    )
    return _bars("finalmlp", ranker, l2=0.05)


def _bars(name: str, ranker: RankerSpec, *, l2: float) -> Experiment:
    """A ranker under the settings that BARS's best runs on frappe share."""
    return ranking_experiment(f"{name}-frappe", ranker, Embedding(dim=10, l2=l2, l2_on="table"), max_epochs=100)
