"""Lists made elsewhere: the lists of a run get the run's own numbers; what is odd about others is said or refused."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from refusals import refused
from tests.data.test_splits import events


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> fr.Store:
    rng = np.random.default_rng(0)
    rows = [(f"u{u}", f"i{v}", t) for u in range(40) for t, v in enumerate(rng.permutation(30)[:8])]
    return fr.prepare(events(*rows), tmp_path_factory.mktemp("lists") / "data")


@pytest.fixture(scope="module")
def run(store: fr.Store) -> fr.Run:
    return fr.train("item_to_item", store, store.path.parent / "run", device="cpu", progress=False)


@pytest.fixture(scope="module")
def lists(run: fr.Run, store: fr.Store) -> pl.DataFrame:
    """What the run answers to the histories of the test split."""
    asked = store.eval_set("test")
    users = store.user_ids.gather(asked.users).to_list()
    items = [store.catalog.ids.gather(row).to_list() for row in asked.histories.items]
    return fr.recommend(run, dict(zip(users, items, strict=True)), k=20, device="cpu")


@pytest.mark.parametrize("order", ["rank", "score"])
def test_lists_of_a_run_have_the_metrics_of_the_run(
    order: str, lists: pl.DataFrame, run: fr.Run, store: fr.Store
) -> None:
    own = fr.evaluate(run, device="cpu")
    given = lists.select("user", "item", order).sample(fraction=1.0, shuffle=True, seed=1)
    if order == "score":  # equal scores go by the order of rows: those of the run by the item
        given = lists.select("user", "item", order)
    found = fr.evaluate_lists(given, store)
    assert found.metrics == own.metrics and found.slices == own.slices and found.interval == own.interval
    assert not found.notes, found.notes
    assert fr.compare(own, found, "ndcg@10").p == 1.0


def test_another_list_is_paired_with_a_run(lists: pl.DataFrame, run: fr.Run, store: fr.Store, tmp_path: Path) -> None:
    worse = lists.with_columns(rank=21 - pl.col("rank")).rename({"user": "who", "item": "what", "rank": "place"})
    worse.write_csv(tmp_path / "worse.csv")
    found = fr.evaluate_lists(tmp_path / "worse.csv", store.path, user_col="who", item_col="what", rank_col="place")
    row = fr.compare(fr.evaluate(run, device="cpu"), found, "ndcg@10")
    assert row.b == found.metrics["ndcg@10"] and row.difference != 0
    assert found.protocol["lists"]["order"] == "place" and found.protocol["lists"]["source"].endswith("worse.csv")


def test_what_is_odd_is_counted(lists: pl.DataFrame, store: fr.Store) -> None:
    plain = fr.evaluate_lists(lists, store)
    first = lists["user"][0]
    some = lists.filter(pl.col("user") != first)
    found = fr.evaluate_lists(some, store)
    assert found.protocol["users"] == plain.protocol["users"], "an empty list counts"
    assert store.user_ids[int(plain.per_user.users[0])] == first
    lost = plain.per_user.values["recall@20"][0] / plain.protocol["users"]
    assert found.metrics["recall@20"] == pytest.approx(plain.metrics["recall@20"] - lost)
    assert found.protocol["lists"]["users_without_list"] == 1 and "1 of 40 users have no list" in str(found)
    strange = pl.DataFrame({"user": ["stranger"], "item": ["i1"], "score": [1.0], "rank": [1], "source": ["model"]})
    noted = fr.evaluate_lists(pl.concat([lists, strange.cast(dict(lists.schema))]), store)
    assert noted.metrics == plain.metrics and noted.protocol["lists"]["users_not_in_store"] == 1
    short = fr.evaluate_lists(lists.filter(pl.col("rank") <= 3), store)
    assert short.protocol["lists"]["shorter"] == 40 and short.metrics["recall@20"] == short.metrics["recall@5"]
    top = pl.col("rank") == 1
    unknown = fr.evaluate_lists(lists.with_columns(item=pl.when(top).then(pl.lit("new")).otherwise("item")), store)
    assert unknown.protocol["lists"]["unknown_items"] == 40 and unknown.metrics["recall@1"] == 0
    assert unknown.metrics["mrr@20"] <= plain.metrics["mrr@20"], "its place stays taken"
    seen = pl.DataFrame({"user": store.user_ids, "item": store.catalog.ids.gather(store.items[store.offsets[:-1]])})
    found, kept = (fr.evaluate_lists(seen.with_columns(rank=1), store, set=more) for more in ([], ["seen=keep"]))
    assert found.protocol["lists"]["seen_items"] == 40
    assert "seen=keep" in str(found.notes) and "seen=keep" not in str(kept.notes)


def test_what_is_no_table_of_lists_is_refused(lists: pl.DataFrame, store: fr.Store) -> None:
    strangers = lists.with_columns(user=pl.lit("nobody"), item=pl.int_range(len(lists)).cast(str))
    for code, named, table in (
        ("repeated-items", "twice", pl.concat([lists, lists[:1]])),
        ("missing-column", "score_col=", lists.drop("rank", "score")),
        ("missing-column", "user_col=", lists.drop("user")),
        ("no-known-ids", "users", strangers),
        ("no-known-ids", "items", lists.with_columns(item=pl.format("x{}", "item"))),
        ("empty-table", "", lists[:0]),
    ):
        with refused(code, named):
            fr.evaluate_lists(table, store)
    with refused("given-twice", "rank_col="):
        fr.evaluate_lists(lists, store, rank_col="rank", score_col="score")
    for setting in ("protocol=sampled", "sampled=5", "drop=0.5", "reasoning.steps=1", "popularity_discount=1"):
        with refused("setting-without-effect", setting.split("=")[0].split(".")[0]):
            fr.evaluate_lists(lists, store, set=[setting])
