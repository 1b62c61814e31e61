"""Splits by hand: which event lands where, and what the manifest says about it."""

import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fullrank.data.events import splits
from fullrank.data.events.prepare import Prepare, prepare
from fullrank.data.events.store import Store
from refusals import refused


def events(*rows: tuple) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def ranges(store: Store, split: str, *, without_history: bool = False) -> list:
    """Users, and where in the flat events their histories start and end, and their targets end."""
    asked = store.eval_set(split, without_history=without_history)
    known, targets = asked.histories.items, asked.targets
    assert known.values is store.items and targets.values is store.items and asked.histories.times is store.times
    assert known.ends.tolist() == targets.starts.tolist(), "targets lie right behind the history"
    return [a.tolist() for a in (asked.users, known.starts, known.ends, targets.ends)]


def test_leave_one_out_by_hand(tmp_path: Path) -> None:
    store = prepare(
        events((7, 1, 30), (7, 2, 10), (7, 3, 20), (7, 4, 40), (8, 1, 5), (8, 2, 6), (9, 3, 50)), tmp_path / "s"
    )
    assert store.user_ids.to_list() == [7, 8, 9]
    ids = store.catalog.ids.to_list()
    assert [ids[i] for i in store.items] == [2, 3, 1, 4, 1, 2, 3]
    assert store.offsets.tolist() == [0, 4, 6, 7]
    assert store.bounds.tolist() == [[2, 3], [6, 6], [7, 7]]
    assert ranges(store, "test") == [[0], [0], [3], [4]]
    assert ranges(store, "validation") == [[0], [0], [2], [3]]
    assert ranges(store, "train") == [[0, 1], [0, 4], [1, 5], [2, 6]]
    assert [[ids[i] for i in row] for row in store.events.items] == [[2, 3, 1, 4], [1, 2], [3]]
    split = store.manifest["split"]
    assert split["users_train_only"] == 2
    assert split["train"] == {"events": 5, "users": 3}
    assert split["test"]["events"] == split["test"]["users"] == 1
    assert split["test"]["events_of_items_not_in_train"] == 1  # item 4
    assert store.catalog.popularity.tolist() == [1, 2, 2, 0], "popularity counts training events alone"


def test_leave_one_out_names_its_leak_and_the_way_out(tmp_path: Path) -> None:
    # Training at 1, 2, 100, 101, tests at 4 and 103: half of training is later than the one test, none than the other.
    rows = [(1, i, t) for i, t in enumerate((1, 2, 3, 4))] + [(2, i, t) for i, t in enumerate((100, 101, 102, 103))]
    split = prepare(events(*rows), tmp_path / "s").manifest["split"]
    assert "global_time" in split["leak"]
    assert split["train_share_after_test"] == 0.25
    other = prepare(
        events(*rows), tmp_path / "g", spec=Prepare(split={"kind": "global_time", "validation_from": 3, "test_from": 4})
    )
    assert other.manifest["split"]["leak"] is None


