"""Later events: targets and histories against plain loops, and what is left out, leaked or refused."""

import shutil
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.evaluation.later_events import LaterEvents, later_events
from refusals import refused
from seals import store_moved
from tests.data.test_splits import events as table

DAY = 86_400
START = 1_500_000_000


def random_events(users: range, items: int, days: range, seed: int) -> pl.DataFrame:
    """An event of each user on each day, in no order."""
    rng = np.random.default_rng(seed)
    rows = [(f"u{u}", f"i{rng.integers(items)}", START + DAY * day + u) for u in users for day in days]
    return table(*(rows[place] for place in rng.permutation(len(rows))))


EARLIER = random_events(range(40), 15, range(6), 0)
PERIOD = random_events(range(30, 45), 17, range(9, 13), 1)
"""Of users of whom a third is new, on items of which i15 and i16 are."""
measured = partial(fr.evaluate, device="cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fr.Run:
    home = tmp_path_factory.mktemp("later")
    store = fr.prepare(EARLIER, home / "data")
    return fr.train("item_to_item", store, home / "run", device="cpu", progress=False)


@pytest.fixture(scope="module")
def store(run: fr.Run) -> fr.Store:
    return fr.Store.open(run.path.parent / "data")


def by_user(events: pl.DataFrame) -> dict[str, list[str]]:
    found = defaultdict(list)
    for user, item, _ in events.sort("timestamp").iter_rows():
        found[user].append(item)
    return found


def external(later: LaterEvents, rows: object) -> list[list[str]]:
    return [later.catalog.ids.gather(row).to_list() for row in rows]  # type: ignore[attr-defined]


@pytest.mark.parametrize("source", ["store", "table"])
def test_histories_and_targets_are_those_of_loops(
    source: str,
    run: fr.Run,
    store: fr.Store,
) -> None:
    past = store if source == "store" else EARLIER
    later = later_events(PERIOD, run.catalog, past)
    known, before = by_user(PERIOD.filter(pl.col("item_id").is_in(run.catalog.ids.implode()))), by_user(EARLIER)
    everybody = later.eval_set("test", without_history=True)
    assert later.user_ids.to_list() == sorted(known)
    assert external(later, everybody.targets) == [known[user] for user in sorted(known)]
    assert external(later, everybody.histories.items) == [before.get(user, []) for user in sorted(known)]
    assert len(later.eval_set("test")) == sum(user in before for user in known)
    assert later.facts["of_unknown_items"] == PERIOD["item_id"].is_in(["i15", "i16"]).sum()


def test_events_from_the_period_on_are_no_history(
    run: fr.Run,
) -> None:
    whole = later_events(PERIOD, run.catalog, EARLIER)
    doubled = later_events(PERIOD, run.catalog, pl.concat([EARLIER, PERIOD]))
    assert doubled.fingerprint == whole.fingerprint


def test_metrics_are_those_of_the_lists_that_the_run_recommends(run: fr.Run, store: fr.Store) -> None:
    """Through the public functions: the histories of the store are what a service would answer from."""
    found = measured(run, events=PERIOD, set=["bootstrap=0", "ks=[5]"])
    known = by_user(PERIOD.filter(pl.col("item_id").is_in(run.catalog.ids.implode())))
    users = [user for user in sorted(known) if user in set(store.user_ids)]
    lists = by_user(
        fr.recommend(run, users=users, k=5, device="cpu").select("user", "item", pl.col("rank").alias("timestamp"))
    )
    recalls = [len(set(lists[user]) & set(known[user])) / len(set(known[user])) for user in users]
    assert found.metrics["recall@5"] == pytest.approx(np.mean(recalls)) and np.mean(recalls) > 0
    assert found.protocol["users"] == len(users) and found.protocol["split"] == "later events"
    assert found.slices["users"]["known"]["count"] == len(users)
    lost = next(note for note in found.notes if "does not know" in note)
    assert f"{found.protocol['events']['of_unknown_items']:,} of {len(PERIOD):,} events" in lost
    assert any("nothing was known" in note for note in found.notes) and not any("too good" in n for n in found.notes)


def test_users_without_history_are_answered_where_that_is_asked(
                                                                tmp_path: Path) -> None:  # fmt: skip
    store = fr.prepare(EARLIER, tmp_path / "data")
    run = fr.train("popularity", store, tmp_path / "run", device="cpu", progress=False)
    few, all_ = (fr.evaluate(run, events=PERIOD, set=["bootstrap=0", *more]) for more in ([], ["empty=answer"]))
    assert all_.protocol["users"] - few.protocol["users"] == few.protocol["users_without_history"] > 0
    assert all_.slices["users"]["new"]["count"] == few.protocol["users_without_history"]


def test_events_before_the_end_of_training_are_told(run: fr.Run) -> None:
    leaked = measured(run, events=EARLIER.filter(pl.col("timestamp") >= START + 3 * DAY))
    facts = leaked.protocol["events"]
    train = EARLIER.filter(pl.col("timestamp") < START + 4 * DAY)["timestamp"].max()
    assert facts["trained_until"] == train and 0 < facts["no_later_than_training"] < facts["events"]
    assert any("too good" in note for note in leaked.notes) and "too good" in str(leaked)


def test_types_and_files_do_not_matter(run: fr.Run, tmp_path: Path) -> None:
    PERIOD.rename({"user_id": "who", "item_id": "what", "timestamp": "when"}).write_csv(tmp_path / "period.csv")
    names = {"user_col": "who", "item_col": "what", "time_col": "when"}
    plain = measured(run, events=PERIOD)
    read = measured(run, events=tmp_path / "period.csv", **names)
    assert read.to_json() == plain.to_json()
    assert fr.compare(plain, read, "ndcg@10").difference == 0


def test_without_times_all_of_the_store_is_history(run: fr.Run) -> None:
    timed = measured(run, events=PERIOD)
    found = measured(run, events=PERIOD.drop("timestamp"), time_col=None)
    assert found.metrics == timed.metrics and found.protocol["history"] == "all earlier events"


def test_a_run_whose_store_is_gone_reads_earlier_events(run: fr.Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    store_moved(tmp_path / "run", tmp_path / "gone")
    with refused("missing-store", "before="):
        measured(tmp_path / "run", events=PERIOD)
    found = measured(tmp_path / "run", events=PERIOD, before=EARLIER)
    assert found.metrics == measured(run, events=PERIOD).metrics
    assert found.protocol["events"]["trained_until"] is None


def test_a_model_that_reads_times_is_not_given_none(store: fr.Store, tmp_path: Path) -> None:
    tiny = ["model.dim=8", "model.encoder.layers=1", "training.max_epochs=1", "model.encoder.attention=hstu"]
    timed = fr.train("sasrec", store, tmp_path / "run", set=tiny, device="cpu", progress=False)
    assert timed.model().reads_times
    with refused("missing-times", "times"):
        measured(timed, events=PERIOD.drop("timestamp"), time_col=None)


def test_what_cannot_be_evaluated_is_refused(run: fr.Run, store: fr.Store) -> None:
    how: dict[str, Any]
    for code, named, how in (
        ("no-known-ids", "'i", {"events": PERIOD.with_columns(item_id=pl.lit("x"))}),
        ("no-users-with-history", "empty=answer", {"events": PERIOD.with_columns(user_id=pl.lit("x"))}),
        ("given-twice", "before=", {"events": PERIOD, "before": PERIOD, "data": store}),
        ("given-twice", "split", {"events": PERIOD, "split": "validation"}),
        ("setting-without-effect", "events=", {"before": PERIOD}),
        ("setting-without-effect", "popularity", {"events": PERIOD, "set": ["popularity=all"]}),
        ("missing-column", "time_col=None", {"events": PERIOD.drop("timestamp")}),
        ("wrong-time-unit", "ms", {"events": PERIOD.with_columns(pl.col("timestamp") * 1000)}),
    ):
        with refused(code, named):
            fr.evaluate(run, **how)
