"""Training on targets of chosen types: which events are predicted, from what, and by what the best epoch is chosen."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from featured import SHOP_FEATURES, FeaturedStore, changed, shop_events, shop_people
from fullrank.cli import main
from fullrank.core.spec import spec_tree
from fullrank.data.events.loader import Loader
from fullrank.data.events.store import Store
from fullrank.evaluation.targets import Targets
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.objectives.tasks.next_item import NextItem
from fullrank.training.data_module import RetrievalData
from refusals import refused
from tests.training.conftest import Stop, Stopped, same_weights, tiny

TYPES = ("view", "view", "view", "cart", "buy")
BUYS = "evaluation.targets={feature: type, values: [buy]}"
LENGTH = 5
"""Of the models here, shorter than many histories."""


@pytest.fixture(scope="module")
def typed(market: Store) -> FeaturedStore:
    types = np.random.default_rng(0).choice(TYPES, market.num_events)
    return FeaturedStore.of(market, event=pl.DataFrame({"type": types}))


def bought(store: FeaturedStore) -> np.ndarray:
    """Whether each event is a purchase."""
    assert store.features is not None and store.event_features is not None
    values = [None, None, *store.features.lookups["type"].values]  # type: ignore[union-attr]
    return np.array([values[code] == "buy" for code in np.asarray(store.event_features.categorical)[:, 0]])


def rows_of(store: FeaturedStore, task: Any, epoch: int) -> list[tuple[int, int, set[int]]]:
    """First and one-past-last place of each row of an epoch in the store, and the places that it asks for."""
    wanted = Targets(feature="type", values=("buy",)).in_training(store)
    load = Loader(store, partial(task.segments, wanted=wanted), by="tokens", size=200, seed=1, wanted=wanted)
    found = []
    for k in range(epoch * load.steps_per_epoch, (epoch + 1) * load.steps_per_epoch):
        batch = load.batch(k)
        assert batch.rows is not None and batch.wanted is not None
        for end, length, asked in zip(batch.rows.tolist(), batch.lengths.tolist(), batch.wanted, strict=True):
            assert not asked[length:].any()
            found.append((end - length, end, {end - length + int(at) for at in asked.nonzero()[:, 0] if at > 0}))
    return found


@pytest.mark.parametrize("window", ["last", "random"])
def test_rows_of_every_position(typed: FeaturedStore, window: Any) -> None:
    """A row for each user with a purchase behind another event: to the last one, or a stretch with at least one."""
    buys, task = bought(typed), NextItem(window=window).build(8, LENGTH)
    ends = {}
    for start, stop in zip(typed.offsets[:-1], typed.bounds[:, 0], strict=True):
        places = [place for place in range(start + 1, stop) if buys[place]]
        if places:
            ends[int(start)] = places
    whole: list[set[int]] = []
    for epoch in range(3):
        rows = rows_of(typed, task, epoch)
        owners = [int(typed.offsets[np.searchsorted(typed.offsets, start, side="right") - 1]) for start, *_ in rows]
        assert len(set(owners)) == len(owners) and set(owners) <= set(ends)
        for owner, (start, end, asked) in zip(owners, rows, strict=True):
            assert asked == {place for place in ends[owner] if start < place < end} and asked
            assert end - start <= LENGTH + 1
            if window == "last":
                assert end == ends[owner][-1] + 1 and start == max(owner, end - LENGTH - 1)
        whole.append({place for *_, asked in rows for place in asked})
        assert window == "random" or set(owners) == set(ends)
    assert (whole[0] == whole[1]) == (window == "last")


@pytest.mark.parametrize("per_user", [None, 2])
def test_rows_of_prefixes(typed: FeaturedStore, per_user: int | None) -> None:
    """Of each user every prefix before a purchase, or some of them."""
    buys = bought(typed)
    every = {}
    for start, stop in zip(typed.offsets[:-1], typed.bounds[:, 0], strict=True):
        every |= {place + 1: int(start) for place in range(start + 1, stop) if buys[place]}
    rows = rows_of(typed, LastItem(per_user=per_user).build(8, LENGTH), 0)
    ends = [end for _, end, _ in rows]
    assert len(set(ends)) == len(ends) and all(end - 1 in asked for _, end, asked in rows)
    assert all(start == max(every[end], end - LENGTH - 1) for start, end, _ in rows)
    owners = np.unique([every[end] for end in ends], return_counts=True)
    all_of_them = np.unique(list(every.values()), return_counts=True)
    assert np.array_equal(owners[0], all_of_them[0])
    assert np.array_equal(owners[1], all_of_them[1] if per_user is None else np.minimum(all_of_them[1], per_user))


@pytest.mark.parametrize("settings", [("model.task.horizons=2",), ("model.task.window=random",),
                                      ("model.task=last_item",)])  # fmt: skip
def test_queries_are_of_the_chosen_events_and_know_no_type(typed: FeaturedStore, settings: tuple[str, ...]) -> None:
    """Their vectors are those of a batch that asks for every event, whatever the type of what is sought."""
    spec = tiny(BUYS, "model.features=auto", "training.accumulate=2", *settings, dropout=0.0)
    data = RetrievalData.of(spec, typed)
    model: Any = spec.model.build(data.known)  # type: ignore[attr-defined]
    batch = data.loader(model).batch(0)
    assert batch.wanted is not None and batch.features is not None and batch.features.event is not None
    whole, some = model.step(replace(batch, wanted=None)), model.step(batch)
    for ours, theirs in zip(some.queries, whole.queries, strict=True):
        ahead = 2 if ours.name == "ahead_2" else 1
        kept = batch.wanted[theirs.rows, theirs.positions + ahead]
        assert torch.equal(ours.targets, theirs.targets[kept]) and torch.equal(ours.rows, theirs.rows[kept])
        torch.testing.assert_close(ours.vectors, theirs.vectors[kept])
        assert len(ours.targets) > 0 and (ours.name == "last" or len(ours.targets) < len(theirs.targets))
    assert some.inputs.wanted is None
    assert model.task.counts(batch) == {q.name: len(q.targets) for q in some.queries}
    last = torch.arange(batch.items.shape[1]) == batch.lengths[:, None] - 1
    event = changed(batch.features.event, last)
    other = model.step(replace(batch, features=replace(batch.features, event=event)))
    for ours, theirs in zip(some.queries, other.queries, strict=True):
        assert torch.equal(ours.vectors, theirs.vectors)
    assert torch.isfinite(sum(model(batch).values()))


def test_shards_add_up(typed: FeaturedStore) -> None:
    """The terms of micro-batches are those of the whole batch."""

    def terms(accumulate: int) -> float:
        spec = tiny(BUYS, f"training.accumulate={accumulate}", dropout=0.0)
        data = RetrievalData.of(spec, typed)
        torch.manual_seed(0)
        model: Any = spec.model.build(data.known)  # type: ignore[attr-defined]
        load = data.loader(model)
        return sum(sum(model(load.batch(0, shard)).values()).item() for shard in range(accumulate))

    assert terms(3) == pytest.approx(terms(1), rel=1e-5)


def test_without_types_nothing_is_chosen(typed: FeaturedStore) -> None:
    """Nor with metrics by type alone."""
    for settings in ((), ("evaluation.targets={feature: type}",)):
        spec = tiny(*settings)
        data = RetrievalData.of(spec, typed)
        model: Any = spec.model.build(data.known)  # type: ignore[attr-defined]
        load = data.loader(model)
        assert load.wanted is None and load.batch(0).wanted is None


def test_tasks_that_predict_every_event_are_refused(typed: FeaturedStore) -> None:
    spec = tiny(BUYS, "model.task=cloze", "model.encoder.attention.causal=false")
    data = RetrievalData.of(spec, typed)
    model: Any = spec.model.build(data.known)  # type: ignore[attr-defined]
    with refused("task-predicts-all", "next_item or last_item"):
        data.loader(model)
    assert "targets" not in spec_tree(tiny())["evaluation"] and "targets" in spec_tree(spec)["evaluation"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> fr.Store:
    return fr.prepare(shop_events(800), tmp_path_factory.mktemp("shop") / "store", users=shop_people(), **SHOP_FEATURES)


LIKED = tiny("evaluation.targets={feature: rating, values: [4, 5]}", "training.max_epochs=2", "evaluation.seen=keep")


@pytest.fixture(scope="module")
def liked(shop: fr.Store, tmp_path_factory: pytest.TempPathFactory) -> fr.Run:
    return fr.train(LIKED, shop, tmp_path_factory.mktemp("liked") / "run", progress=False)


def test_a_run_is_chosen_and_evaluated_by_its_types(
    shop: fr.Store, liked: fr.Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """From a shell too; metrics by type and other targets are settings of one evaluation."""
    found = fr.evaluate(liked, split="validation")
    assert found.protocol["target_types"]["values"] == ["4", "5"] and set(found.slices["type"]) == {"4", "5"}
    lines = [json.loads(line) for line in (liked.path / "metrics.jsonl").read_text().splitlines()]
    best = max(line["validation/ndcg@10"] for line in lines if "validation/ndcg@10" in line)
    assert found.metrics["ndcg@10"] == pytest.approx(best, rel=1e-5)

    def said(*words: str) -> str:
        capfd.readouterr()
        assert main(["evaluate", str(liked.path), *words]) == 0
        return capfd.readouterr().out

    told = json.loads(said("--set", "targets={feature: rating}", "--json"))
    assert set(told["slices"]["type"]) == {"1", "2", "3", "4", "5"} and "target_types" not in told["protocol"]
    printed = " ".join(said().split())  # a narrow terminal breaks lines
    assert "where the target is 4 " in printed and "targets of rating 4, 5" in printed
    assert told["protocol"]["users"] > fr.evaluate(liked).protocol["users"]
    with refused("unknown-type"):
        fr.train(LIKED.override("evaluation.targets.values=[9]"), shop, tmp_path / "none", progress=False)


@pytest.mark.slow
def test_a_run_that_was_stopped_in_parts_and_on_a_page(shop: fr.Store, liked: fr.Run, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        fr.train(LIKED, shop, tmp_path / "cut", progress=False, callbacks=[Stop(1)])
    assert same_weights(liked, fr.train(LIKED, shop, tmp_path / "cut", progress=False, resume=True))
    parts, whole = fr.evaluate(liked, parts=3), fr.evaluate(liked)
    assert parts.protocol == whole.protocol and parts.slices["type"].keys() == {"4", "5"}
    fr.report([liked], tmp_path / "page.html")
    assert "Recall by type of event" in (tmp_path / "page.html").read_text()
