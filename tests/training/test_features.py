"""Features from the store to training, answers and evaluation; and what is planted in each role is found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from featured import FeaturedStore, some_tables
from fullrank.core.jagged import Jagged
from fullrank.data.events.store import Store
from fullrank.data.features import NO_TIME
from fullrank.evaluation import Evaluation, evaluate
from fullrank.evaluation.adjusted import drop_events
from fullrank.inference.batches import Batching, batches
from fullrank.inference.recommend import rank
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.model.size import batch_flops, non_embedding
from fullrank.run.experiment import Experiment
from fullrank.serving import fast_search
from fullrank.serving.fast import FastEncoder
from fullrank.training.data_module import RetrievalData
from refusals import refused
from tests.training.conftest import Stop, Stopped, same_weights, tiny
from tiny import shaken

AUTO = "model.features=auto"
MADE = "model.features={event: [auto, hour, age], request: [auto, gap]}"


@pytest.fixture(scope="module")
def rich(market: Store) -> FeaturedStore:
    return FeaturedStore.of(market, **some_tables(market.num_events, market.num_users))


def model_of(experiment: Experiment, store: Store) -> tuple[RecommenderModel, RetrievalData]:
    data = RetrievalData.of(experiment, store)
    model: Any = experiment.model.build(data.known)  # type: ignore[attr-defined]
    return model, data


def test_batches_hold_what_the_model_reads(rich: FeaturedStore) -> None:
    """Row by row the features of the row's own events, requests and user; a model without features is given none."""
    model, data = model_of(tiny(AUTO), rich)
    loader = data.loader(model)
    for k in range(3):
        batch = loader.batch(k)
        known, (event, request, user) = batch.features, (rich.event_features, rich.request_features, rich.user_features)
        assert known is not None and known.event and known.request and known.user and event and request and user
        assert batch.rows is not None and batch.users is not None and known.asked is None
        for row, (n, end, person) in enumerate(zip(batch.lengths, batch.rows, batch.users, strict=True)):
            places = np.arange(int(end) - int(n), int(end))
            for table, fields in ((event, known.event), (request, known.request)):
                one = table.take(places)
                assert np.array_equal(fields.ids[row, :n], one.categorical)
                assert np.array_equal(fields.missing[row, :n], np.isnan(one.numeric))
                assert np.array_equal(fields.numbers[row, :n], np.nan_to_num(one.numeric))
                assert not fields.ids[row, n:].any() and fields.missing[row, n:].all()
                for bag, ids in zip(one.bags, fields.bags, strict=True):
                    assert [list(x) for x in bag] == [x[x > 0].tolist() for x in ids[row, :n]]
            assert np.array_equal(known.user.ids[row : row + 1], user.take(np.array([person])).categorical)
    plain, data = model_of(tiny(), rich)
    assert data.loader(plain).batch(0).features is None and plain.reads_features is None
    some, data = model_of(tiny("model.features={event: [], request: []}"), rich)
    known = data.loader(some).batch(0).features
    assert known is not None and known.event is None and known.request is None and known.user is not None


def test_answers_read_the_last_events_and_the_request(rich: FeaturedStore) -> None:
    """Of histories longer than the model reads, the features of the events that it reads; batches change nothing."""
    model, _ = model_of(tiny(MADE, "model.max_length=4"), rich)
    histories = rich.eval_set("test").histories
    assert rich.request_features is not None and rich.times is not None
    for at, batch in batches(model, histories, Batching(batch_size=7)):
        known = batch.features
        assert known is not None and known.event is not None and known.asked is not None and known.asked_at is not None
        for row, user in enumerate(at):
            end = int(histories.items.ends[user])
            places = np.arange(end - int(batch.lengths[row]), end)
            assert np.array_equal(known.event.ids[row, : len(places)], rich.event_features.take(places).categorical)  # type: ignore[union-attr]
            assert np.array_equal(known.asked.ids[row], rich.request_features.take(np.array([end])).categorical[0])
            assert int(known.asked_at[row]) == int(rich.times[end])
    one, other = (rank(model, histories, k=5, how=Batching(batch_size=n)) for n in (5, 64))
    assert np.array_equal(one.ids, other.ids)


