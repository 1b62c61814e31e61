"""What impressions take from a table of users and from a store of events, against the table joined by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from refusals import refused

USERS, ROWS = 30, 400
FEATURES: dict[str, Any] = {
    "event_features": ["rating", {"kind": "numeric", "name": "dwell"}, {"kind": "categorical", "name": "where"}],
    "request_features": [{"kind": "categorical", "name": "device", "min_count": 3}, "place"],
    "user_features": ["country", {"kind": "numeric", "name": "age", "transform": "bucket", "buckets": 4}],
}  # fmt: skip
BY_HAND = {"group": "user_id", "label": "label", "split": {"kind": "random"}, "fields": [
    "user_id", "item", {"name": "place", "min_count": 2}, {"kind": "sequence", "name": "rating", "keep_missing": True},
    {"name": "device", "min_count": 3}, "country",
    {"kind": "numeric", "name": "age", "transform": "bucket", "buckets": 4},
]}  # fmt: skip
OWN = BY_HAND | {"fields": BY_HAND["fields"][:3]}


def people() -> pl.DataFrame:
    """One of them has nothing, and some have no row."""
    return pl.DataFrame({
        "user_id": range(USERS - 3), "country": [None, *"abc" * 9][: USERS - 3], "age": range(20, 17 + USERS),
    })  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> fr.Store:
    draw = np.random.default_rng(0)
    events = pl.DataFrame({
        "user_id": np.repeat(np.arange(USERS), 5), "item_id": draw.integers(9, size=5 * USERS),
        "timestamp": np.arange(5 * USERS), "rating": draw.integers(1, 6, 5 * USERS), "dwell": draw.random(5 * USERS),
        "where": draw.integers(3, size=5 * USERS), "device": draw.choice(["phone", "desk"], 5 * USERS).tolist(),
        "place": draw.integers(4, size=5 * USERS),
    })  # fmt: skip
    return fr.prepare(events, tmp_path_factory.mktemp("joined") / "events", users=people(), **FEATURES)


@pytest.fixture(scope="module")
def shown() -> pl.DataFrame:
    draw = np.random.default_rng(1)
    ratings = [
        [None if one == 0 else int(one) for one in draw.integers(6, size=n)] for n in draw.integers(5, size=ROWS)
    ]
    return pl.DataFrame({
        "user_id": draw.integers(USERS, size=ROWS), "item": draw.integers(9, size=ROWS), "rating": ratings,
        "place": draw.integers(4, size=ROWS), "device": draw.choice(["phone", "desk", "tv"], ROWS).tolist(),
        "dwell": draw.random(ROWS), "where": draw.integers(3, size=ROWS), "label": draw.integers(2, size=ROWS),
    })  # fmt: skip


@pytest.mark.parametrize("parts", [None, 3])
@pytest.mark.parametrize("table", [None, "frame", "csv"])
def test_a_store_declares_what_a_schema_would(
    store: fr.Store, shown: pl.DataFrame, tmp_path: Path, parts: int | None, table: str | None
) -> None:
    """Fields of the schema stay; what is known with an event alone (dwell, where) is no field of an impression."""
    users: Any = None if table is None else people()
    if table == "csv":
        users = tmp_path / "users.csv"
        people().write_csv(users)
    found = fr.prepare_impressions(shown, tmp_path / "a", schema=OWN, features_of=store, users=users, parts=parts)
    joined = shown.join(people(), on="user_id", how="left", maintain_order="left")
    expected = fr.prepare_impressions(joined, tmp_path / "b", schema=BY_HAND, parts=parts)
    assert [field.name for field in found.fields] == ["user_id", "item", "place", "rating", "device", "country", "age"]
    assert found.fingerprint == expected.fingerprint, "schema, arrays and vocabularies"
    bag = found.batch(np.arange(50)).bags[0]
    assert sorted(bag.lengths.tolist()) == sorted(
        map(len, shown["rating"].gather(found.external(range(50))["input_row"]))
    )
    assert (bag.ids == 0).any(), "a missing rating is an event"


def test_fields_that_are_found_are_as_declared(store: fr.Store, shown: pl.DataFrame, tmp_path: Path) -> None:
    found = fr.prepare_impressions(shown, tmp_path / "a", features_of=store.path)
    kinds = {field.name: field for field in found.schema.fields}
    assert list(kinds) == ["user_id", "item", "rating", "device", "place", "country", "age"]
    assert kinds["device"].min_count == 3 and kinds["place"].min_count == 1 and kinds["age"].buckets == 4
    assert kinds["rating"].kind == "sequence" and kinds["rating"].keep_missing


def test_users_without_a_store(shown: pl.DataFrame, tmp_path: Path) -> None:
    schema = OWN | {"fields": ["item", "country"]}
    found = fr.prepare_impressions(shown, tmp_path / "a", schema=schema, users=people())
    joined = shown.join(people(), on="user_id", how="left", maintain_order="left")
    assert found.fingerprint == fr.prepare_impressions(joined, tmp_path / "b", schema=schema).fingerprint


def test_what_cannot_be_taken_over_is_refused(store: fr.Store, shown: pl.DataFrame, tmp_path: Path) -> None:
    def tried(**how: Any) -> None:
        fr.prepare_impressions(shown, tmp_path / "a", **{"schema": OWN} | how)

    plain = fr.prepare(shown.select("user_id", item_id="item"), tmp_path / "plain", time_col=None)
    for how, said in (
        ({"features_of": plain}, ("no-features", "--user-features")),
        ({"features_of": tmp_path / "none"}, ("missing-folder", "none")),
        ({"features_of": store, "schema": OWN | {"group": None}}, ("missing-group", "user_col=")),
        ({"users": people()}, ("setting-without-effect", "users")),
        ({"users": people().drop("user_id"), "features_of": store}, ("missing-id-column", "user_id")),
        ({"users": pl.concat([people()] * 2), "features_of": store}, ("repeated-ids", "users")),
        ({"users": people().with_columns(pl.col("user_id") + 99), "features_of": store}, ("no-known-ids", "user_id")),
    ):
        with refused(*said):
            tried(**how)
        assert not (tmp_path / "a").exists()
