"""Known users of a store, filters on columns of items on every path, and the column that says where a list is from."""

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.inference.column_filters import item_columns
from refusals import refused
from tests.inference.test_predictor import HISTORIES, IDS, PATHS, lists, predictor
from tiny import ITEMS

TABLE = pl.DataFrame({
    "item_id": IDS[::-1],
    "year": pl.Series([None if n % 7 == 0 else 1990 + n % 20 for n in range(ITEMS)][::-1], dtype=pl.Int64),
    "genre": [["a"] * (n % 2 == 0) + ["b"] * (n % 3 == 0) for n in range(ITEMS)][::-1],
})  # fmt: skip
WANTED = {"year": {"min": 1995}, "genre": ["a", "b"]}


def passing(wanted: dict[str, Any] | None) -> set[str]:
    """The same in plain Python: `WANTED`, some other genre, or everything."""
    if wanted is None:
        return set(IDS)
    least = wanted.get("year", {"min": -1})["min"]
    rows = TABLE.with_columns(pl.col("year").fill_null(-1)).to_dicts()
    return {row["item_id"] for row in rows if row["year"] >= least and set(row["genre"]) & set(wanted["genre"])}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The histories as a store, whose items are numbered otherwise than the model's, and one is unknown to it."""
    rows = [(user, item, at) for user, items in HISTORIES.items() for at, item in enumerate(items)]
    rows += [("stranger", "nothing", 0), ("stranger", "nothing", 1), ("u5", "nothing", 99)]
    events = pl.DataFrame(rows[::-1], schema=["user_id", "item_id", "timestamp"], orient="row")
    return fr.prepare(events, tmp_path_factory.mktemp("stored") / "data")


@pytest.mark.parametrize("path", PATHS)
def test_filters_hold_on_every_path_and_lists_are_full(path: str) -> None:
    kind, how = PATHS[path]
    made, k = predictor(kind), 9
    single: list[Any] = [WANTED, None, {"genre": ["b"]}] * 4
    for filters, own in ((WANTED, [WANTED] * 12), (single, single)):
        found = lists(made.recommend(HISTORIES, k=k, filters=filters, item_table=TABLE, **how))
        for (user, history), wanted in zip(HISTORIES.items(), own, strict=True):
            left = passing(wanted) - set(history)
            assert set(found[user]) <= left, "what does not pass is shown"
            assert len(found[user]) == min(k, len(left)), "the list is not full"
    popular = lists(made.recommend({"new": []}, k=k, filters=WANTED, item_table=TABLE, **how))["new"]
    assert set(popular) <= passing(WANTED) and len(popular) == min(k, len(passing(WANTED)))


def test_filters_go_with_exclude_and_allow() -> None:
    made = predictor("vectors")
    some = sorted(passing(WANTED))
    given: dict[str, Any] = {"filters": WANTED, "item_table": TABLE, "seen": "keep", "k": ITEMS}
    found = set(made.recommend([["i1"]], exclude=some[:2], **given)["item"])
    assert found == set(some[2:])
    assert set(made.recommend([["i1"]], allow=[*some[:3], "i0"], **given)["item"]) == {*some[:3]}
    alike = made.similar("i1", k=ITEMS, filters=WANTED, item_table=TABLE)
    assert set(alike["similar"]) == passing(WANTED) - {"i1"}


def test_a_table_of_items_takes_the_place_of_the_runs_columns(tmp_path: Path) -> None:
    made = predictor("vectors")
    name = made.catalog.columns[0]
    pl.DataFrame({"item_id": ["i2", "i3", "zz"], name: ["x", "y", "x"], "price": [1, 2, 3]}).write_csv(
        tmp_path / "t.csv"
    )
    columns = item_columns(made.catalog, tmp_path / "t.csv")
    assert columns[name].drop_nulls().to_list() == ["x", "y"] and columns["price"].drop_nulls().to_list() == [1, 2]
    cheap = made.recommend([["i9"]], k=5, filters={"price": {"max": 1}, name: "x"}, item_table=tmp_path / "t.csv")
    assert cheap["item"].to_list() == ["i2"]


def test_users_are_answered_by_their_events_in_the_store(data: Store) -> None:
    made = predictor("vectors")
    asked = ["u7", "u2", "u5", "u11"]
    by_hand = made.recommend({user: HISTORIES[user] for user in asked}, k=6)
    for users in (asked, pl.Series(asked), pl.Series(asked, dtype=pl.Categorical), np.array(asked)):
        assert made.recommend(users=users, data=data, k=6).equals(by_hand)
    assert made.recommend(users=asked, data=data.path, k=6).equals(by_hand)
    names, vectors = made.user_vectors(users=asked, data=data)
    assert names.to_list() == asked
    np.testing.assert_allclose(vectors, made.user_vectors({user: HISTORIES[user] for user in asked})[1], rtol=1e-6)


