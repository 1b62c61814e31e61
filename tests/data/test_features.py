"""Features of events, requests and users: what a store keeps of them against plain loops, in one and in parts, and what
is refused."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.core.parted import PartedArray
from fullrank.data.events.feature_files import encoder_beside, same_encoding
from fullrank.data.events.features import Features, encoder_of
from fullrank.data.features import Encoded, FeatureTable
from fullrank.data.impressions.encoder_files import encoder_state, vocabularies
from fullrank.data.impressions.numeric import Quantiles
from fullrank.evaluation.later_events import later_events
from fullrank.run import write_run
from refusals import refused
from seals import reseal, rewrite
from tests.data.test_parts import killed, same_events

SIZE = 3000
FEATURES: dict[str, Any] = {
    "event_features": [
        "rating", {"kind": "numeric", "name": "dwell"},
        {"kind": "bag", "name": "tags", "separator": "|", "min_count": 9},
        {"kind": "numeric", "name": "price", "transform": "bucket", "buckets": 4}, "query",
    ],
    "request_features": [{"kind": "categorical", "name": "device", "min_count": 40}, "places",
                         {"kind": "categorical", "name": "shop", "hash_buckets": 5}],
    "user_features": ["age", {"kind": "numeric", "name": "income", "transform": "log"}, "likes"],
}  # fmt: skip


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    draw = np.random.default_rng(3)
    words = ["red", "blue", "hat", "shoe", "cap", "big"]
    return pl.DataFrame({
        "user_id": [f"user {n}ä" for n in draw.zipf(1.3, SIZE) % 211],
        "item_id": draw.zipf(1.4, SIZE) % 97,
        "timestamp": 1_700_000_000 + draw.permutation(SIZE),
        "rating": draw.integers(1, 6, SIZE),
        "dwell": pl.Series(draw.gamma(2.0, 30.0, SIZE)).set(pl.Series(draw.random(SIZE) < 0.1), None),
        "price": np.round(draw.gamma(2.0, 10.0, SIZE), 1),
        "tags": ["|".join(draw.permutation(list("abcdefgh"))[: draw.zipf(2.0) % 4]) for _ in range(SIZE)],
        "query": [f"{' '.join(draw.choice(words, 3))} {n % 70}" for n in range(SIZE)],
        "device": pl.Series(draw.choice(["phone", "desk", "tv", ""], SIZE, p=[0.6, 0.3, 0.01, 0.09]).tolist()),
        "places": [draw.integers(0, 30, draw.integers(0, 4)).tolist() for _ in range(SIZE)],
        "shop": draw.integers(0, 50, SIZE),
    })  # fmt: skip


@pytest.fixture(scope="module")
def people() -> pl.DataFrame:
    draw = np.random.default_rng(4)
    return pl.DataFrame({
        "user_id": [f"user {n}ä" for n in range(190)],
        "age": draw.integers(20, 60, 190),
        "income": draw.gamma(2.0, 1e4, 190),
        "likes": [draw.choice(["sea", "hills", "town"], n % 3).tolist() for n in range(190)],
        "plan": draw.choice(["free", "paid"], 190).tolist(),
    })  # fmt: skip


def by_event(store: fr.Store, table: FeatureTable, rows: np.ndarray) -> Encoded:
    """Of some users' events, row after row."""
    return table.take(store.events.items.take(rows).places())


def same(one: Encoded, other: Encoded) -> None:
    assert np.array_equal(one.categorical, other.categorical)
    assert np.array_equal(one.numeric.view(np.int32), other.numeric.view(np.int32)), "to the bit"
    for bag, twin in zip(one.bags, other.bags, strict=True):
        assert np.array_equal(bag.lengths, twin.lengths) and np.array_equal(bag.flat(), twin.flat())


