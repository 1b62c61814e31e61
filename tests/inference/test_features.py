"""Features in requests: a table of histories, users of a store and `features=` say the same, and what is wrong is one
sentence."""

import datetime
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import fullrank as fr
from featured import SHOP_BEGAN, SHOP_FEATURES, shop_events, shop_people, shop_predictor
from fullrank.core.errors import UserError
from fullrank.data.events.store import Store
from fullrank.inference.predictor import Predictor
from fullrank.inference.requests import RequestBatch
from refusals import refused
from tests.training.conftest import tiny

ALL = "model.features=auto"
TIMED = "model.features={event: [auto, hour, age], request: [auto, weekday, gap]}"
LISTS = {"k": 8, "seen": "keep"}


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    return shop_events()


@pytest.fixture(scope="module")
def people() -> pl.DataFrame:
    return shop_people()


@pytest.fixture(scope="module")
def store(events: pl.DataFrame, people: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fr.prepare(events, tmp_path_factory.mktemp("rich") / "store", users=people, **SHOP_FEATURES)


def made(store: Store, *settings: str) -> Predictor:
    return shop_predictor(store, tiny(*settings))


@pytest.fixture(scope="module")
def plain(store: Store) -> Predictor:
    return made(store, ALL)


@pytest.fixture(scope="module")
def timed(store: Store) -> Predictor:
    return made(store, TIMED)


@pytest.fixture(autouse=True)
def no_notes() -> Iterator[None]:
    """A note is an error where a test does not expect one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def asked_of(users: list[str], device: str = "phone", **more: Any) -> dict[str, dict[str, Any]]:
    return {user: {"device": device, "price": 12.5, **more} for user in users}


def of_people(people: pl.DataFrame) -> dict[str, dict[str, Any]]:
    return {row.pop("user_id"): row for row in people.to_dicts()}


@pytest.mark.parametrize("kind", ["plain", "timed"])
def test_a_table_and_a_store_say_the_same(
    kind: str, request: pytest.FixtureRequest, store: Store, events: pl.DataFrame, people: pl.DataFrame, tmp_path: Path
) -> None:
    predictor = request.getfixturevalue(kind)
    users = store.user_ids.to_list()
    when = {} if kind == "plain" else {"asked_at": SHOP_BEGAN + 10**7}
    asked, known = asked_of(users, **when), of_people(people)
    told = {user: {**known[user], **asked[user]} for user in users}
    found = predictor.recommend(users=users, data=store, features=asked, **LISTS)
    by_table = predictor.recommend(events, features=told, **LISTS)
    assert found.sort("user", "rank").equals(by_table.sort("user", "rank"))
    rows = pl.DataFrame([{"user_id": user, **one} for user, one in told.items()])
    assert by_table.equals(predictor.recommend(events, features=rows.sample(fraction=1.0, seed=1), **LISTS))
    events.write_parquet(tmp_path / "events.parquet")
    rows.write_ndjson(tmp_path / "people.jsonl")
    files = predictor.recommend(tmp_path / "events.parquet", features=tmp_path / "people.jsonl", **LISTS)
    assert by_table.equals(files)
    pandas = predictor.recommend(events.to_pandas(), features=rows.to_pandas(), **LISTS)
    assert isinstance(pandas, pd.DataFrame) and pandas["item"].tolist() == by_table["item"].to_list()
    listed = [{**known[user], **asked[user]} for user in users]
    assert found.equals(predictor.recommend(users=users, data=store, features=listed, **LISTS))
    other = predictor.recommend(users=users, data=store, features=asked_of(users, "desk", **when), **LISTS)
    assert not found["score"].equals(other["score"]), "the request is read"


def test_what_is_given_stands_over_the_store(plain: Predictor, store: Store, people: pl.DataFrame) -> None:
    users = ["u3", "u4", "u5"]
    asked, known = asked_of(users), of_people(people)
    before = plain.recommend(users=users, data=store, features=asked, **LISTS)
    changed: Any = {"country": "fo" if known["u4"]["country"] != "fo" else "is", "likes": ["sea", "town"], "born": None}
    after = plain.recommend(users=users, data=store, features={**asked, "u4": {**asked["u4"], **changed}}, **LISTS)
    same = [before.filter(user=user).equals(after.filter(user=user)) for user in users]
    assert same == [True, False, True]
    whole = {user: {**known[user], **asked[user]} for user in users} | {"u4": {**asked["u4"], **changed}}
    assert after.equals(plain.recommend(users=users, data=store, features=whole, **LISTS))
    history = plain.request_of(None, users, store, "error", options(), columns(), whole).histories
    assert history.features is not None and history.features.user is not None
    encoded = history.features.user.table.take(np.arange(3))
    assert np.isnan(encoded.numeric[:, 0]).tolist() == [False, True, False]
    assert encoded.bags[0].lengths.tolist() == [len(whole[user]["likes"]) for user in users]


def options() -> Any:
    from fullrank.inference.list_options import ListOptions

    return ListOptions()


def columns() -> Any:
    from fullrank.data.column_names import EventColumns

    return EventColumns()


def test_unknown_items_go_with_their_features(plain: Predictor, events: pl.DataFrame, people: pl.DataFrame) -> None:
    users = events["user_id"].unique().sort().to_list()
    known = of_people(people)
    told = {user: {**known[user], **asked_of([user])[user]} for user in users}
    more = events.sample(100, seed=2).with_columns(item_id=pl.lit(10**6), rating=pl.lit(1), timestamp=SHOP_BEGAN + 5)
    mixed = pl.concat([events, more.cast(events.schema)]).sample(fraction=1.0, shuffle=True, seed=3)
    assert plain.recommend(events, features=told, **LISTS).equals(plain.recommend(mixed, features=told, **LISTS))


def test_score_and_vectors_read_them_too(plain: Predictor, store: Store, events: pl.DataFrame) -> None:
    users = ["u3", "u4"]
    some = events.filter(pl.col("user_id").is_in(users))
    told = {user: {**one, "country": None, "born": 1970, "likes": []} for user, one in asked_of(users).items()}
    lists = plain.recommend(some, features=told, **LISTS)
    scores = plain.score(some, {u: lists.filter(user=u)["item"].to_list() for u in users}, features=told)
    np.testing.assert_allclose(scores["score"], lists["score"], rtol=1e-5)
    names, vectors = plain.user_vectors(some, features=told)
    items = plain.item_vectors()
    best = {user: float((items @ one).max()) for user, one in zip(names, vectors, strict=True)}
    for user in users:
        np.testing.assert_allclose(best[user], lists.filter(user=user)["score"][0], rtol=1e-5)
    assert names.to_list() == users


MOMENT = datetime.datetime(2023, 11, 14, 22, 13, 20)
TIMES: list[Any] = [
    SHOP_BEGAN, float(SHOP_BEGAN), "2023-11-14T22:13:20", "2023-11-14T22:13:20Z", MOMENT, np.int64(SHOP_BEGAN),
    MOMENT.replace(tzinfo=datetime.UTC),
]  # fmt: skip


def test_when_it_is_asked(
    timed: Predictor, store: Store, events: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any form that `prepare` reads, in the unit of the table; now where nobody says."""

    def found(features: Any, **how: Any) -> RequestBatch:
        return timed.request_of(None, ["u3"], store, "error", options(), columns(), features)

    for when in TIMES:
        known = found({"u3": {**asked_of(["u3"])["u3"], "asked_at": when}}).histories.features
        assert known is not None and known.asked_at is not None and known.asked_at.tolist() == [SHOP_BEGAN]
    monkeypatch.setattr("fullrank.inference.features.time.time", lambda: 77.5)
    for given in (asked_of(["u3"]), asked_of(["u3"], asked_at=None)):
        known = found(given).histories.features
        assert known is not None and known.asked_at is not None and known.asked_at.tolist() == [77]
    milli = events.with_columns(timestamp=pl.col("timestamp") * 1000)
    people = {user: {"country": "is", "born": 1, "likes": []} for user in milli["user_id"].unique()}
    told = {user: {**one, **asked_of([user], asked_at=SHOP_BEGAN * 1000)[user]} for user, one in people.items()}
    lists = timed.recommend(milli, features=told, time_unit="ms", **LISTS)
    text = {user: {**one, "asked_at": "2023-11-14T22:13:20"} for user, one in told.items()}
    assert lists.equals(timed.recommend(milli, features=text, time_unit="ms", **LISTS))
    for wrong, code in (("soon", "unreadable-times"), (float("inf"), "unreadable-times"), (10**15, "wrong-time-unit")):
        with pytest.raises(UserError) as caught:
            found({"u3": {**asked_of(["u3"])["u3"], "asked_at": wrong}})
        assert caught.value.code == code or "times" in str(caught.value)


def test_what_is_missing_is_told(plain: Predictor, store: Store, events: pl.DataFrame, people: pl.DataFrame) -> None:
    with pytest.warns(UserWarning, match="rating, dwell, tags, device, price of past events; device, price of the re"):
        nothing = plain.recommend([[3, 4]], **LISTS)
    with pytest.warns(UserWarning, match="missing: device, price of the request .those"):
        plain.recommend(users=["u3"], data=store, **LISTS)
    user = {"country": "is", "born": 1970.0, "likes": ["sea"]}
    with pytest.warns(UserWarning, match="missing: dwell of past events .those"):
        plain.recommend(events.filter(user_id="u3").drop("dwell"), features={"u3": {**user, **asked_of(["u3"])["u3"]}})
    gone = dict.fromkeys(["country", "born", "likes", "device", "price"])
    with pytest.warns(UserWarning, match="missing: rating, dwell, tags, device, price of past events .those"):
        assert nothing.equals(plain.recommend([[3, 4]], features=[gone], **LISTS)), "missing, said or not"
    bare = events.filter(user_id="u3").with_columns(pl.lit(None).alias(n) for n in events.columns[3:])
    told = plain.recommend(bare, features={"u3": gone}, **LISTS)
    with pytest.warns(UserWarning):
        assert told.equals(plain.recommend(bare.select("user_id", "item_id", "timestamp"), **LISTS))


def test_a_model_reads_what_it_is_told_to(store: Store, events: pl.DataFrame) -> None:
    """A column of a feature that it does not read may hold anything."""
    some = made(store, "model.features={event: [rating], request: [], user: [country]}")
    spoiled = events.with_columns(dwell=pl.lit("long"), device=pl.lit([1.5]))
    users = spoiled["user_id"].unique().to_list()
    found = some.recommend(spoiled, features={user: {"country": "is"} for user in users}, **LISTS)
    assert found.equals(some.recommend(events, features={user: {"country": "is"} for user in users}, **LISTS))
    with refused("unknown-feature", "device", "country"):
        some.recommend(events, features={users[0]: {"device": "phone"}})
    with refused("unknown-feature", "asked_at"):
        some.recommend(events, features={users[0]: {"asked_at": 5}})
    with refused("unknown-feature", "rating", "a table of histories with its column"):
        some.recommend(events, features={users[0]: {"rating": 5}})
    alone = made(store, "model.features={event: [rating], request: [], user: []}")
    with refused("setting-without-effect", "features of events alone"):
        alone.recommend(events, features={})
    none = made(store)
    with refused("setting-without-effect", "this model reads none"):
        none.recommend(events, features={})
    assert none.recommend(events, **LISTS).equals(none.recommend(spoiled, **LISTS))


WRONG: list[tuple[Any, str]] = [
    ({"nobody": {}}, "unknown-user"),
    ([{}, {}], "table-has-no-order"),
    (5, "not-features"),
    ("soon", "missing-file"),
    ({"u3": 5}, "not-features"),
    ({"u3": {"countri": "is"}}, "unknown-feature"),
    ({"u3": {5: "is"}}, "unknown-feature"),
    ({"u3": {"born": "long ago"}}, "unreadable-numbers"),
    ({"u3": {"born": float("inf")}}, "unreadable-numbers"),
    ({"u3": {"born": 1e300}}, "numbers-too-large"),
    ({"u3": {"born": {"year": 5}}}, "wrong-column-type"),
    ({"u3": {"country": 1.5}}, "not-whole-numbers"),
    ({"u3": {"country": ["is"]}}, "wrong-column-type"),
    ({"u3": {"country": object()}}, "mixed-features"),
    ({"u3": {"likes": ["sea"]}, "u4": {"likes": "sea"}}, "mixed-features"),
    ({"u3": {"born": 1960}, "u4": {"born": True}}, "mixed-features"),
    ({"u3": {"likes": "sea"}}, "missing-separator"),
    ({"u3": {"likes": 7}}, "wrong-column-type"),
    ({"u3": {"likes": [1.5]}}, "not-whole-numbers"),
    (pl.DataFrame({"user_id": ["u3", "u3"], "country": ["is", "no"]}), "repeated-ids"),
    (pl.DataFrame({"user_id": ["x"], "country": ["is"]}), "no-known-ids"),
    (pl.DataFrame({"user_id": ["u3"], "place": ["is"]}), "unknown-feature"),
    (pl.DataFrame({"user": ["u3"], "country": ["is"]}), "missing-column"),
    (pl.DataFrame({"user_id": [None], "country": ["is"]}), "missing-ids"),
    (pl.DataFrame({"user_id": pl.Series([], dtype=pl.String), "country": []}), "empty-table"),
]


@pytest.mark.parametrize(("features", "code"), WRONG, ids=[f"{n} {code}" for n, (_, code) in enumerate(WRONG)])
def test_what_is_wrong_is_one_sentence(plain: Predictor, events: pl.DataFrame, features: Any, code: str) -> None:
    with refused(code):
        plain.recommend(events, features=features)


def test_wrong_columns_of_a_table_are_refused(plain: Predictor, events: pl.DataFrame, people: pl.DataFrame) -> None:
    wrong = {"dwell": ("long", "unreadable-numbers"), "rating": (1.5, "not-whole-numbers"),
             "tags": (5, "wrong-column-type"), "price": (["x"], "wrong-column-type")}  # fmt: skip
    for name, (value, code) in wrong.items():
        with refused(code, name):
            plain.recommend(events.with_columns(pl.lit(value).alias(name)), features=people)
    with refused("list-count-differs", "1 for 2"):
        plain.recommend([[3], [4]], features=[{}])


def test_another_store(
    plain: Predictor, events: pl.DataFrame, people: pl.DataFrame, store: Store, tmp_path: Path
) -> None:
    """Without features its users are answered with a note; with others it is refused."""
    bare = fr.prepare(events.select("user_id", "item_id", "timestamp"), tmp_path / "bare")
    with pytest.warns(
        UserWarning, match="rating, dwell, tags, device, price of past events; country, born, likes of u"
    ):
        plain.recommend(users=["u3"], data=bare, features=asked_of(["u3"]), **LISTS)
    other = fr.prepare(events.head(300), tmp_path / "other", users=people, **SHOP_FEATURES)
    with refused("other-features"):
        plain.recommend(users=["u3"], data=other)
    again = fr.prepare(events, tmp_path / "again", users=people, parts=3, **SHOP_FEATURES)
    asked = asked_of(["u3", "u7"])
    found = plain.recommend(users=["u3", "u7"], data=again, features=asked, **LISTS)
    assert found.equals(plain.recommend(users=["u3", "u7"], data=store, features=asked, **LISTS))
    unknown = plain.recommend(
        users=["u3", "new"], data=store, unknown_users="popular", features=asked_of(["u3", "new"]), **LISTS
    )
    assert unknown["source"].to_list() == ["model"] * 8 + ["popular"] * 8


def test_random_requests_are_answered_or_refused(timed: Predictor, store: Store, events: pl.DataFrame) -> None:
    """200 of them, with values that are unknown, missing, or of a wrong type."""
    draw = np.random.default_rng(9)
    odd: list[Any] = [
        None, "is", "zz", "", 7, -1.5, float("nan"), float("inf"), True, [], ["sea", "x"], [None], {}, (), b"x",
        "2024-01-01", 10**30, object(), [[1]], datetime.date(2020, 1, 1), "phone", 1980,
    ]  # fmt: skip
    names = ["country", "born", "likes", "device", "price", "asked_at", "rating", "nothing"]
    answered = 0
    for _ in range(200):
        users = draw.choice(store.user_ids.to_list(), draw.integers(1, 4), replace=False).tolist()
        features: Any = {
            user: {
                str(name): odd[draw.integers(len(odd))] if draw.random() < 0.3 else
                {"country": "no", "born": 1970, "likes": ["sea"], "device": "desk", "price": 3.5}.get(str(name))
                for name in draw.choice(names[: 6 if draw.random() < 0.9 else 8], draw.integers(0, 5), replace=False)
            }
            for user in users
        }  # fmt: skip
        table = events.filter(pl.col("user_id").is_in(users))
        if draw.random() < 0.5:
            table = table.drop(draw.choice(events.columns[3:], draw.integers(0, 4), replace=False).tolist())
        ways: list[dict[str, Any]] = [{"users": users, "data": store}, {"histories": table}]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                found = timed.recommend(**ways[draw.integers(2)], features=features, **LISTS)
            except UserError as error:
                assert "\n" not in str(error) and len(str(error)) < 1000
                continue
        answered += 1
        assert found["user"].n_unique() == len(users) and found["score"].is_finite().all()
    assert 60 < answered < 190


@pytest.fixture(scope="module")
def run(store: Store, tmp_path_factory: pytest.TempPathFactory) -> fr.Run:
    spec = tiny(TIMED, "training.max_epochs=1")
    return fr.train(spec, store, tmp_path_factory.mktemp("runs") / "run", progress=False)


def in_parts(run: fr.Run, out: Path, *histories: Any, **how: Any) -> pl.DataFrame:
    with pytest.warns(UserWarning, match="of the request"):
        lists = fr.recommend_parts(run, out, *histories, **LISTS, **how)
    return pl.concat(map(pl.read_parquet, lists.files)).sort("user", "rank")


def test_lists_in_parts_read_them_too(
    run: fr.Run, store: Store, events: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a store and of a table, whatever the parts; a call that goes on asks at the time of the first one."""
    monkeypatch.setattr("fullrank.api.time.time", lambda: float(SHOP_BEGAN + 10**7))
    users = store.user_ids.sort().to_list()
    when = {user: {"asked_at": SHOP_BEGAN + 10**7} for user in users}
    with pytest.warns(UserWarning, match="device, price of the request .those"):
        expected = fr.recommend(run, users=users, features=when, **LISTS).sort("user", "rank")

    def same(found: pl.DataFrame, told: pl.DataFrame) -> None:
        assert found.select("user", "item").equals(told.select("user", "item"))
        np.testing.assert_allclose(found["score"], told["score"], rtol=1e-5)

    for count in (1, 3):
        same(in_parts(run, tmp_path / f"store {count}", parts=count), expected)
    with pytest.warns(UserWarning, match="country, born, likes of users"):
        alone = fr.recommend(run, events, features=when, **LISTS).sort("user", "rank")
    path = tmp_path / "events.parquet"
    events.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(path)
    monkeypatch.setattr("fullrank.data.frames.CHUNK", 90)
    for count in (1, 3):
        same(in_parts(run, tmp_path / f"table {count}", path, parts=count), alone)
    out = tmp_path / "table 3"
    (out / "lists" / "part-00001.parquet").unlink()
    monkeypatch.setattr("fullrank.api.time.time", lambda: 5.0)
    same(in_parts(run, out, path, parts=3), alone)
    spoiled = events.with_columns(dwell=pl.lit("long"))
    with pytest.warns(UserWarning), refused("unreadable-numbers", "dwell"):
        fr.recommend_parts(run, tmp_path / "spoiled", spoiled)
    bare = events.select("user_id", "item_id", "timestamp")
    with pytest.warns(UserWarning, match="rating, dwell, tags, device, price of past events; device, price of the req"):
        fr.recommend_parts(run, tmp_path / "bare", bare)
    other = fr.prepare(bare.head(300), tmp_path / "other")
    with pytest.warns(UserWarning, match="rating, dwell"):
        fr.recommend_parts(run, tmp_path / "bare store", data=other)


def test_lists_in_parts_are_told_of_users_and_requests(
    run: fr.Run, store: Store, events: pl.DataFrame, people: pl.DataFrame, tmp_path: Path
) -> None:
    """By a table, of whose users each part reads its own: the lists of one call, of a store and of a table."""
    users, draw = store.user_ids.sort().to_list(), np.random.default_rng(4)
    count = len(people)
    told = people.with_columns(
        device=pl.Series(draw.choice(["phone", "desk", "new"], count)), price=pl.Series(draw.gamma(2.0, 10.0, count)),
        asked_at=SHOP_BEGAN + 10**7 + pl.Series(draw.integers(0, 10**6, count)), other=pl.lit(1),
    ).sample(fraction=1.0, shuffle=True, seed=3)  # fmt: skip
    strangers = told.with_columns(user_id="x" + pl.col("user_id"))
    path = tmp_path / "people.parquet"
    pl.concat([told, strangers]).write_parquet(path)
    events.write_parquet(tmp_path / "events.parquet")
    expected = {
        "store": fr.recommend(run, users=users, data=store, features=told, **LISTS),
        "table": fr.recommend(run, events, features=told, **LISTS),
    }

    def in_parts(out: str, *histories: Any, **how: Any) -> tuple[Any, pl.DataFrame]:
        made = fr.recommend_parts(run, tmp_path / out, *histories, **LISTS, **how)
        return made, pl.concat(map(pl.read_parquet, made.files)).sort("user", "rank")

    for name, histories in {"store": (), "table": (tmp_path / "events.parquet",)}.items():
        whole = expected[name].sort("user", "rank")
        for parts, given in ((1, told), (3, path)):
            made, found = in_parts(f"{name} {parts}", *histories, features=given, parts=parts)
            assert found.select("user", "item").equals(whole.select("user", "item")), name
            np.testing.assert_allclose(found["score"], whole["score"], rtol=1e-5)
            assert not (made.path / "histories").exists()
        made.files[1].unlink()
        again, other = in_parts(f"{name} 3", *histories, features=path, parts=3)
        assert again.resumed == 2 and other.equals(found)
        few = told.filter(pl.col("user_id").is_in(["u3", "u4"]))
        few.write_parquet(tmp_path / "few.parquet")
        with refused("other-lists-there", "features="):
            in_parts(f"{name} 3", *histories, features=tmp_path / "few.parquet", parts=3)
        _, some = in_parts(f"{name} few", *histories, features=few, parts=3)
        same = [some.filter(user=user).equals(found.filter(user=user)) for user in ("u3", "u5")]
        assert same == [True, False], "others' requests are missing"
    wrong = {
        "no-known-ids": told.with_columns(user_id=pl.Series(np.arange(count))), "repeated-ids": pl.concat([told, told]),
        "unknown-feature": told.select("user_id", "other"), "not-features": {"u3": {}}, "empty-table": told.clear(),
        "unreadable-numbers": told.with_columns(born=pl.lit("long ago")), "unknown-suffix": tmp_path / "people.csv",
    }  # fmt: skip
    told.drop("likes").write_csv(wrong["unknown-suffix"])
    for code, given in wrong.items():
        with refused(code):
            in_parts("wrong", features=given, overwrite=True)