@pytest.mark.parametrize("role", ["event", "request"])
def test_no_list_knows_what_comes_later(rich: FeaturedStore, role: str) -> None:
    """Planted: other features of the targets' events and all later ones, other requests behind the targets' own."""
    model, _ = model_of(tiny(MADE), rich)
    found = rich.eval_set("validation")
    ends = found.histories.items.ends
    stops = rich.offsets[found.users + 1]
    own = Jagged(rich.items, ends + (role == "request"), stops).places()
    before = rank(model, found.histories, k=10)
    for places, same in ((own, True), (ends if role == "request" else ends - 1, False)):
        tables = some_tables(rich.num_events, rich.num_users)
        swapped = some_tables(rich.num_events, rich.num_users, seed=1)[role]
        mask = pl.Series(np.isin(np.arange(rich.num_events), places))
        tables[role] = tables[role].select(
            pl.when(mask).then(swapped[name]).otherwise(pl.col(name)).alias(name) for name in swapped.columns
        )
        other = FeaturedStore.of(rich, rich.catalog.features, **tables)
        after = rank(model, other.eval_set("validation").histories, k=10)
        assert np.array_equal(before.scores, after.scores) == same


def fitted(spec: Experiment, store: Store, folder: Path, **how: Any) -> Any:
    return fr.train(spec, store, folder, progress=False, **how)


ENCODERS = {
    "transformer": (), "hstu": ("model.encoder.attention=hstu",), "gru": ("model.encoder={kind: gru, dropout: 0.1}",),
    "fmlp": ("model.encoder={kind: fmlp, dropout: 0.1}",),
}  # fmt: skip


