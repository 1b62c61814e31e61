"""Parts of a store: nested, the same again, the events as they were, the distribution kept; hidden items."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.events import splits
from fullrank.data.events.prepare import Prepare, prepare
from fullrank.data.events.store import Store
from fullrank.data.events.subset import ks_statistic, popularity_gini, subset
from fullrank.data.sources.planted import Planted
from fullrank.evaluation import Evaluation, evaluate
from fullrank.models.sequential.items.table import Table
from fullrank.models.sequential.model import Recommender
from refusals import refused
from tests.data.test_splits import events


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    tables = Planted(users=600, items=150).read(None)
    spec = Prepare.parse({"columns": dict(tables.columns)})
    place = tmp_path_factory.mktemp("data") / "whole"
    return prepare(tables.events, place, items=tables.items, users=tables.users, spec=spec)


def histories(store: Store) -> dict:
    """Everything known of each user, by external ids: items, times, and the numbers of events in each part."""
    ids, items = store.user_ids.to_list(), store.catalog.ids.to_list()
    found = {}
    for u, user in enumerate(ids):
        low, high = int(store.offsets[u]), int(store.offsets[u + 1])
        times = None if store.times is None else store.times[low:high].tolist()
        found[user] = ([items[i] for i in store.items[low:high]], times, (store.bounds[u] - low).tolist())
    return found


def test_nested_and_whole_histories(whole: Store, tmp_path: Path) -> None:
    every = histories(whole)
    parts = {share: histories(subset(whole, tmp_path / str(share), share=share)) for share in (0.125, 0.25, 0.5)}
    assert [len(part) for part in parts.values()] == [75, 150, 300]
    assert set(parts[0.125]) < set(parts[0.25]) < set(parts[0.5])
    for part in parts.values():
        assert all(every[user] == history for user, history in part.items()), "a user's events changed"


def test_the_whole_catalogue_may_stay(whole: Store, tmp_path: Path) -> None:
    few, all_of_them = (subset(whole, tmp_path / str(k), share=0.02, keep_items=k) for k in (False, True))
    assert few.num_items < all_of_them.num_items == whole.num_items
    assert all_of_them.catalog.ids.equals(whole.catalog.ids) and histories(few) == histories(all_of_them)
    trained = np.bincount(
        all_of_them.items[splits.event_parts(all_of_them.offsets, all_of_them.bounds) == 0], minlength=150
    )
    assert all_of_them.catalog.frame["train_count"].to_list() == trained.tolist() and (trained == 0).any()


def test_the_same_again_and_another_seed(whole: Store, tmp_path: Path) -> None:
    a, b = (subset(whole.path, tmp_path / name, share=0.2, seed=3) for name in "ab")
    assert a.fingerprint == b.fingerprint and a.manifest["content"] == b.manifest["content"]
    assert subset(whole, tmp_path / "c", share=0.2, seed=4).fingerprint != a.fingerprint


def test_a_store_like_any_other(whole: Store, tmp_path: Path) -> None:
    """Verified by its hashes; counts, popularity, tables and the manifest fit the events."""
    subset(whole, tmp_path / "part", share=0.1)
    part = Store.open(tmp_path / "part", verify=True)
    trained = splits.event_parts(part.offsets, part.bounds) == 0
    assert part.catalog.popularity.tolist() == np.bincount(part.items[trained], minlength=part.num_items).tolist()
    assert set(part.items.tolist()) == set(range(part.num_items)) and part.num_items < whole.num_items
    own = part.catalog.frame.drop("item", "train_count")
    kept = whole.catalog.frame.drop("item", "train_count").filter(pl.col("item_id").is_in(own["item_id"].implode()))
    assert own.equals(kept) and part.users.columns == whole.users.columns
    told = part.manifest["subset"]
    counts = whole.manifest["counts"]
    assert told["source"] == {"store": "whole", "fingerprint": whole.fingerprint, "counts": counts}
    assert (told["share"], told["seed"]) == (0.1, 0) and part.manifest["split"]["kind"] == "leave_one_out"
    assert part.manifest["split"]["train"]["events"] == int(trained.sum())


def test_distributions_drift_little(whole: Store, tmp_path: Path) -> None:
    drift = subset(whole, tmp_path / "part", share=0.5).manifest["subset"]["drift"]
    before, after = drift["before"], drift["after"]
    assert after["events_per_user_mean"] == pytest.approx(before["events_per_user_mean"], rel=0.1)
    assert after["popularity_gini"] == pytest.approx(before["popularity_gini"], abs=0.05)
    assert 0 < drift["events_per_user_gap"] < 0.1
    counts = np.diff(whole.offsets)
    assert before["events_per_user_mean"] == pytest.approx(counts.mean(), abs=1e-4)


def test_gini_and_gap_by_hand() -> None:
    assert popularity_gini(np.array([3, 3, 3])) == pytest.approx(0) and popularity_gini(
        np.array([0, 0, 0, 8])
    ) == pytest.approx(0.75)
    pairs = [abs(a - b) for a in (1, 2, 6) for b in (1, 2, 6)]
    assert popularity_gini(np.array([6, 1, 2])) == pytest.approx(sum(pairs) / (2 * 9 * 3))
    assert ks_statistic(np.array([1, 2, 3]), np.array([3, 2, 1])) == 0
    assert ks_statistic(np.array([1, 1, 5, 5]), np.array([1, 5, 5, 5])) == 0.25


def test_hidden_items_are_never_trained_on_and_stay(whole: Store, tmp_path: Path) -> None:
    part = subset(whole, tmp_path / "cold", hide_items=0.1, seed=2)
    told = part.manifest["subset"]
    trained = part.items[splits.event_parts(part.offsets, part.bounds) == 0]
    hidden = set(range(part.num_items)) - set(trained.tolist())
    assert part.num_items == whole.num_items and len(hidden) >= told["hidden_items"] == 15
    before, after = histories(whole), histories(part)
    cold = {part.catalog.ids[i] for i in hidden}
    taken = 0
    for user, (items, times, bounds) in after.items():
        old, clock, edges = before[user]
        keep = [i for i, item in enumerate(old) if i >= edges[0] or item not in cold]
        assert items == [old[i] for i in keep] and bounds[1] - bounds[0] == edges[1] - edges[0]
        assert times is None or times == [clock[i] for i in keep]
        taken += len(old) - len(items)
    assert taken == told["hidden_events"] > 0
    again = subset(whole, tmp_path / "half", share=0.5, hide_items=0.1, seed=2)
    few = {i for i, count in zip(again.catalog.ids, again.catalog.popularity, strict=True) if count == 0}
    assert {part.catalog.ids[i] for i in hidden} & set(again.catalog.ids) <= few, "other items at another share"


def test_cold_targets_have_a_slice_of_their_own(whole: Store, tmp_path: Path) -> None:
    part = subset(whole, tmp_path / "cold", hide_items=0.3)
    model = Recommender(dim=4, items=Table()).build(part.catalog)
    found = evaluate(model, part, "test", Evaluation(bootstrap=0))
    starts = part.bounds[:, 1][found.per_user.users]
    cold = part.catalog.popularity[part.items[starts]] == 0
    assert found.slices["cold"]["cold"]["count"] == cold.sum() > 0
    mean = found.per_user.values["ndcg@10"][cold].mean()
    assert found.slices["cold"]["cold"]["ndcg@10"] == pytest.approx(mean)
    assert set(found.slices["cold"]) == {"trained", "cold"}


def test_refusals(whole: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for share in (0.0, -0.1, 1.5, float("nan")):
        with refused("setting-out-of-range", f"share={share:g}"):
            subset(whole, out, share=share)
    for hide in (-0.1, 1.0, float("nan")):
        with refused("setting-out-of-range", f"hide_items={hide:g}"):
            subset(whole, out, hide_items=hide)
    with refused("nothing-left-out", "hide_items"):
        subset(whole, out)
    with refused("no-users-left", "0.0001", "600 users"):
        subset(whole, out, share=1e-4)
    with refused("no-events-left", "hide_items=0.999"):
        subset(whole, out, share=1 / 600, hide_items=0.999)
    with refused("same-folder"):
        subset(whole, whole.path, share=0.5)
    subset(whole, tmp_path / "part", share=0.5)
    with refused("already-there", "overwrite=True"):
        subset(whole, tmp_path / "part", share=0.5)
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with refused("folder-not-empty"):
        subset(whole, out, share=0.5)
    assert (out / "thesis.txt").exists()


def test_without_the_users_of_another_store(whole: Store, tmp_path: Path) -> None:
    few = subset(whole, tmp_path / "few", share=0.25)
    rest = subset(whole, tmp_path / "rest", without=few)
    assert set(histories(rest)) == set(histories(whole)) - set(histories(few))
    assert rest.manifest["subset"]["without"] == {
        "store": "few", "fingerprint": few.fingerprint, "users": few.num_users,
    }  # fmt: skip
    with refused("no-users-left", few.num_users, "without"):
        subset(few, tmp_path / "none", without=whole)


def test_a_whole_number_and_its_text_are_the_same_user(tmp_path: Path) -> None:
    rows = [(u, t, t) for u in range(6) for t in range(5)]
    numbers = prepare(events(*rows), tmp_path / "a")
    text = [(f"{u}", t, t) for u in range(3) for t in range(5)]
    named = prepare(events(*text), tmp_path / "b")
    assert subset(numbers, tmp_path / "c", without=named).user_ids.to_list() == [3, 4, 5]


def test_a_model_of_a_share_is_evaluated_on_the_whole(whole: Store, tmp_path: Path) -> None:
    """With the same items the store of all users is the same split; with fewer it is another one."""
    few, fewer = (subset(whole, tmp_path / str(keep), share=0.02, keep_items=keep) for keep in (True, False))
    run = fr.train("popularity", few, tmp_path / "run", progress=False)
    everyone = fr.evaluate(run, data=whole)
    assert len(everyone.per_user.users) == len(whole.eval_set("test")) > len(fr.evaluate(run).per_user.users)
    other = fr.train("popularity", fewer, tmp_path / "other", progress=False)
    with refused("store-differs", str(whole.path)):
        fr.evaluate(other, data=whole)