def same_features(whole: fr.Store, other: fr.Store) -> None:
    """Each user and event has the same ids and numbers, by the same vocabularies."""
    assert whole.features is not None and other.features is not None
    assert whole.manifest["spec"]["features"] == other.manifest["spec"]["features"]
    assert whole.manifest["features"] == other.manifest["features"]
    assert same_encoding(whole.features, other.features)
    rows = other.rows_of(whole.user_ids)
    for role in ("event_features", "request_features"):
        one, two = getattr(whole, role), getattr(other, role)
        assert np.array_equal(np.asarray(one.lists)[whole.events.items.places()],
                              two.lists[other.events.items.take(rows).places()])  # fmt: skip
        same(by_event(whole, one, np.arange(whole.num_users)), by_event(other, two, rows))
    assert whole.user_features is not None and other.user_features is not None
    same(whole.user_features.take(np.arange(whole.num_users)), other.user_features.take(rows))


SPLITS = {"leave one out": ["k_core=2"], "global time": ["split=global_time", "missing=drop"]}


@pytest.mark.parametrize("settings", SPLITS.values(), ids=SPLITS.keys())
def test_parts_hold_what_one_store_holds(
    settings: list, table: pl.DataFrame, people: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Quantiles.__init__, "__defaults__", (300,))  # fewer than the rows: parts take the same sample
    whole = fr.prepare(table, tmp_path / "whole", users=people, set=settings, **FEATURES)
    path, known = tmp_path / "events.parquet", tmp_path / "users.parquet"
    table.write_parquet(path)
    people.write_parquet(known)
    monkeypatch.setattr("fullrank.data.frames.CHUNK", 333)
    monkeypatch.setattr("fullrank.data.events.pieces.HELD", 5000)
    monkeypatch.setattr("fullrank.data.events.pieces.MERGED", 5)
    for count in (1, 5):
        other = fr.prepare(path, tmp_path / f"in {count}", users=known, parts=count, set=settings, **FEATURES)
        same_events(whole, other)
        same_features(whole, other)
        assert whole.manifest["user_table"] == other.manifest["user_table"]
        same_features(whole, fr.Store.open(other.path, verify=True))
        assert fr.verify(other.path).ok


