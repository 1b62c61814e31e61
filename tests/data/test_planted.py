"""The planted marketplace: tables of the promised form, determinism, and a law that sequence models can find."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from fullrank.data.events.subset import popularity_gini
from fullrank.data.sources import EventSource
from fullrank.data.sources._marketplace import TIERS, Market
from fullrank.data.sources.planted import Planted
from fullrank.data.sources.planted_clicks import PlantedClicks
from fullrank.data.sources.planted_sequences import PlantedSequences
from refusals import refused

Ints = NDArray[np.int64]
SMALL = Planted(users=300, items=128, events_per_user=12.0, seed=3)


def histories(spec: Planted) -> tuple:
    """Users, item rows and seconds by (user, time), and the offsets of the users."""
    events = spec.read().events.sort("user_id", "timestamp", maintain_order=True)
    ids = spec.item_ids()
    back = np.full(ids.max() + 1, -1)
    back[ids] = np.arange(len(ids))
    users = events["user_id"].to_numpy() - 1
    offsets = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=spec.users))])
    return users, back[events["item_id"].to_numpy()], events["timestamp"].to_numpy(), offsets


def hit_at_10(scores: NDArray[np.float64], users: Ints, items: Ints, offsets: Ints) -> float:
    """Share of users whose last item is among the ten best of `scores` [U, V], their history excluded."""
    last = offsets[1:] - 1
    target = scores[np.arange(len(last)), items[last]].copy()
    earlier = np.ones(len(items), dtype=bool)
    earlier[last] = False
    scores = scores.copy()
    scores[users[earlier], items[earlier]] = -np.inf
    return float(((scores > target[:, None]).sum(axis=1) < 10).mean())


def markov(users: Ints, items: Ints, offsets: Ints, size: int) -> NDArray[np.float64]:
    """First-order transition shares [U, V] from each user's last training item, popularity where there are none."""
    last = offsets[1:] - 1
    counts, inside = np.zeros((size, size)), users[1:] == users[:-1]
    inside[last - 1] = False
    np.add.at(counts, (items[:-1][inside], items[1:][inside]), 1.0)
    popularity = np.bincount(np.delete(items, last), minlength=size)
    shares = counts / (counts.sum(axis=1, keepdims=True) + 1.0) + 1e-4 * popularity / popularity.sum()
    return shares[items[last - 1]]


def test_tables_have_the_promised_form() -> None:
    tables = SMALL.read()
    events, items, users = tables.events, tables.items, tables.users
    assert events.columns == ["user_id", "item_id", "timestamp", "rating"]
    assert events["timestamp"].is_sorted() and events["timestamp"].dtype == pl.Int64
    assert events["rating"].is_between(1, 5).all()
    assert items["item_id"].n_unique() == len(items) == SMALL.items
    assert items["title"].n_unique() == len(items)
    assert set(events["item_id"]) <= set(items["item_id"])
    assert set(events["user_id"]) == set(users["user_id"]) and len(users) == SMALL.users
    assert events.group_by("user_id").len()["len"].min() >= 5
    assert {items[name].null_count() for name in items.columns} == {0}
    assert dict(tables.columns)["rating"] == "rating"
    assert isinstance(SMALL, EventSource) and SMALL.files() == ()


def test_the_same_spec_gives_the_same_tables_and_another_seed_others() -> None:
    first, again = SMALL.read(), SMALL.read()
    assert first.events.equals(again.events) and first.items.equals(again.items)
    assert not first.events.equals(SMALL.override("seed=4").read().events)


def test_times_increase_within_a_user_and_repeats_are_rare() -> None:
    users, items, times, offsets = histories(Planted())
    same = users[1:] == users[:-1]
    assert (np.diff(times)[same] > 0).all()
    pairs = np.unique(users * 10_000 + items)
    assert len(pairs) > 0.99 * len(items)


def test_popularity_is_as_skewed_as_in_a_real_shop() -> None:
    """Amazon Beauty's Gini is 0.50; what the exponent adds to the topics' own inequality is visible."""
    specs = (Planted(), Planted(popularity_exponent=0.0))
    skewed, flat = (popularity_gini(np.bincount(histories(spec)[1], minlength=1000)) for spec in specs)
    assert 0.42 < skewed < 0.6
    assert flat < skewed - 0.12


