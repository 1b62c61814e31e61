"""Ranking (CTR) models that RankElastor is compared with, at CPU size.

They share training and embedding with `recipes/rankelastor.py`, so that a comparison differs in the ranker alone. The
papers are named at each class, the equations in `models/ranking/`.

Command: ``fullrank train dcnv2 --data data/ctr --out runs/dcnv2``, and so for the others.
Cost of an epoch on one core on ml-1m: lr 2 s, fm 4 s, dnn 20 s, dcnv2 25 s, rankmixer 40 s, xdeepfm 75 s; autoint was
not measured. Numbers: results/rankelastor/ (none for autoint yet).
"""

from __future__ import annotations

from typing import Literal

from fullrank.experiment import Experiment
from fullrank.models.ranking import RankerSpec
from fullrank.models.ranking.autoint import AutoInt
from fullrank.models.ranking.dcnv2 import DCNv2
from fullrank.models.ranking.dnn import DNN
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.fm import FM
from fullrank.models.ranking.lr import LR
from fullrank.models.ranking.model import RankingModel
from fullrank.models.ranking.perceptron import Deep
from fullrank.models.ranking.rankmixer import RankMixer
from fullrank.models.ranking.xdeepfm import XDeepFM
from fullrank.recipes import RecipeSpec
from fullrank.recipes.rankelastor import HEAD, NORMED, SMALL


class LRRecipe(RecipeSpec):
    """Logistic regression on the fields, the floor of every table of rankers (McMahan et al., KDD 2013)."""

    kind: Literal["lr"] = "lr"

    def build(self) -> Experiment:
        return _experiment("lr", LR())


class FMRecipe(RecipeSpec):
    """Factorization machine: inner products of all pairs of fields (Rendle, ICDM 2010)."""

    kind: Literal["fm"] = "fm"

    def build(self) -> Experiment:
        return _experiment("fm", FM())


class DNNRecipe(RecipeSpec):
    """DNN: a perceptron of 3 x 400 on all field vectors (Covington et al., RecSys 2016, as BARS configures it)."""

    kind: Literal["dnn"] = "dnn"

    def build(self) -> Experiment:
        return _experiment("dnn", DNN())


class DCNv2Recipe(RecipeSpec):
    """DCN V2: three cross layers beside a perceptron of 3 x 400 (Wang et al., WWW 2021, arXiv:2008.13535)."""

    kind: Literal["dcnv2"] = "dcnv2"

    def build(self) -> Experiment:
        return _experiment("dcnv2", DCNv2())


class XDeepFMRecipe(RecipeSpec):
    """xDeepFM: two CIN layers of 16 maps, a perceptron of 3 x 400, and the linear part (KDD 2018, arXiv:1803.05170)."""

    kind: Literal["xdeepfm"] = "xdeepfm"

    def build(self) -> Experiment:
        return _experiment("xdeepfm", XDeepFM())


class AutoIntRecipe(RecipeSpec):
    """AutoInt+: three layers of attention over the fields beside a perceptron of 3 x 400 (arXiv:1810.11921)."""

    kind: Literal["autoint"] = "autoint"

    def build(self) -> Experiment:
        return _experiment("autoint", AutoInt(deep=Deep()))


class RankMixerRecipe(RecipeSpec):
    """RankMixer: block transpose and GELU networks per token, 16 tokens of width 32 (arXiv:2507.15551).

    Tokeniser and head are RankElastor's: the two differ in mixing, FFN and width alone. The paper's head is `mean`.
    """

    kind: Literal["rankmixer"] = "rankmixer"

    def build(self) -> Experiment:
        return _experiment("rankmixer", RankMixer(width=32, tokeniser=NORMED, head=HEAD))


def _experiment(name: str, ranker: RankerSpec) -> Experiment:
    return Experiment(recipe=name, model=RankingModel(embedding=Embedding(l2=1e-5), ranker=ranker), training=SMALL)