def test_what_is_kept_is_what_loops_find(table: pl.DataFrame, people: pl.DataFrame, tmp_path: Path) -> None:
    store = fr.prepare(table, tmp_path / "store", users=people, **FEATURES)
    encoder = store.features
    assert encoder is not None
    histories = [rows.sort("timestamp").to_dicts() for rows in table.partition_by("user_id")]
    train = [row for rows in histories for row in (rows[:-2] if len(rows) > 2 else rows)]
    values = {name: frame["value"].to_list() for name, frame in vocabularies(encoder).items()}

    def known(counts: Counter, least: int = 1) -> list[str]:
        return [str(v) for v, n in sorted(counts.items(), key=lambda one: (-one[1], one[0])) if n >= least]

    assert values["rating"] == known(Counter(row["rating"] for row in train))
    assert values["device"] == ["phone", "desk"] == known(Counter(row["device"] for row in train if row["device"]), 40)
    assert values["tags"] == known(Counter(tag for row in train for tag in row["tags"].split("|") if tag), 9)
    assert values["places"] == known(Counter(place for row in train for place in row["places"]))
    assert values["query"] == known(Counter(word for row in train for word in row["query"].split(" ")))
    dwells = np.array([row["dwell"] for row in train if row["dwell"] is not None])
    np.testing.assert_allclose(encoder.fitted["dwell"]["mean"], dwells.mean())
    np.testing.assert_allclose(encoder.fitted["dwell"]["scale"], 1 / dwells.std())
    trained = {row["user_id"] for row in train}
    ages = Counter(row["age"] for row in people.to_dicts() if row["user_id"] in trained)
    assert values["age"] == known(ages)

    assert store.event_features is not None and store.request_features is not None and store.user_features is not None
    event, request = (
        table.take(np.arange(store.num_events)) for table in (store.event_features, store.request_features)
    )
    users = store.user_ids.gather(store.events.items.row_of()).to_list()
    raw = {(row["user_id"], row["timestamp"]): row for row in table.to_dicts()}
    assert store.times is not None
    rows = [raw[key] for key in zip(users, np.asarray(store.times).tolist(), strict=True)]

    def ids(field: str, given: list) -> list[int]:
        return [values[field].index(v) + 2 if v in values[field] else 1 for v in map(str, given)]

    assert event.categorical[:, 0].tolist() == [ids("rating", [row["rating"]])[0] for row in rows]
    buckets = np.searchsorted(encoder.fitted["price"]["edges"], [row["price"] for row in rows], side="right")
    assert np.array_equal(event.categorical[:, 1], 2 + buckets), "a number in buckets is a category"
    missing = [row["dwell"] is None for row in rows]
    assert any(missing) and np.isnan(event.numeric[:, 0]).tolist() == missing
    assert [bag.tolist() for bag in event.bags[0]] == [
        ids("tags", [t for t in row["tags"].split("|") if t]) for row in rows
    ]
    assert [bag.tolist() for bag in event.bags[1]] == [ids("query", row["query"].split(" ")) for row in rows]
    assert request.categorical[:, 0].tolist() == [ids("device", [r["device"]])[0] if r["device"] else 0 for r in rows]
    assert {ids("device", [r["device"]])[0] for r in rows if r["device"]} == {1, 2, 3}, "rare ones are unknown together"
    assert len(set(request.categorical[:, 1].tolist())) <= 5 and request.categorical[:, 1].min() >= 2, "hashed"
    assert [bag.tolist() for bag in request.bags[0]] == [ids("places", row["places"]) for row in rows]
    of_user = {row["user_id"]: row for row in people.to_dicts()}
    given = store.user_features.take(np.arange(store.num_users))
    told = [of_user.get(user) for user in store.user_ids]
    assert given.categorical[:, 0].tolist() == [0 if one is None else ids("age", [one["age"]])[0] for one in told]
    np.testing.assert_allclose(
        given.numeric[:, 0], [np.nan if one is None else np.log1p(one["income"]) for one in told], rtol=1e-6
    )


def test_histories_know_what_is_asked(table: pl.DataFrame, people: pl.DataFrame, tmp_path: Path) -> None:
    for parts in (None, 3):
        store = fr.prepare(table, tmp_path / f"store {parts}", users=people, parts=parts, **FEATURES)
        for split in ("train", "validation", "test"):
            found = store.eval_set(split)
            known, first = found.histories.features, found.targets.starts
            assert known is not None and known.event is not None and known.user is not None and known.asked is not None
            assert store.times is not None and store.request_features is not None
            assert np.array_equal(known.asked.rows, first) and np.array_equal(known.asked_at, store.times[first])
            some = found.histories.take(np.arange(3)).features
            assert some is not None and some.user is not None and np.array_equal(some.user.rows, found.users[:3])
            same(known.asked.table.take(first[:3]), store.request_features.take(first[:3]))
    plain = fr.prepare(table, tmp_path / "plain").eval_set("test").histories.features
    assert plain is not None and plain.asked_at is not None and plain.event is plain.user is plain.asked is None
    order = fr.prepare(table, tmp_path / "order", time_col=None)
    assert order.events.features is None and order.eval_set("test").histories.features is None


def test_a_text_file_without_types_gives_the_same(table: pl.DataFrame, people: pl.DataFrame, tmp_path: Path) -> None:
    flat = table.drop("places")
    asked = {**FEATURES, "request_features": ["device", "shop"], "user_features": ["age", "income", "plan"]}
    flat.write_csv(tmp_path / "events.csv")
    people.drop("likes").write_csv(tmp_path / "users.csv")
    whole = fr.prepare(flat, tmp_path / "whole", users=people.drop("likes"), **asked)
    for parts in (None, 4):
        given = {"users": tmp_path / "users.csv", "parts": parts}
        same_features(whole, fr.prepare(tmp_path / "events.csv", tmp_path / f"text {parts}", **given, **asked))