def test_whom_the_store_does_not_have(data: Store) -> None:
    made = predictor("vectors")
    with refused("unknown-user", "2 of 3", "'nobody', 'none'; unknown_users"):
        made.recommend(users=["u1", "nobody", "none"], data=data)
    counts = [("read", 20), ("duplicates", 20), ("k_core", data.num_users)]
    cored = copy(data)
    cored.manifest = data.manifest | {"filters": [{"filter": name, "users": users} for name, users in counts]}
    with refused("unknown-user", f"left out {20 - data.num_users} of 20 users, by k_core"):
        made.recommend(users=["u1", "nobody"], data=cored)
    found = made.recommend(users=["u1", "nobody", "stranger"], data=data, unknown_users="popular", k=3)
    assert found["source"].to_list() == ["model"] * 3 + ["popular"] * 6
    count = dict(zip(IDS, made.catalog.popularity.tolist(), strict=True))
    assert [count[item] for item in found["item"][3:6]] == found["score"][3:6].to_list()
    assert made.recommend(users=["u1", "nobody"], data=data, unknown_users="skip", k=3).equals(found[:3])


def test_a_model_that_answers_empty_histories_is_the_source() -> None:
    assert set(predictor("popularity").recommend([[], ["i1"]], k=2)["source"]) == {"model"}
    assert predictor("vectors").recommend([[], ["i1"]], k=1)["source"].to_list() == ["popular", "model"]


def test_vectors_as_frames(data: Store) -> None:
    made = predictor("vectors")
    items, users = made.item_vector_table(), made.user_vector_table(users=["u3", "u4"], data=data)
    assert items["item_id"].to_list() == IDS and users["user"].to_list() == ["u3", "u4"]
    scores = users["vector"].to_numpy() @ items["vector"].to_numpy().T
    known = made.score({user: HISTORIES[user] for user in ("u3", "u4")}, IDS)["score"].to_numpy()
    np.testing.assert_allclose(scores.ravel(), known, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "histories-or-users"),
        ({"histories": [["i1"]], "users": ["u1"]}, "histories-or-users"),
        ({"histories": [["i1"]], "unknown_users": "skip"}, "setting-without-effect"),
        ({"users": ["u1"], "data": None}, "missing-store"),
        ({"users": "u1"}, "not-user-ids"),
        ({"users": [1]}, "wrong-id-type"),
        ({"users": ["u1", 2]}, "mixed-ids"),
        ({"users": ["u1", "u1"]}, "repeated-ids"),
        ({"users": []}, "no-histories"),
        ({"users": ["nobody"], "unknown_users": "skip"}, "unknown-user"),
        ({"users": ["nobody"], "unknown_users": "popular", "empty": "error"}, "no-known-items"),
        ({"users": ["u1"], "unknown_users": "popularr"}, "unknown-choice"),
        ({"users": ["u1"], "time_unit": "ms"}, "setting-without-effect"),
        ({"users": ["u1"], "user_col": "customer"}, "setting-without-effect"),
        ({"users": ["u1"], "time_col": None}, "setting-without-effect"),
        ({"users": ["u1"], "item_table": TABLE}, "setting-without-effect"),
        ({"users": ["u1"], "filters": [WANTED, WANTED]}, "list-count-differs"),
        ({"users": ["u1"], "filters": {"yeer": 1}, "item_table": TABLE}, "unknown-column"),
        ({"users": ["u1"], "filters": {"year": "x"}, "item_table": TABLE}, "filter-wrong-type"),
        ({"users": ["u1"], "filters": {"year": 3}, "item_table": TABLE}, "nothing-allowed"),
        ({"users": ["u1"], "filters": WANTED, "item_table": pl.concat([TABLE, TABLE[:1]])}, "repeated-ids"),
        ({"users": ["u1"], "filters": WANTED, "item_table": TABLE.with_columns(item_id="z" + pl.col("item_id"))},
         "no-known-ids"),
    ],
)  # fmt: skip
def test_what_is_refused(given: dict[str, Any], code: str, data: Store) -> None:
    made: Any = predictor("vectors")
    with refused(code):
        made.recommend(**({"data": data} if "users" in given else {}) | given)


def test_histories_of_a_table_take_one_mapping() -> None:
    made = predictor("vectors")
    frame = pl.DataFrame({"user_id": ["b", "a"], "item_id": ["i1", "i2"]})
    with refused("table-has-no-order"):
        made.recommend(frame, filters=[WANTED, WANTED], item_table=TABLE)
    assert set(made.recommend(frame, k=4, filters=WANTED, item_table=TABLE)["item"]) <= passing(WANTED)
