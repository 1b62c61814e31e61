"""A ranker behind the service: candidates in its order, with every filter, context and features of users."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.run import Run
from fullrank.serving.client import Client
from fullrank.serving.model import ServedModel
from fullrank.serving.settings import ServeSettings
from fullrank.serving.version_checks import CanarySettings, check_model
from refusals import refused
from serving.conftest import HISTORY, Shop
from serving.running import items_of, running, scores_of
from serving.served import here


@pytest.fixture(scope="module")
def ranker(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A logistic regression on item, category and hour: soap is clicked in the morning, and no cream is."""
    place, draw = tmp_path_factory.mktemp("ranker"), np.random.default_rng(0)
    catalog = shop.run.catalog.frame
    rows = draw.integers(0, len(catalog), 4000)
    hours = draw.integers(0, 24, 4000)
    category = catalog["category"].gather(rows).to_numpy()
    chance = np.where(category == "cream", 0.02, np.where((category == "soap") & (hours < 12), 0.9, 0.4))
    frame = pl.DataFrame({
        "user_id": [f"u{n}" for n in draw.integers(0, 50, 4000)], "item_id": catalog["item_id"].gather(rows),
        "category": category, "morning": np.where(hours < 12, "yes", "no"), "label": (draw.random(4000) < chance) * 1,
    })  # fmt: skip
    store = fr.prepare_impressions(
        frame, place / "clicks", schema={"fields": ["item_id", "category", "morning"], "group": "user_id"}
    )
    fr.train("lr", store, place / "lr", set=["training.max_epochs=6", "training.lr=0.1"])
    return place / "lr"


@pytest.fixture(scope="module")
def ranked(shop: Shop, ranker: Path) -> Iterator:
    with running(run=str(shop.run.path), ranker=str(ranker), candidates=60) as client:
        yield client


def test_the_order_is_the_cascade_s(ranked: Client, shop: Shop, ranker: Path) -> None:
    cascade = fr.Cascade(shop.run, ranker, user="user_id", item="item_id", users=pl.DataFrame({"user_id": ["u1"]}))
    own = cascade.recommend([HISTORY], k=9, candidates=60, context={"morning": "yes"})
    answer = ranked.recommend(history=HISTORY, k=9, context={"morning": "yes"})
    assert answer["ranked"] and items_of(answer) == own["item"].to_list()
    assert scores_of(answer) == pytest.approx(own["score"].to_list(), abs=1e-5)


def test_a_new_version_is_checked_with_its_ranker(shop: Shop, ranker: Path) -> None:
    settings = ServeSettings.parse({"run": str(shop.run.path), "ranker": str(ranker), "candidates": 60})
    new, active = (ServedModel.open(shop.run.path, settings, {}) for _ in ("new", "active"))
    checks = {check.name: check for check in check_model(new, active, [], CanarySettings(k=5), here)}
    assert all(check.ok for check in checks.values()) and "answers" in checks, checks
    assert set(active.ranker_fields) == {"item_id", "category"} and checks["ranker fields"].ok


def test_filters_hold_behind_the_ranker(ranked: Client) -> None:
    for history in (HISTORY, []):
        answer = ranked.recommend(
            history=history, k=20, filters={"in_stock": True}, exclude=["i1", "i2", "i3"], context={"morning": "no"}
        )
        shown = items_of(answer)
        assert answer["ranked"] and len(shown) == 20, "full while enough items remain"
        assert not set(shown) & {"i1", "i2", "i3", *history}
        assert all(ranked.call("GET", f"/v1/items/{item}")["columns"]["in_stock"] for item in shown)
    assert len(ranked.recommend(history=HISTORY, k=100)["items"]) == 100, "longer than the candidates"


