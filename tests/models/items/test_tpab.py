"""TPAB: stages and buckets by the definition, of training events alone; scores and bootstrapping against loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items import ItemIndex
from fullrank.models.sequential.items.tpab import COUNTS, STARTS, TPAB, TPABItems, bucket_of
from fullrank.models.sequential.regularizers.tpab import TPABBootstrap
from fullrank.run.experiment import Experiment
from fullrank.testing.inputs import store
from fullrank.testing.items import DIM, check_exchange, check_gradients, check_read
from fullrank.training.data_module import RetrievalData
from parts import BCE, CrossEntropy, Negatives, Recommender, RecommenderModel, Scoring, model_with
from refusals import refused
from tiny import ITEMS, catalog, close, histories, padded, shaken
from twins import same

ROWS = [[0, 1, 2, 3], [2, 2, 0, 1], [2, 1, 4], [5]]
TIMES = [[0, 50, 99, 99], [10, 99, 500, 900], [60, 70, 80], [3]]
"""The last two events of a row are targets, so trained on are items 0 at 0, 1 at 50, 2 at 10 and 99, and 2 at 60."""


def tpab(**settings) -> TPABItems:
    return shaken(TPAB.parse(settings).build(DIM, catalog())).eval()


def model(*penalties, **settings) -> RecommenderModel:
    loss = BCE(negatives=Negatives(count=3, share="row"))
    return model_with(*penalties, dim=DIM, items=TPAB.parse(settings), loss=loss).eval()


def test_buckets_grow_like_a_power() -> None:
    """Bucket i holds up to most^((i + 1) / buckets) events, the last all."""
    for most, buckets in ((100, 4), (37, 20), (1, 3), (0, 2)):
        edges = [max(most, 1) ** ((i + 1) / buckets) for i in range(buckets)]
        for count in (0, 1, 2, 3, 9, 10, 11, 31, 32, 36.9, 99, 101, 1000):
            wanted = next((i for i, edge in enumerate(edges[:-1]) if count <= edge), buckets - 1)
            assert bucket_of(count, most, buckets) == wanted


def test_stages_count_training_events_alone() -> None:
    """Of equal length, from the first to the last event that is trained on; targets of evaluation are in none."""
    held = store(ROWS, times=TIMES)
    spec = Experiment(recipe="x", model=Recommender(items=TPAB(stages=2), loss=BCE()))
    known = RetrievalData.of(spec, held).known
    counts = known.frame[COUNTS].to_numpy()
    assert known.frame[STARTS].to_numpy()[0].tolist() == [0, 50]
    assert counts[:5].tolist() == [[1, 0], [0, 1], [1, 2], [0, 0], [0, 0]] and counts.sum() == 5
    _, items, _ = held.trained()
    assert np.array_equal(counts.sum(1), np.bincount(items, minlength=ITEMS))
    built = spec.model.build(known)  # type: ignore[attr-defined]
    assert built.trains_on_times and not built.reads_times


@pytest.mark.parametrize("answers", ["forecast", "intrinsic"])
def test_scores_are_those_of_the_definition(answers) -> None:
    """h . v + h . p at the time of the target in training, values and gradients; the stage to come at inference."""
    items, frame = tpab(answers=answers, buckets=5), catalog().frame
    counts, starts = frame[COUNTS].to_numpy(), frame[STARTS].to_numpy()[0]
    most = int(counts.max())
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(4, DIM, generator=generator).requires_grad_()
    ids = torch.randint(ITEMS, (4, 3), generator=generator)
    times = torch.tensor([0, int(starts[2]), int(starts[5]) - 1, 2 * 10**9])
    index = ItemIndex(items, normalise=False)
    term = index.added(vectors, ids, times)
    found = (vectors[:, None] * index.embed(ids)).sum(-1) + term
    rows = []
    for m, moment in enumerate(times.tolist()):
        stage = max(0, sum(int(start) <= moment for start in starts) - 1)
        for i in ids[m].tolist():
            popular = items.popular[int(bucket_of(counts[i, stage], most, 5))]
            rows.append(vectors[m] @ (items.embedding.weight[i] + popular))
    wanted = torch.stack(rows).view(4, 3)
    same(found, wanted, vectors, items.embedding.weight, items.popular)
    ahead = counts[:, -1] + 0.2 * (counts[:, -1] - counts[:, -2])
    popular = items.popular[torch.as_tensor(bucket_of(ahead, most, 5))]
    assert close(items.all(), items.embedding.weight + (popular if answers == "forecast" else 0))
    assert close(items.read(ids), items.embedding.weight[ids])


def test_bootstrapping_exchanges_popularity_and_nothing_else() -> None:
    """Its losses are those of the queries with the popularity of others, and the weight is a factor."""
    made = model(TPABBootstrap(weight=0.5))
    batch = padded(histories([5, 7, 2]))
    torch.manual_seed(0)
    step = made.step(batch)
    own, again = step.queries
    assert again.name == "ahead_1_bootstrapped" and again.weight == 0.5 and torch.equal(own.targets, again.targets)
    assert isinstance(again.table, ItemIndex) and isinstance(made.items, TPABItems) and own.times is not None
    order = again.table._order
    assert order is not None and sorted(order.tolist()) == list(range(len(own.targets)))
    items, taken = made.items, order.tolist()
    stage = [max(0, int((items.stage_starts <= t).sum()) - 1) for t in own.times]
    wanted = torch.stack([
        own.vectors[m] @ (items.embedding.weight[i] + items.popular[int(items.stage_buckets[own.targets[o], stage[o]])])
        for m, (i, o) in enumerate(zip(own.targets.tolist(), taken, strict=True))
    ])  # fmt: skip
    positive = step.records[again.name].positive
    assert positive is not None and close(positive, wanted)
    terms = made(batch)
    assert terms["tpab"] == 0 and terms["ahead_1_bootstrapped"] > 0


def test_a_history_is_read_without_popularity() -> None:
    made, batch = model(), padded(histories([5, 7, 2]))
    before = made.encoder(*made.task.inference_inputs(made.items, batch)).tokens
    with torch.no_grad():
        made.items.popular.add_(1.0)
    assert torch.equal(made.encoder(*made.task.inference_inputs(made.items, batch)).tokens, before)


class Silent(TPABItems):
    """Planted: what scores have beside the vectors is not announced."""

    needs_times = False


class Unmoved(TPABItems):
    """Planted: an order of the queries is ignored."""

    def added(self, vectors, ids, times, order):
        return super().added(vectors, ids, times, None)


class Mixed(TPABItems):
    """Planted: histories are read with popularity, and it is announced that they are not."""

    def read(self, ids):
        return self.embed(ids)


@pytest.mark.parametrize(("kind", "check"), [(Silent, check_gradients), (Unmoved, check_exchange), (Mixed, check_read)])
def test_planted_faults_are_caught(kind, check) -> None:
    with pytest.raises(AssertionError):
        check(shaken(kind(DIM, catalog(), TPAB())))
    check(shaken(TPABItems(DIM, catalog(), TPAB())))


def test_new_items_are_of_the_lowest_bucket() -> None:
    grown = catalog().extended(catalog().frame.select(item_id=("new-" + catalog().frame["item_id"])).head(2))
    items = TPAB().build(DIM, grown)
    assert items.size == ITEMS + 2 and not items.stage_buckets[ITEMS:].any()


def test_refusals() -> None:
    without_stages = Catalog(catalog().frame.drop(COUNTS, STARTS))
    cosine = Scoring(similarity="cosine")
    for call, code, *names in (
        (
            lambda: TPAB.parse({"answers": "intrinsic", "growth": 0.1}),
            "setting-without-effect",
            "growth",
            "answers=intrinsic",
        ),
        (lambda: TPAB().add_columns_of_events(catalog(), store(ROWS).trained), "missing-times", "time column"),
        (lambda: TPAB().build(DIM, without_stages), "items-without-stages", "model.items=tpab"),
        (lambda: TPAB(stages=4).build(DIM, catalog()), "other-stages", 8, "stages=4"),
        (lambda: model_with(items=TPAB(), loss=CrossEntropy()), "items-need-sampled-dots", "model.loss=bce"),
        (lambda: model_with(items=TPAB(), loss=BCE(), scoring=cosine), "items-need-sampled-dots", "similarity=dot"),
        (lambda: model_with(TPABBootstrap(), loss=BCE()), "penalty-needs-popularity"),
        (lambda: model().step(replace(padded(histories([5, 3])), times=None)), "missing-times", "model.task=next_item"),
    ):
        with refused(code, *names):
            call()