@pytest.mark.parametrize("fuse", ["sum", "concat", "gate"])
@pytest.mark.parametrize("user_at", ["places", "prefix"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    rich: FeaturedStore, tmp_path: Path, encoder: str, user_at: str, fuse: str
) -> None:
    spec = tiny(*ENCODERS[encoder], MADE, f"model.features.fuse={fuse}", f"model.features.user_at={user_at}",
                "training.max_epochs=2", "training.accumulate=2", dropout=0.1)  # fmt: skip
    whole = fitted(spec, rich, tmp_path / "whole")
    with pytest.raises(Stopped):
        fitted(spec, rich, tmp_path / "cut", callbacks=[Stop(1)])
    again = fitted(spec, rich, tmp_path / "cut", resume=True)
    assert same_weights(whole, again)
    spec_of_lists = Evaluation(ks=(5,), metrics=("ndcg",), bootstrap=0)
    values = [evaluate(run.model(), rich, "test", spec_of_lists).metrics for run in (whole, again)]
    assert values[0] == values[1]


def test_what_the_store_lacks_is_refused(rich: FeaturedStore, market: Store) -> None:
    with refused("unknown-feature", "devices", "device"):
        RetrievalData.of(tiny("model.features={request: [devices]}"), rich)
    untimed = FeaturedStore.of(market, **some_tables(market.num_events, market.num_users))
    untimed.times = None
    with refused("missing-times", "hour"):
        RetrievalData.of(tiny("model.features={event: [auto, hour]}"), untimed)
    first = RetrievalData.of(tiny(MADE), rich).known.frame["first_event_time"]
    _, items, times = rich.trained()
    assert times is not None
    for item in np.unique(items)[:20]:
        assert first[int(item)] == times[items == item].min()
    never = rich.catalog.popularity == 0
    assert first.is_null().to_numpy().tolist() == never.tolist()


def test_a_run_goes_on_with_other_values(rich: FeaturedStore, tmp_path: Path) -> None:
    """A value has its vector wherever its id stands, a new one starts anew; a feature of another kind is refused."""
    run = fitted(tiny(MADE, "training.max_epochs=1"), rich, tmp_path / "run")
    old = rich.catalog.features
    assert old is not None
    tables = some_tables(rich.num_events, rich.num_users)
    swapped = {**tables, "request": tables["request"].with_columns(pl.col("device").replace({"a": "z"}))}
    data = RetrievalData.of(tiny(MADE), FeaturedStore.of(rich, **swapped))
    fresh: Any = tiny(MADE).model.build(data.known)  # type: ignore[attr-defined]
    model: Any = tiny(MADE).model.build(data.known)  # type: ignore[attr-defined]
    model.load_state_dict(fresh.state_dict())
    data.warm_start(model, run)
    before, after = (one.features.vectors["asked"] for one in (run.model(), model))
    start, first = after.starts["device"], before.starts["device"]
    assert start == first
    rows = {"missing": (0, 0), "unknown": (1, 1), "b": (3, 2), "c": (4, 3), "d": (5, 4)}
    for place, now in rows.values():
        assert torch.equal(after.table[start + now], before.table[first + place])
    assert torch.equal(after.table[start + 5], fresh.features.vectors["asked"].table[start + 5]), "z is new"
    assert torch.equal(after.numbers, before.numbers) and torch.equal(after.table[6:], before.table[6:])
    other = FeaturedStore.of(rich, **{**tables, "request": tables["request"].with_columns(device=pl.lit(1.5))})
    data = RetrievalData.of(tiny(MADE), other)
    with refused("other-fields", "device"):
        data.warm_start(tiny(MADE).model.build(data.known), run)  # type: ignore[attr-defined]


def test_a_run_that_knows_more_items_keeps_its_features(rich: FeaturedStore, tmp_path: Path) -> None:
    """Lists of old items stay, and a new item, which never was in training, has no age."""
    run = fitted(tiny(MADE, "training.max_epochs=1"), rich, tmp_path / "run")
    grown = fr.grow_catalog(run, pl.DataFrame({"item_id": [10**6]}), tmp_path / "grown", start="mean")
    size, histories = rich.num_items, rich.eval_set("test").histories
    before, after = (rank(one.model(), histories, k=size + more, seen="keep") for one, more in ((run, 0), (grown, 1)))
    kept = after.ids != size
    assert np.array_equal(after.ids[kept].reshape(before.ids.shape), before.ids)
    assert grown.model().features.first_times[size] == NO_TIME


def test_events_that_are_left_out_take_their_features_along(rich: FeaturedStore) -> None:
    """Without a share of its events a history is answered as the shorter history is."""
    model, _ = model_of(tiny("model.features={event: [auto], request: []}"), rich)
    ((_, batch), *_) = batches(model, rich.eval_set("test").histories, Batching(batch_size=4))
    stays = batch.valid & (torch.arange(batch.items.shape[1]) % 3 != 1)
    short = drop_events(batch, stays, 12)
    for row in range(4):
        at = stays[row].nonzero()[:, 0]
        one = batch.select(torch.tensor([row]))
        assert one.features is not None
        own = replace(one, items=one.items[:, at], lengths=torch.tensor([len(at)]), times=None,
                      features=one.features.at_places(lambda x, at=at: x[:, at]))  # fmt: skip
        answers = [model.eval().answer(x).block(0, model.num_items) for x in (own, short.select(torch.tensor([row])))]
        torch.testing.assert_close(*answers)


def test_what_features_cost_is_counted(rich: FeaturedStore) -> None:
    """Of concat and gate the map, of sum nothing; their tables are no weights of the encoder."""
    plain, data = model_of(tiny(), rich)
    batch = data.loader(plain).batch(0)
    places, before = batch.items[:, 1:].numel(), batch_flops(plain, batch)
    for fuse, maps in (("sum", 0), ("concat", 11), ("gate", 2)):  # ten vectors at a place beside the item's
        model, data = model_of(tiny(f"model.features={{fuse: {fuse}}}"), rich)
        found = batch_flops(model, data.loader(model).batch(0))
        assert found == {**before, "features": 2 * 16 * 16 * maps * places}
        assert non_embedding(model) - non_embedding(plain) == 16 * 16 * maps + 16 * (maps > 0)


@pytest.mark.parametrize("fuse", ["sum", "concat", "gate"])
@pytest.mark.parametrize("user_at", ["places", "prefix"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_quick_encoder_reads_them(
    rich: FeaturedStore, encoder: str, user_at: str, fuse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of histories with features, a few at a time, are those of the model."""
    model, _ = model_of(
        tiny(*ENCODERS[encoder], MADE, f"model.features.fuse={fuse}", f"model.features.user_at={user_at}"), rich
    )
    shaken(model, 0.1)
    quick = FastEncoder.of(model.eval())
    assert quick is not None
    histories = rich.eval_set("test").histories
    wanted = rank(model, histories, k=10, seen="keep")
    rank_without = rank(model, replace(histories, features=None), k=10, seen="keep")
    monkeypatch.setattr(fast_search, "SCORES", 7 * model.num_items)  # forty histories are cut into parts
    for low, high in ((0, 1), (1, 40)):
        some = histories.take(np.arange(low, high))
        assert some.seconds is not None
        read = some.items.last(model.max_length)
        known = some.features and some.features.of_events(read.places())
        items, times = list(read), list(read.over(some.times))
        scores, ids = quick.lists_of(items, 10, times=times, features=known)
        assert np.allclose(scores, wanted.scores[low:high], rtol=1e-5, atol=1e-5)
        assert not np.allclose(scores, rank_without.scores[low:high], rtol=1e-3, atol=1e-3)
        scores, ids = quick.lists_of(items, 10, times=times)
        assert np.allclose(scores, rank_without.scores[low:high], rtol=1e-5, atol=1e-5)