def test_kinds_are_found_and_said(table: pl.DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["rating", "dwell", "tags", "query", "device", "places"]
    with caplog.at_level("INFO"):
        store = fr.prepare(table, tmp_path / "store", event_features=names)
    kinds = {one["name"]: (one["kind"], one.get("separator")) for one in store.manifest["spec"]["features"]["event"]}
    assert kinds == {
        "rating": ("categorical", None), "dwell": ("numeric", None), "tags": ("bag", "|"), "query": ("bag", " "),
        "device": ("categorical", None), "places": ("bag", None),
    }  # fmt: skip
    assert (
        "query a text (a bag of its words)" in caplog.text
        and "tags a list (text cut at '|')" in caplog.text
        and "features.event=" in caplog.text
    )
    towns = pl.DataFrame({"town": [f"New {'York' if n % 3 else 'Delhi'}" for n in range(SIZE)]})
    named = fr.prepare(table.hstack(towns), tmp_path / "towns", event_features="town")  # type: ignore[arg-type]
    assert named.manifest["spec"]["features"]["event"][0]["kind"] == "categorical", "few names of two words"


def test_without_features_all_is_as_it_was(table: pl.DataFrame, tmp_path: Path) -> None:
    store = fr.prepare(table, tmp_path / "store")
    assert store.features is None and store.user_features is None and "features" not in store.manifest
    assert sorted(path.name for path in store.path.iterdir()) == [
        "bounds.npy", "items.npy", "items.parquet", "manifest.json", "offsets.npy", "times.npy", "users.parquet",
    ]  # fmt: skip
    with_them = fr.prepare(table, tmp_path / "with", event_features=["rating"])
    assert with_them.fingerprint == store.fingerprint
    assert fr.prepare(table, store.path, event_features=["rating"], overwrite=True).features is not None
    assert fr.prepare(table, store.path, overwrite=True).features is None, "one may replace the other"


def test_mistakes_are_one_sentence(table: pl.DataFrame, people: pl.DataFrame, tmp_path: Path) -> None:
    def wrong(code: str, *names: str, **asked: Any) -> None:
        with refused(code, *names):
            fr.prepare(table, tmp_path / "out", **asked)
        assert not (tmp_path / "out").exists()

    wrong("missing-column", "'ratng'", "did you mean 'rating'", event_features=["ratng"])
    wrong("missing-column", "'agee'", "did you mean 'age'", user_features=["agee"], users=people)
    wrong("missing-column", "as a user feature", event_features=["age"], users=people)
    wrong("missing-users", "'age'", "users=", user_features=["age"])
    wrong("feature-is-an-id", "'user_id'", event_features=["user_id"])
    wrong("feature-is-an-id", "'item_id'", request_features=["item_id"])
    wrong("feature-is-an-id", "'user_id'", user_features=["user_id"], users=people)
    wrong("feature-is-the-time", "hour, weekday, gap", request_features=["timestamp"])
    wrong("repeated-field", "'rating'", event_features=["rating"], request_features=["rating"])
    wrong("unknown-kind-of-feature", "sequence", event_features=[{"kind": "sequence", "name": "tags"}])
    wrong("unknown-categorical-field", "'tgas'", event_features=[{"kind": "bag", "name": "places", "shares": "tgas"}])
    wrong("unreadable-numbers", "'device'", event_features=[{"kind": "numeric", "name": "device"}])
    wrong("not-whole-numbers", "'dwell'", event_features=[{"kind": "categorical", "name": "dwell"}])
    wrong("setting-without-effect", "separator", event_features=[{"kind": "bag", "name": "places", "separator": "|"}])
    wrong("given-twice", "features.event", event_features=["rating"], set=["features.event=[price]"])
    with refused("unreadable-numbers", "'device'"):
        fr.prepare(table, tmp_path / "out", parts=2, event_features=[{"kind": "numeric", "name": "device"}])


def test_a_bag_may_share_a_vocabulary(table: pl.DataFrame, tmp_path: Path) -> None:
    bag = {"kind": "bag", "name": "places", "shares": "shop", "extends": True}
    store = fr.prepare(table, tmp_path / "store", event_features=["shop", bag], parts=2)
    assert store.features is not None
    shop, places = store.features.fields
    assert places.shares == "shop" and shop.size == places.size == 50 + 2


@pytest.mark.parametrize("parts", [None, 9])
def test_columns_that_know_nothing_and_parts_without_users(parts: int | None, tmp_path: Path) -> None:
    few = pl.DataFrame({
        "user_id": [*"aaaabbbccc"], "item_id": [1, 2, 3, 4, 1, 2, 3, 2, 3, 4], "timestamp": range(10),
        "number": pl.Series([None] * 10, dtype=pl.Float64), "empty": [""] * 10, "lists": [[]] * 10, "null": [None] * 10,
        "large": pl.Series([2**64 - 1] + [3] * 9, dtype=pl.UInt64), "truth": [True, False] * 5,
    })  # fmt: skip
    users = pl.DataFrame({"user_id": ["a", "x"], "score": [1.5, 2.5]})
    names = few.columns[3:]
    store = fr.prepare(few, tmp_path / "s", users=users, parts=parts, event_features=names, user_features=["score"])
    assert store.features is not None and store.event_features is not None and store.user_features is not None
    assert [one.size for one in store.features.fields] == [0, 2, 2, 2, 4, 4, 0]
    events = store.event_features.take(np.arange(10))
    assert (
        np.isnan(events.numeric).all() and (events.categorical[:, :2] == 0).all() and not events.bags[0].lengths.any()
    )
    known = store.user_features.take(store.rows_of(pl.Series(["a", "b", "x"])))
    assert known.numeric[0, 0] == 0 and np.isnan(known.numeric[1:]).all()
    assert store.users["score"].null_count() == 2


@pytest.fixture
def store(table: pl.DataFrame, people: pl.DataFrame, tmp_path: Path) -> fr.Store:
    return fr.prepare(table, tmp_path / "store", users=people, **FEATURES)


def test_a_share_of_the_users_keeps_the_encoder(store: fr.Store, tmp_path: Path) -> None:
    some = fr.subset(store, tmp_path / "some", share=0.4, hide_items=0.2)
    assert some.features is not None and same_encoding(some.features, store.features)
    assert store.times is not None and some.times is not None
    place = {key: at for at, key in enumerate(zip(store.user_ids.gather(store.events.items.row_of()).to_list(),
                                                  np.asarray(store.times).tolist(), strict=True))}  # fmt: skip
    users = some.user_ids.gather(some.events.items.row_of()).to_list()
    rows = np.array([place[key] for key in zip(users, np.asarray(some.times).tolist(), strict=True)])
    for role in ("event_features", "request_features"):
        same(getattr(some, role).take(np.arange(some.num_events)), getattr(store, role).take(rows))
    assert some.user_features is not None and store.user_features is not None
    same(some.user_features.take(np.arange(some.num_users)), store.user_features.take(store.rows_of(some.user_ids)))


def test_joined_stores_have_none(store: fr.Store, table: pl.DataFrame, tmp_path: Path) -> None:
    both = fr.join_stores([store, fr.prepare(table, tmp_path / "plain")], tmp_path / "both")
    assert both.features is None and "store: with features, which are left out" in str(both.manifest["notes"])


def test_a_run_keeps_the_encoder_and_so_does_what_grows_from_it(store: fr.Store, tmp_path: Path) -> None:
    run = fr.train("popularity", store, tmp_path / "run", device="cpu", progress=False)
    assert run.manifest["format_version"] == 5 and {"features.json", "vocabulary.parquet"} <= set(run.manifest["files"])
    assert same_encoding(run.catalog.features, store.features) and fr.verify(run.path).ok
    assert same_encoding(encoder_beside(run.path), store.features)
    new = pl.DataFrame({"item_id": [10_001, 10_002]})
    grown = fr.grow_catalog(run, new, tmp_path / "grown", start="mean")
    assert same_encoding(grown.catalog.features, store.features) and grown.catalog.size == run.catalog.size + 2
    (run.path / "vocabulary.parquet").write_bytes((run.path / "items.parquet").read_bytes())
    with refused("file-damaged", "vocabulary.parquet"):
        fr.Run.open(reseal(run.path, sizes=True)).catalog.features  # noqa: B018
    with refused("file-damaged", "vocabulary.parquet"):
        fr.Run.open(rewrite(run.path, {"files": {"vocabulary.parquet": {"sha256": "0"}}})).catalog  # noqa: B018


def test_a_run_without_features_has_the_format_it_had(table: pl.DataFrame, tmp_path: Path) -> None:
    store = fr.prepare(table, tmp_path / "plain")
    write_run(tmp_path / "run", fr.recipe("popularity"), store.catalog, {"parameters": 0, "data": {
        "path": "x", "split_fingerprint": store.fingerprint}})  # fmt: skip
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["format_version"] == 3
    assert not (tmp_path / "run" / "features.json").exists()


def test_later_events_name_what_nobody_knows(store: fr.Store, table: pl.DataFrame, tmp_path: Path) -> None:
    assert store.features is not None
    later = table.with_columns(timestamp=pl.col("timestamp") + 10**6)
    features = store.features.schema
    plain = fr.prepare(table, tmp_path / "plain")
    for earlier, lacking in ((plain, [one.name for one in features.of_events]), (table.drop("device"), ["device"])):
        facts = later_events(later, store.catalog, earlier).facts
        assert facts["missing_in_history"] == lacking and "missing_features" not in facts
        assert facts["missing_of_users"] == [one.name for one in features.user]


def test_later_events_carry_features(store: fr.Store, table: pl.DataFrame, people: pl.DataFrame) -> None:
    later = table.with_columns(timestamp=pl.col("timestamp") + 10**6).filter(pl.col("user_id") != "user 1ä")
    for earlier in (store, table):
        found = later_events(later.drop("device"), store.catalog, earlier, trained=store)
        assert found.facts["missing_features"] == ["device"]
        asked = found.eval_set("test").histories.features
        assert asked is not None and asked.event is not None and asked.user is not None and asked.asked is not None
        assert store.features is not None and asked.asked_at is not None and found.times is not None
        everything = pl.concat([table, later.with_columns(device=pl.lit(""))]).to_dicts()
        raw = {(row["user_id"], row["timestamp"]): row for row in everything}
        owner = found.user_ids.gather(Jagged.from_offsets(found.items, found.offsets).row_of()).to_list()
        rows = [raw[key] for key in zip(owner, found.times.tolist(), strict=True)]
        frame = pl.DataFrame(rows, schema=table.schema)
        twin = encoder_of(store.features, "event").encode(frame, "x")
        same(asked.event.take(np.arange(len(rows))), twin)
        places = asked.asked.rows
        requests = encoder_of(store.features, "request").encode(frame, "x")
        same(asked.asked.take(np.arange(3)).table.take(places[:3]), FeatureTable.of(requests).take(places[:3]))
        assert (
            np.array_equal(asked.asked_at, found.times[places])
            and (asked.asked.table.take(places).categorical[:, 0] == 0).all()
        )
        assert store.user_features is not None
        same(asked.user.table.take(asked.user.rows), store.user_features.take(store.rows_of(found.user_ids)))


def test_a_store_with_other_features_is_no_earlier_one(store: fr.Store, table: pl.DataFrame, tmp_path: Path) -> None:
    other = fr.prepare(table.head(2000), tmp_path / "other", event_features=["rating"])
    with refused("other-features", "other"):
        later_events(table, store.catalog, other)


WRONG: dict[str, tuple[Any, str, str]] = {
    "a kind to be found": ({"schema": {"event": [{"kind": "auto", "name": "rating"}]}}, "file-damaged", "has no kind"),
    "no schema": ({"schema": 3}, "file-damaged", "manifest.json"),
    "no statistics": ({"fitted": 3}, "file-damaged", "'fitted'"),
    "a statistic": ({"fitted": {"dwell": {"mean": "x", "scale": 1.0}}}, "file-damaged", "'dwell'"),
    "other fields": ({"schema": {"event": ["x"]}}, "file-damaged", "manifest.json"),
    "fewer fields": ({"schema": {"event": [{"kind": "categorical", "name": "rating"}]}}, "file-damaged",
                     "vocabulary.parquet"),
    "too many ids": ({"schema": {"request": [{"kind": "categorical", "name": "device", "hash_buckets": 2**31 - 1}]}},
                     "file-damaged", ""),
}  # fmt: skip


@pytest.mark.parametrize("changes, code, name", WRONG.values(), ids=WRONG.keys())
def test_a_hostile_manifest(store: fr.Store, changes: dict, code: str, name: str) -> None:
    with refused(code, name):
        fr.Store.open(rewrite(store.path, {"features": changes}))


def _array(name: str, change: Any) -> Any:
    def write(folder: Path) -> None:
        array = np.load(folder / name)
        np.save(folder / name, change(array) if callable(change) else change)

    return name, write


def _table(name: str, change: Any) -> Any:
    return name, lambda folder: change(pl.read_parquet(folder / name)).write_parquet(folder / name)


def _with(array: np.ndarray, value: Any) -> np.ndarray:
    array[5, 0] = value
    return array


DAMAGE: dict[str, tuple[str, Any]] = {
    "an id too large": _array("event_categorical.npy", lambda a: _with(a, 7)),
    "a negative id": _array("request_categorical.npy", lambda a: _with(a, -1)),
    "an infinite number": _array("event_numeric.npy", lambda a: _with(a, np.inf)),
    "a list too many": _array("request_lists.npy", lambda a: _with(a, 10**6)),
    "another width": _array("event_lists.npy", lambda a: a[:, :1].copy()),
    "another dtype": _array("event_numeric.npy", lambda a: a.astype(np.float64)),
    "a list of unknown ids": _table("lists.parquet", lambda t: t.with_columns(ids=pl.lit([999], pl.List(pl.Int32)))),
    "a negative list": _table("lists.parquet", lambda t: t.with_columns(list=-pl.col("list"))),
    "an empty list": _table("lists.parquet", lambda t: t.with_columns(ids=pl.lit([], pl.List(pl.Int32)))),
    "a null list": _table("lists.parquet", lambda t: t.with_columns(ids=pl.lit(None, pl.List(pl.Int32)))),
    "no lists": _table("lists.parquet", lambda t: t.drop("ids")),
    "a value twice": _table("vocabulary.parquet", lambda t: pl.concat([t, t])),
    "a value of another field": _table("vocabulary.parquet", lambda t: t.with_columns(field=pl.lit("x"))),
    "fewer values": _table("vocabulary.parquet", lambda t: t.filter(pl.col("field") != "query")),
}


@pytest.mark.parametrize("name, damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_hostile_file(store: fr.Store, name: str, damage: Any) -> None:
    damage(store.path)
    about = "lists.parquet" if damage is DAMAGE["fewer values"][1] else name.partition(".")[0]
    with refused("file-damaged", about):
        fr.Store.open(reseal(store.path, sizes=True))


def test_files_that_are_not_listed(store: fr.Store, tmp_path: Path) -> None:
    for name in ("event_categorical.npy", "lists.parquet", "vocabulary.parquet"):
        folder = Path(shutil.copytree(store.path, tmp_path / f"without {name}"))
        with refused("manifest-incomplete", name):
            fr.Store.open(rewrite(folder, {"files": {name: None}}))
    folder = Path(shutil.copytree(store.path, tmp_path / "no key"))
    with refused("foreign-files"):
        fr.Store.open(rewrite(folder, {"features": None}))


def test_parts_of_other_features(table: pl.DataFrame, people: pl.DataFrame, tmp_path: Path) -> None:
    store = fr.prepare(table, tmp_path / "store", users=people, parts=2, **FEATURES)
    assert isinstance(store.event_features.categorical, PartedArray)  # type: ignore[union-attr]
    rewrite(store.path / "part-00001", {"features": {"fitted": {"dwell": {"mean": 0.5, "scale": 1.0}}}})
    with refused("file-damaged", "part-00001", "its features are not those of the whole store"):
        fr.Store.open(store.path)


@pytest.mark.process
def test_a_killed_preparation_goes_on(
    table: pl.DataFrame, people: pl.DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, known, out = tmp_path / "events.parquet", tmp_path / "users.parquet", tmp_path / "store"
    table.write_parquet(path)
    people.write_parquet(known)
    how = {"users": str(known), "parts": 4, **FEATURES}
    for left in (0, 2):
        killed(path, out, left, **how)
    with caplog.at_level("INFO"):
        store = fr.prepare(path, out, progress=True, **how)
    assert "go on with what was read before" in caplog.text
    same_features(fr.prepare(path, tmp_path / "whole", users=known, **FEATURES), store)
    killed(path, tmp_path / "store 2", 2, **how)
    people.with_columns(age=pl.col("age") + 1).write_parquet(known)
    other = fr.prepare(path, tmp_path / "store 2", **how)
    same_features(fr.prepare(path, tmp_path / "whole 2", users=known, **FEATURES), other)


def test_an_encoder_is_restored_to_the_bit(store: fr.Store) -> None:
    again = fr.Store.open(store.path)
    assert again.features is not None and store.features is not None
    assert encoder_state(again.features) == encoder_state(store.features) == store.manifest["features"]
    assert again.features.schema == Features.parse(store.manifest["features"]["schema"])
    with pytest.raises(UserError, match="has no kind"):
        Features(event=("x",)).declared  # type: ignore[arg-type]  # noqa: B018


def test_movielens(real_data: Any, tmp_path: Path) -> None:
    folder = real_data("ml-1m")
    asked: dict[str, Any] = {"event_features": ["rating"], "user_features": ["gender", "age", "occupation"]}
    given = {"users": folder / "users.parquet", "items": folder / "movies.parquet"}
    store = fr.prepare(folder / "ratings.parquet", tmp_path / "store", **given, **asked)
    assert store.features is not None and store.event_features is not None and store.user_features is not None
    assert [(one.name, one.kind, one.size) for one in store.features.fields] == [
        ("rating", "categorical", 5 + 2), ("gender", "categorical", 2 + 2), ("age", "categorical", 7 + 2),
        ("occupation", "categorical", 21 + 2),
    ]  # fmt: skip
    ids = np.asarray(store.event_features.categorical[:, 0])
    stars = vocabularies(store.features)["rating"]["value"].cast(pl.Int64).to_numpy()[ids - 2]
    raw = pl.read_parquet(folder / "ratings.parquet")["rating"].cast(pl.Int64)
    assert np.array_equal(np.bincount(stars), np.bincount(raw.to_numpy()))
    assert (np.asarray(store.user_features.categorical) >= 2).all()
    parts = fr.prepare(folder / "ratings.parquet", tmp_path / "parts", **given, **asked, parts=3)
    rows = parts.rows_of(store.user_ids)
    assert parts.event_features is not None
    same(by_event(store, store.event_features, np.arange(store.num_users)), by_event(parts, parts.event_features, rows))
