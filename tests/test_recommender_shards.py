"""The shards of a batch, for processes and micro-batches, sum to the whole: terms and gradients."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.data.events.loader import Loader
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, RecommenderModel, Scoring
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.losses.gbce import GBCE
from fullrank.models.sequential.objectives.losses.sampled_softmax import SampledSoftmax
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.objectives.tasks.next_item import NextItem
from fullrank.models.sequential.objectives.weightings.inverse_propensity import InversePopularity
from tiny import catalog, close, store
from whole import V, build, label, small

BOTH_SIDES = Transformer(dropout=0.0, attention=Softmax(causal=False))
SHARED = Negatives(count=5, share="batch", popularity=1)
SHARDED = [
    Recommender(dim=8, max_length=6, task=NextItem(horizons=2), loss=small("cross_entropy"), encoder=GRU(dropout=0.0)),
    Recommender(dim=8, max_length=6, loss=GBCE(negatives=Negatives(count=5, share="row", exclude="history")),
                encoder=Transformer(dropout=0.0, positions_from="end")),
    Recommender(dim=8, max_length=6, task=LastItem(), loss=SampledSoftmax(negatives=SHARED),
                encoder=BOTH_SIDES, weighting=InversePopularity()),
    Recommender(dim=8, max_length=6, task=Cloze(), loss=BCE(), scoring=Scoring(similarity="cosine", temperature=0.1),
                encoder=BOTH_SIDES),
]  # fmt: skip


def gradients(model: RecommenderModel, batches: list[Batch]) -> tuple[dict[str, float], list[Tensor]]:
    """Summed terms and gradients of some shards, as training sums them."""
    model.zero_grad()
    terms: dict[str, float] = {}
    for batch in batches:
        found = model(batch)
        scale = 0.0 if batch.empty_shard else 1.0
        (sum(found.values()) * scale).backward()  # type: ignore[union-attr]
        for name, value in found.items():
            terms[name] = terms.get(name, 0.0) + scale * float(value.detach())
    return terms, [p.grad.clone() for p in model.parameters() if p.grad is not None]


def check_shards(model: RecommenderModel) -> None:
    rows = [[(u + 2 * t) % V for t in range(4 + u % 6)] for u in range(9)]
    data = store(rows, V)
    settings: dict[str, Any] = {"by": "tokens", "size": 14, "seed": 2, "counts": model.task.counts}
    whole = Loader(data, model.task.segments, **settings)
    for shards in (2, 3, 7):
        parts = Loader(data, model.task.segments, shards=shards, **settings)
        for k in range(whole.steps_per_epoch):
            terms, slopes = gradients(model, [whole.batch(k)])
            again, others = gradients(model, [parts.batch(k, s) for s in range(shards)])
            assert terms.keys() == again.keys()
            assert all(abs(terms[name] - again[name]) < 1e-4 for name in terms)
            assert all(close(a, b, 1e-4) for a, b in zip(slopes, others, strict=True))


@pytest.mark.parametrize("spec", SHARDED, ids=label)
def test_shards_sum_to_the_whole(spec: Recommender) -> None:
    check_shards(build(spec))


def test_a_loss_that_divides_by_its_shard_is_caught() -> None:
    class Local(RecommenderModel):
        def forward(self, batch: Batch) -> dict[str, Tensor]:
            return super().forward(replace(batch, counts=None))

    with pytest.raises(AssertionError):
        check_shards(Local(catalog(V), SHARDED[0]))