def test_context_and_features_reach_the_ranker(ranked: Client) -> None:
    def scores(**more: object) -> list:
        return scores_of(ranked.recommend(history=HISTORY, k=10, **more))

    morning, evening = scores(context={"morning": "yes"}), scores(context={"morning": "no"})
    assert all(one > other for one, other in zip(morning, evening, strict=True))
    ranked.put_user("early", {"morning": "yes"})
    assert scores(user="early") == pytest.approx(morning) and scores(user="late") != pytest.approx(morning)
    assert scores(user="early", context={"morning": "no"}) == pytest.approx(evening), "the request knows better"
    assert not ranked.recommend(history=HISTORY, k=3, ranker=False)["ranked"]
    for wrong in ({"context": {"mornin": "yes"}}, {"context": {"category": "soap"}}):
        with refused("unknown-context-field"):
            ranked.recommend(history=HISTORY, k=3, **wrong)


def test_new_items_and_columns_reach_the_ranker(ranked: Client) -> None:
    def listed(k: int = 1) -> list:
        return items_of(ranked.recommend(history=HISTORY, k=k, context={"morning": "yes"}))

    (first,) = listed()
    ranked.put_items([{"id": first, "features": {"category": "cream"}}])
    assert listed() != [first]
    near = items_of(ranked.recommend(history=HISTORY, k=1, ranker=False))
    ranked.put_items([{"id": "dear", "like": near, "features": {"category": "soap"}}])
    assert "dear" in listed(100)