def test_times_below_a_second_decide_the_order(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user_id": [1, 1, 1], "item_id": [1, 2, 3], "timestamp": [5.9, 5.1, 5.5]})
    store = prepare(frame, tmp_path / "s")
    assert store.catalog.ids.gather(store.items).to_list() == [2, 3, 1] and set(store.times.tolist()) == {5}


GLOBAL = events(
    (1, 1, 10), (1, 2, 20), (1, 3, 30), (2, 1, 20), (2, 2, 25), (3, 4, 30), (3, 1, 31), (4, 1, 1), (4, 2, 29)
)


@pytest.mark.parametrize("first", [20, "1970-01-01T00:00:20Z", dt.datetime(1970, 1, 1, 0, 0, 20)])
def test_global_time_by_hand(tmp_path: Path, first: object) -> None:
    spec = Prepare(split={"kind": "global_time", "validation_from": first, "test_from": 30})
    store = prepare(GLOBAL, tmp_path / "s", spec=spec)
    assert store.offsets.tolist() == [0, 3, 5, 7, 9]
    assert store.bounds.tolist() == [[1, 2], [3, 5], [5, 5], [8, 9]]
    assert ranges(store, "validation") == [[0, 3], [0, 7], [1, 8], [2, 9]]
    assert ranges(store, "test") == [[0], [0], [2], [3]]
    everyone = ranges(store, "test", without_history=True)
    assert everyone == [[0, 2], [0, 5], [2, 5], [3, 7]], "user 3 is new: two targets, no history"
    split = store.manifest["split"]
    assert split["validation_from_seconds"] == 20 and split["test_from_seconds"] == 30
    assert split["validation"] == {
        "events": 4, "users": 3, "users_without_history": 1, "events_of_items_not_in_train": 3,
        "targets": 4, "repeated_targets": 0,
    }  # fmt: skip
    assert split["test"]["users_without_history"] == 1
    assert split["train"] == {"events": 2, "users": 2}, "nobody counts there who has no event before the first moment"
    assert Prepare.parse(spec.dump()) == spec and Prepare.from_text(spec.to_yaml()) == spec


def test_global_time_shares_are_of_events(tmp_path: Path) -> None:
    frame = events(*((i % 5, i % 3, t) for i, t in enumerate([1, 1, 1, 1, 2, 2, 2, 3, 3, 9])))
    split = prepare(frame, tmp_path / "s", spec=Prepare(split="global_time")).manifest["split"]
    # Shares 0.8 and 0.9 fall on events 8 and 9, at times 3 and 9: all events of one time stay together.
    assert (split["validation_from_seconds"], split["test_from_seconds"]) == (3, 9)
    assert [split[p]["events"] for p in ("train", "validation", "test")] == [7, 2, 1]


DAY = 86_400


@pytest.mark.parametrize("fold", [0, 1, 2])
def test_a_rolling_fold_is_the_table_of_its_day_split_by_time(tmp_path: Path, fold: int) -> None:
    random = np.random.default_rng(5)
    rows = zip(random.integers(0, 9, 300), random.integers(0, 7, 300), random.integers(0, 10 * DAY, 300), strict=True)
    frame = events(*((int(u), int(i), int(t)) for u, i, t in rows), (1, 1, 10 * DAY - 1))
    settings = ["split=rolling_time", "split.days=2", f"split.fold={fold}", "k_core=2"]
    store = prepare(frame, tmp_path / "fold", spec=Prepare().override(*settings))
    end = (10 - 2 * fold) * DAY
    moments = {"kind": "global_time", "validation_from": end - 4 * DAY, "test_from": end - 2 * DAY}
    before = frame.filter(pl.col("timestamp") < end)
    expected = prepare(before, tmp_path / "by-hand", spec=Prepare.parse({"split": moments, "k_core": 2}))
    assert store.fingerprint == expected.fingerprint
    assert store.manifest["split"] == expected.manifest["split"] and store.manifest["split"]["leak"] is None
    assert store.manifest["filters"][1]["until"] == end and store.manifest["filters"][1]["events"] == len(before)
    assert Prepare.parse(store.manifest["spec"]).split == splits.RollingTime(days=2, fold=fold)


def test_rolling_windows_need_times_and_events_before_them(tmp_path: Path) -> None:
    with refused("empty-split", "fold 0", "30 days", "split.days"):
        prepare(GLOBAL, tmp_path / "s", spec=Prepare().override("split=rolling_time"))
    for kind in ("rolling_time", "global_time"):
        with refused("split-needs-times", kind, "columns.time", "use leave_one_out"):
            spec = Prepare().override(f"split={kind}", "columns.time=null")
            prepare(GLOBAL.drop("timestamp"), tmp_path / "s", spec=spec)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"validation_from": 30, "test_from": 20}, ("moments-out-of-order", "validation_from=30", "test_from=20")),
        ({"validation_from": 100, "test_from": 200}, ("empty-split", "test", "1 (1970-01-01)", "31")),
        ({"validation_from": 0, "test_from": 20}, ("empty-split", "training")),
        ({"validation_from": "soon", "test_from": 20}, ("not-a-date", "'soon'", "ISO 8601")),
    ],
)
def test_impossible_moments(tmp_path: Path, split: dict, said: str) -> None:
    with refused(*said):
        prepare(GLOBAL, tmp_path / "s", spec=Prepare.parse({"split": {"kind": "global_time", **split}}))
    assert not (tmp_path / "s").exists()


def test_mistakes_in_a_split_are_sentences() -> None:
    with refused("unknown-split", "globaltime", "'global_time'"):
        Prepare().override("split=globaltime")
    with refused("not-a-moment", "test_from", "1.5"):
        Prepare.parse({"split": {"kind": "global_time", "test_from": 1.5}})
    with refused("unknown-setting", "validation_form", "validation_from"):
        Prepare.parse({"split": {"kind": "global_time", "validation_form": 0.5}})
    assert Prepare().override("split=global_time", "split.test_from=2014-05-01").split.test_from == "2014-05-01"


def test_windows_may_be_short_and_lie_in_the_past_alone() -> None:
    assert splits.RollingTime(days=0.5, fold=10_000).days == 0.5
    for wrong in ({"fold": -1}, {"fold": 10_001}, {"days": 0}, {"days": 36_501}):
        with refused("invalid-setting", *wrong):
            splits.RollingTime.parse({"kind": "rolling_time", **wrong})


def test_a_store_without_targets_says_so(tmp_path: Path) -> None:
    store = prepare(events((1, 1, 1), (2, 1, 1)), tmp_path / "s")
    assert any("no test events" in note for note in store.manifest["notes"])
    assert all(len(a) == 0 for a in ranges(store, "test"))
    with refused("unknown-split", "'valid'", "'validation'"):
        store.eval_set("valid")