def test_order_matters_and_the_truth_is_the_ceiling() -> None:
    """Popularity < first-order transitions < the true law: the room in which a sequence model earns its keep."""
    spec = Planted()
    users, items, times, offsets = histories(spec)
    last = offsets[1:] - 1
    popularity = np.bincount(np.delete(items, last), minlength=spec.items).astype(float)
    by_popularity = hit_at_10(np.tile(popularity, (spec.users, 1)), users, items, offsets)
    by_order = hit_at_10(markov(users, items, offsets, spec.items), users, items, offsets)
    previous = np.where(times[last - 1] - times[last - 2] <= 3_600, items[last - 2], -1)
    law = spec.truth().next_item(np.arange(spec.users), np.diff(offsets) - 1, items[last - 1], previous)
    by_truth = hit_at_10(law, users, items, offsets)
    assert by_order > 2.0 * by_popularity
    assert by_truth > 1.5 * by_order


def test_next_item_is_a_distribution_that_the_events_follow() -> None:
    """Observed shares of (topic, tier) cells equal the law's, within four standard errors."""
    spec = Planted(users=4_000, items=64, events_per_user=5.0, session_length=3.0, drift=0.2)
    users, items, times, offsets = histories(spec)
    market = spec.truth()
    second = offsets[:-1] + 1  # before it: one item, so no redraws that shift the law beyond that item
    users_of, nothing = np.arange(spec.users), np.full(spec.users, -1)
    law = market.next_item(users_of, np.ones(spec.users, dtype=np.int64), items[second - 1], nothing)
    np.testing.assert_allclose(law.sum(axis=1), 1.0, atol=1e-9)
    law[users_of, items[second - 1]] = 0.0
    law /= law.sum(axis=1, keepdims=True)
    cell = market.topic * TIERS + market.tier
    cells = len(market.topic_vectors) * TIERS
    onto = np.eye(cells)[cell]
    expected = law @ onto
    observed = np.bincount(cell[items[second]], minlength=cells)
    error = np.sqrt((expected * (1 - expected)).sum(axis=0))
    assert (np.abs(observed - expected.sum(axis=0)) < 4 * error + 2).all()


def test_accessories_are_distinct_and_never_the_item_itself() -> None:
    for seed in range(5):
        market = Planted(users=1, items=40 + 30 * seed, seed=seed).truth()
        assert (market.accessories != np.arange(len(market.topic))[:, None]).all()
        ordered = np.sort(market.accessories, axis=1)
        assert (np.diff(ordered, axis=1) > 0).all()


def test_the_truth_is_saved_and_loaded(tmp_path: Path) -> None:
    market = SMALL.truth()
    market.save(tmp_path / "truth.npz")
    loaded = Market.load(tmp_path / "truth.npz")
    np.testing.assert_array_equal(loaded.interests, market.interests)
    assert loaded.drift == market.drift and loaded.restart == market.restart
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    with refused("file-damaged", "bad.npz", "Market.save"):
        Market.load(tmp_path / "bad.npz")


def test_smallest_market_and_settings_that_are_refused() -> None:
    tables = Planted(users=1, items=32, events_per_user=5.0).read()
    assert len(tables.events) >= 5
    for setting in ("items=31", "users=0", "follow=1.0", "session_length=1", "events_per_user=4"):
        with refused("invalid-setting", setting.split("=")[0]):
            Planted().override(setting)
    with refused("unknown-setting", "'user'", "'users'"):
        Planted().override("user=3")


@pytest.mark.slow
def test_a_million_events_in_a_few_seconds() -> None:
    start = time.perf_counter()
    events = Planted(users=50_000, items=20_000).read().events
    assert len(events) > 900_000
    assert time.perf_counter() - start < 20.0


@pytest.mark.parametrize(
    "spec",
    [
        Planted(users=10**8), Planted(users=10**6, events_per_user=1000), Planted(users=3 * 10**7, items=10**7),
        PlantedClicks(rows=10**9), PlantedClicks(users=2 * 10**9), PlantedSequences(rows=10**8),
        PlantedSequences(users=10**9), PlantedSequences(items=2 * 10**9),
    ],
)  # fmt: skip
def test_more_than_the_memory_holds_is_refused_before_it_is_drawn(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.core.memory.available_bytes", lambda: 10**10)
    with refused("too-large-for-memory", "set fewer"):
        spec.read() if isinstance(spec, Planted) else spec.impressions()