@pytest.fixture(scope="module")
def attending(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ranker with target attention over the items and categories of what was bought before."""
    place, draw, catalog = tmp_path_factory.mktemp("din"), np.random.default_rng(0), shop.run.catalog.frame
    known = dict(catalog.select("item_id", "category").iter_rows())
    rows = draw.integers(0, len(catalog), 1500)
    before = [[catalog["item_id"][int(i)] for i in draw.integers(0, len(catalog), draw.integers(0, 5))] for _ in rows]
    frame = pl.DataFrame({
        "user_id": [f"u{n}" for n in draw.integers(0, 50, 1500)], "item_id": catalog["item_id"].gather(rows),
        "category": catalog["category"].gather(rows), "history": before,
        "categories": [[known[item] for item in items] for items in before], "label": draw.integers(0, 2, 1500),
    })  # fmt: skip
    fields = [
        "item_id", "category", {"kind": "sequence", "name": "history", "shares": "item_id"},
        {"kind": "sequence", "name": "categories", "shares": "category"},
    ]  # fmt: skip
    store = fr.prepare_impressions(frame, place / "clicks", schema={"fields": fields, "group": "user_id"})
    settings = ["training.max_epochs=1", "model.embedding.std=0.3", "model.sequences.together=[[history,categories]]"]
    fr.train("din", store, place / "din", set=settings)
    return place / "din"


def test_the_history_reaches_a_ranker_with_sequences(shop: Shop, attending: Path) -> None:
    cascade = fr.Cascade(shop.run, attending, user="user_id", item="item_id")
    own = [cascade.recommend([history], k=9, candidates=60) for history in (HISTORY, HISTORY[:1])]
    assert not np.allclose(np.sort(own[0]["score"]), np.sort(own[1]["score"]))
    with running(run=str(shop.run.path), ranker=str(attending), candidates=60) as client:
        for history, expected in zip((HISTORY, HISTORY[:1]), own, strict=True):
            answer = client.recommend(history=history, k=9)
            assert items_of(answer) == expected["item"].to_list()
            assert scores_of(answer) == pytest.approx(expected["score"].to_list(), abs=1e-5)
        context = {"history": HISTORY, "categories": ["soap", "oil", "mask"]}
        other = client.recommend(history=HISTORY[:1], k=9, context=context)
        assert scores_of(other) != pytest.approx(scores_of(answer))
        with refused("lengths-differ"):
            client.recommend(history=HISTORY[:1], k=9, context={"history": HISTORY})
        assert client.recommend(history=[], k=9)["ranked"], "no history is the missing event"


SEQUENCES = {"shares": "item_id", "max_length": 6}, {"max_length": 6, "keep_missing": True}


@pytest.fixture(scope="module", params=["ids", "ratings", "apart"])
def rated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, pl.DataFrame]:
    """A retriever of ids alone, or of ratings too, in the last 4 events; a ranker of the last 6 rated events, or of
    8 items and, apart from them, the last 3 ratings that are known."""
    place, draw = tmp_path_factory.mktemp("rated"), np.random.default_rng(0)
    table = pl.DataFrame({
        "user_id": np.repeat(np.arange(60), 9), "item_id": draw.integers(0, 30, 540), "timestamp": np.arange(540),
        "rating": pl.Series(draw.integers(0, 6, 540)).replace(0, None),
    })  # fmt: skip
    store = fr.prepare(table, place / "store", event_features=["rating"])
    settings = ["model.dim=8", "model.max_length=4", "training.max_epochs=1"]
    settings += ["model.features=auto"] if request.param != "ids" else []
    fr.train("sasrec", store, place / "sasrec", set=settings, device="cpu", progress=False)
    seen = table.group_by("user_id", maintain_order=True).agg(history="item_id", rating="rating")
    clicks = seen.with_columns(item_id=draw.integers(0, 30, 60), label=draw.integers(0, 2, 60))
    apart = request.param == "apart"
    items, ratings = ({"shares": "item_id", "max_length": 8}, {"max_length": 3}) if apart else SEQUENCES
    fields = ["item_id", {"kind": "sequence", "name": "history", **items},
              {"kind": "sequence", "name": "rating", **ratings}]  # fmt: skip
    shown = fr.prepare_impressions(clicks, place / "clicks", schema={"fields": fields, "group": "user_id"})
    together = ["model.sequences.together=[[history,rating]]"] if not apart else []
    fr.train("din", shown, place / "din", progress=False, set=[
        "training.max_epochs=1", "model.embedding.std=0.5", *together])  # fmt: skip
    return place / "sasrec", place / "din", table


def test_what_is_known_of_events_reaches_a_ranker(rated: tuple[Path, Path, pl.DataFrame]) -> None:
    """From a request and from the store of events, as the cascade reads it of a table; the page has it as a field."""
    run, ranker, table = rated
    own = table.filter(pl.col("user_id") == 7).drop("user_id")
    how = {"k": 9, "candidates": 30, "seen": "keep"}
    wanted = fr.Cascade(run, ranker, user="user_id", item="item_id").recommend(own.with_columns(user_id=7), **how)
    with running(run=str(run), ranker=str(ranker), candidates=30) as client:
        rows = own.iter_rows(named=True)
        events = [{"item": r["item_id"], "time": r["timestamp"], "features": {"rating": r["rating"]}} for r in rows]
        client.add_events([{"user": "7", **event} for event in events])
        asked = {"k": 9, "seen": "keep"}
        for answer in (client.recommend(history=events, **asked), client.recommend(user="7", **asked)):
            assert answer["ranked"] and items_of(answer) == wanted["item"].to_list()
            assert scores_of(answer) == pytest.approx(wanted["score"].to_list(), abs=1e-5)
        plain = client.recommend(history=own["item_id"].to_list(), k=9, seen="keep")
        unranked = client.recommend(history=own["item_id"].to_list(), k=9, seen="keep", ranker=False)
        of_retriever = Run.open(run).model().reads_features or {}
        assert unranked.get("not_given", []) == [*of_retriever.get("event", ())], "what the ranker alone reads"
        assert plain["not_given"] == ["rating"] and scores_of(plain) != pytest.approx(wanted["score"].to_list())
        assert [one["name"] for one in client.call("GET", "/v1/model")["features"]["event"]] == ["rating"]
        assert "rating" in client.call("GET", "/openapi.json")["components"]["schemas"]["EventFeatures"]["properties"]
        with refused("invalid-request", "colour", "rating"):
            client.recommend(history=[{"item": 1, "features": {"colour": 1}}])
