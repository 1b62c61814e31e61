"""DIN: a perceptron on all field vectors, in which a history is seen by its target (KDD 2018, arXiv:1706.06978).

Claim: where interests are many, events weighted by the target tell more of a click than
their mean (Tables 4 and 5).

Command: ``fullrank train din --data data/ctr --out runs/din`` on any store with a
behaviour sequence; for the mean in its place add ``--set model.sequences=pooled``. The
settings of BARS's best runs (github.com/reczoo/BARS, ranking/ctr/DIN) are ``fullrank
train fullrank.recipes.din:kuaivideo``, ``:taobaoad`` and ``:amazonelectronics``:
sizes, dropout, L2, batches, rate and patience of DIN_kuaivideo_x1_013,
DIN_taobaoad_x1_012 and DIN_amazonelectronics_x1_015, with the sequences' public names.
They want a GPU; none has been run yet.

Differs: where they choose by AUC + gAUC we choose by AUC. KuaiVideo's frozen vectors of
images, a second table there, are not read. `models/ranking/sequences/target_attention.py` says
how the attention differs.
"""

from __future__ import annotations

from pydantic import JsonValue

from fullrank.models.ranking.dnn import DNN, Deep
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.model import RankingModel
from fullrank.models.ranking.sequences.target_attention import TargetAttention
from fullrank.recipes import recipe
from fullrank.recipes.rankelastor import SMALL
from fullrank.run.experiment import Experiment


@recipe(needs="impressions, sequences")
def din() -> Experiment:
    """DIN: target attention over behaviour sequences before a perceptron of 3 x 400
    (KDD 2018, arXiv:1706.06978)."""
    return _experiment("din", Embedding(l2=1e-5), TargetAttention(), Deep())


def kuaivideo() -> Experiment:
    """KuaiVideo: what was clicked and what was shown without a click, each with an activation unit of its own."""
    attention = TargetAttention(unit=Deep(hidden=(512, 256), dropout=0.2))
    deep = Deep(hidden=(1024, 512, 256), dropout=0.1, activation="dice")
    return _experiment("din-kuaivideo", _table(64, 1e-4), attention, deep, max_epochs=100, batch_size=8192)


def taobaoad() -> Experiment:
    """TaobaoAd: category, brand and kind of the last 50 events, attended together.

    The published histories lack missing values, each by itself, so the newest are
    aligned as BARS's padding does.
    """
    unit = Deep(hidden=(512, 256), dropout=0.4)
    attention = TargetAttention(unit=unit, together=(("cate_his", "brand_his", "btag_his"),), uneven="newest")
    deep = Deep(hidden=(512, 256, 128), dropout=0.1)
    training: dict[str, JsonValue] = {"max_epochs": 100, "batch_size": 8192, "patience": 1}
    return _experiment("din-taobaoad", _table(32, 5e-6), attention, deep, **training)


def amazonelectronics() -> Experiment:
    """AmazonElectronics: items and categories of the same events, attended together by a softmax."""
    unit = Deep(hidden=(512, 256), dropout=0.1, activation="dice")
    attention = TargetAttention(unit=unit, softmax=True, together=(("item_history", "cate_history"),))
    deep = Deep(hidden=(1024, 512, 256), dropout=0.1, batch_norm=True, activation="dice")
    training: dict[str, JsonValue] = {"max_epochs": 100, "batch_size": 1024, "lr": 5e-4}
    experiment = _experiment("din-amazonelectronics", _table(64, 5e-3), attention, deep, **training)
    return experiment.override("evaluation.selection=gauc")


def _table(dim: int, l2: float) -> Embedding:
    """Vectors with L2 on whole tables, as BARS trains them."""
    return Embedding(dim=dim, l2=l2, l2_on="table")


def _experiment(
    name: str, embedding: Embedding, sequences: TargetAttention, deep: Deep, **training: JsonValue
) -> Experiment:
    """Target attention before a perceptron, under the training of the small rankers
    but for what `training` says."""
    model = RankingModel(embedding=embedding, ranker=DNN(deep=deep), sequences=sequences)
    return Experiment(recipe=name, model=model, training=SMALL.model_copy(update=training))
