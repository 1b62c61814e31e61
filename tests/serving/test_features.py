"""A service of a run that reads features answers as its predictor does, whichever way features come; what is wrong with
them is told."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from featured import SHOP_BEGAN, SHOP_FEATURES, shop_events, shop_people
from fullrank.inference.batches import score_batches
from fullrank.inference.predictor import Predictor
from fullrank.run import Run, write_copy
from fullrank.serving.card import sample_histories
from fullrank.serving.client import Client
from fullrank.serving.messages import EventsRequest, RecommendRequest, UserRequest
from fullrank.serving.model import ServedModel, request_history
from fullrank.serving.rows import RowMistakes
from fullrank.serving.searching import MEASURED, _users
from fullrank.serving.service import Service
from fullrank.serving.settings import ServeSettings
from fullrank.serving.version_checks import Canary, ask_all
from refusals import refused
from serving.running import items_of, running, scores_of
from serving.served import here

OF_EVENT, OF_ASKED = ("rating", "dwell", "tags", "device", "price"), ("device", "price", "country", "born", "likes")
READS = "model.features={event: [auto, hour, age], request: [auto, weekday, gap]}"
TINY = ["model.dim=16", "model.encoder.layers=1", "training.max_epochs=1", "model.max_length=8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose features weigh as much as its items."""
    place = tmp_path_factory.mktemp("featured")
    store = fr.prepare(shop_events(), place / "store", users=shop_people(), **SHOP_FEATURES)
    plain = fr.train("sasrec", store, place / "first", set=[*TINY, READS], device="cpu", progress=False)
    tensors = {name: one * 20 if "features" in name else one for name, one in plain.tensors().items()}
    write_copy(plain, place / "runs" / "shop", plain.catalog, tensors, {})
    return Run.open(place / "runs" / "shop")


@pytest.fixture(scope="module")
def predictor(run: Run) -> Predictor:
    return fr.load(run, device="cpu")


@pytest.fixture(scope="module")
def service(run: Run) -> Iterator[Client]:
    with running(run=str(run.path)) as client:
        yield client


def some(draw: np.random.Generator, names: tuple[str, ...]) -> dict[str, Any]:
    """Values that training saw, others, and what is missing."""
    values = {
        "rating": [1, "3", 5, 99, None], "dwell": [0, 3.5, 80.25, None, True], "tags": [["a"], [], ["z", "b"], None],
        "device": ["phone", "desk", "", "car", None], "price": [1, 9.5, 1e6, None], "country": ["is", "no", "xx", None],
        "born": [1950, 1988.0, None], "likes": [["sea"], ["town", "nothing"], [], None],
    }  # fmt: skip
    return {name: values[name][draw.integers(len(values[name]))] for name in names if draw.random() < 0.7}


def requests(count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw, found = np.random.default_rng(seed), []
    for _ in range(count):
        times = np.sort(SHOP_BEGAN + draw.integers(0, 10**6, draw.integers(1, 14)))
        events = [
            {"item": int(draw.integers(0, 33)), "time": float(at), "features": some(draw, OF_EVENT)} for at in times
        ]
        asked = {"history": events, "k": 9, "features": some(draw, OF_ASKED), "time": float(times[-1] + 3_000)}
        found.append({**asked, "history": [{"item": 1, "time": float(SHOP_BEGAN)}, *events]})
    return found


def as_table(asked: list[dict[str, Any]]) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The same for `Predictor.recommend`: a table of histories, and `features=`."""
    text = {"rating": str, "dwell": float, "price": float}
    rows = [
        {"user_id": f"q{n}", "item_id": event["item"], "timestamp": event["time"]}
        | {name: None if (value := event.get("features", {}).get(name)) is None else text.get(name, lambda x: x)(value)
           for name in OF_EVENT}
        for n, one in enumerate(asked) for event in one["history"]
    ]  # fmt: skip
    features = {f"q{n}": {**one["features"], "asked_at": int(one["time"])} for n, one in enumerate(asked)}
    return pl.DataFrame(rows, infer_schema_length=None), features


def same(answers: list[dict[str, Any]], expected: pl.DataFrame) -> None:
    for n, answer in enumerate(answers):
        own = expected.filter(user=f"q{n}").sort("rank")
        assert items_of(answer) == own["item"].to_list()
        np.testing.assert_allclose(scores_of(answer), own["score"].to_list(), rtol=2e-4, atol=2e-5)


def test_the_service_answers_as_the_predictor(service: Client, predictor: Predictor) -> None:
    asked = requests(200)
    table, features = as_table(asked)
    expected = predictor.recommend(table, features=features, k=9)
    answers = [one for at in (0, 100) for one in service.recommend_batch(asked[at : at + 100])]
    same(answers, expected)
    same([service.recommend(**one) for one in asked[:5]], expected)
    bare = [{**one, "features": {}} for one in asked[:20]]
    assert [items_of(service.recommend(**one)) for one in bare] != [items_of(one) for one in answers[:20]]
    assert {"born", "country"} <= set(service.recommend(**bare[0])["not_given"])


def test_an_added_item_has_no_age_and_is_answered(run: Run) -> None:
    """The quick encoder knows as many items as the service."""
    served = ServedModel.open(run.path, ServeSettings.parse({"run": str(run.path)}), {})
    assert served.state.finder.fast is not None
    served.put(served.changed({"1000": {"id": 1000, "like": [1]}}))
    history = [{"item": 1000, "time": float(SHOP_BEGAN)}, {"item": 3, "time": float(SHOP_BEGAN + 9)}]
    asked = RecommendRequest.model_validate({"history": history, "k": 34, "seen": "keep"})
    (answer,) = served.answer([served.read(asked, request_history(asked) or [])])
    finder = replace(served.state.finder, fast=None)
    by_the_run = ServedModel(run, replace(served.state, finder=finder), served.settings)
    (own,) = by_the_run.answer([by_the_run.read(asked, request_history(asked) or [])])
    assert len(answer.ids) == served.items.size and answer.ids[0] == own.ids[0]
    one, two = (dict(zip(found.ids, found.scores, strict=True)) for found in (answer, own))
    np.testing.assert_allclose([one[item] for item in two], list(two.values()), rtol=1e-4, atol=1e-5)


def test_an_index_is_made_of_users_with_their_features(run: Run) -> None:
    """Its training queries are the vectors that the model has of the store's users."""
    served = ServedModel.open(run.path, ServeSettings.parse({"run": str(run.path), "search": "index"}), {})
    histories = sample_histories(run, MEASURED)
    assert histories is not None
    found = _users(run, served.state.finder)
    for at, scorer in score_batches(served.predictor.model, histories):
        np.testing.assert_allclose(found[at], scorer.vectors.numpy(), atol=1e-5)  # type: ignore[attr-defined]


def test_an_explanation_says_what_each_feature_moved(service: Client) -> None:
    asked = {"history": [{"item": 3, "time": float(SHOP_BEGAN), "features": {"rating": 5}}], "k": 4,
             "features": {"country": "is"}, "time": float(SHOP_BEGAN + 99), "explain": True}  # fmt: skip
    known = service.recommend(**asked)["items"]
    assert {"event.rating", "user.country"} <= set(known[0]["moved"]) and "request.device" not in known[0]["moved"]
    unknown = service.recommend(**{**asked, "features": {}, "k": 33})
    scores = dict(zip(items_of(unknown), scores_of(unknown), strict=True))
    for one in known:
        assert one["score"] - scores[one["item"]] == pytest.approx(one["moved"]["user.country"], abs=2e-3)


def test_stored_features_are_read(service: Client) -> None:
    """Events and users that were stored are as those that a request brings, and a request stands over its user."""
    for n, asked in enumerate(requests(6, seed=1)):
        user, person = f"s{n}", {"country": "is", "born": 1960, "likes": ["sea"]}
        service.add_events([{"user": user, **event} for event in asked["history"]])
        service.put_user(user, {**person, "born": 1961})
        request = {"user": user, "k": 9, "time": asked["time"], "features": {"born": 1960, "device": "desk"}}
        brought = {**asked, "features": {**person, "device": "desk"}}
        answer, expected = service.recommend(**request), service.recommend(**brought)
        assert items_of(answer) == items_of(expected)
        np.testing.assert_allclose(scores_of(answer), scores_of(expected), rtol=1e-4, atol=1e-5)
        shown = service.history(user)["events"]
        assert [one.get("features") for one in shown] == [one.get("features") or None for one in asked["history"]]


@pytest.mark.parametrize(
    ("method", "path", "body", "pointer"),
    [
        ("POST", "/v1/recommend", {"history": [1], "features": {"colour": "red"}}, "#/features/colour"),
        ("POST", "/v1/recommend", {"history": [1], "features": {"rating": 3}}, "#/features/rating"),
        ("POST", "/v1/recommend", {"history": [1], "features": {"born": "1960"}}, "#/features/born"),
        ("POST", "/v1/recommend", {"history": [1], "features": {"country": 1.5}}, "#/features/country"),
        ("POST", "/v1/recommend", {"history": [1], "features": {"born": 1e300}}, "#/features/born"),
        ("POST", "/v1/recommend", {"history": [1], "features": {"born": 10**16}}, "#/features/born"),
        ("POST", "/v1/recommend", {"history": [1, {"item": 2, "features": {"tags": 3}}]},
         "#/history/1/features/tags"),
        ("POST", "/v1/events", {"events": [{"user": "x", "item": 1, "features": {"born": 1960}}]},
         "#/events/0/features/born"),
        ("POST", "/v1/events", {"events": [{"user": "x", "item": 1, "features": {"dwell": "long"}}]},
         "#/events/0/features/dwell"),
        ("PUT", "/v1/users/x", {"features": {"device": "desk"}}, "#/features/device"),
        ("PUT", "/v1/users/x", {"features": {"likes": {"sea": 1}}}, "#/features/likes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(service: Client, method: str, path: str, body: dict, pointer: str) -> None:
    with refused("invalid-request", pointer):
        service.call(method, path, body)


def test_the_document_has_the_fields(service: Client, run: Run) -> None:
    schemas = service.call("GET", "/openapi.json")["components"]["schemas"]
    assert set(schemas["Features"]["properties"]) == set(OF_ASKED)
    assert set(schemas["EventFeatures"]["properties"]) == set(OF_EVENT)
    assert schemas["EventFeatures"]["properties"]["dwell"]["type"] == ["number", "boolean", "null"]
    assert set(schemas["UserFeatures"]["properties"]) == {"country", "born", "likes"}
    for form, name in (("RecommendRequest", "Features"), ("PastEvent", "EventFeatures"), ("NewEvent", "EventFeatures"),
                       ("UserRequest", "UserFeatures")):  # fmt: skip
        assert f"#/components/schemas/{name}" in str(schemas[form]["properties"]["features"])
    assert schemas["Features"]["type"] == ["object", "null"], "which requests without features may say too"
    service.recommend(history=[1], features=None)
    card = service.call("GET", "/v1/model")["features"]
    assert [one["name"] for one in card["event"]] == ["rating", "dwell", "tags", "hour", "age"]
    assert {"name": "country", "kind": "categorical", "values": ["fo", "is", "no"]} in card["user"]
    assert {"name": "weekday", "kind": "time"} in card["request"]


def test_versions_that_read_other_features(run: Run) -> None:
    """What one version reads, another passes over: in requests as in what is stored."""
    store = run.path.parent.parent / "store"
    plain = fr.train("sasrec", store, run.path.parent / "plain", set=TINY, device="cpu", progress=False)
    settings = {"run": str(plain.path), "watch": str(run.path.parent), "auto_activate": False, "store": "memory:"}

    def events(*features: dict[str, Any]) -> EventsRequest:
        return EventsRequest(
            events=[{"user": "u", "item": n, "time": n, "features": one} for n, one in enumerate(features)]
        )

    async def swapped() -> None:
        service = Service(ServeSettings.parse(settings))
        await service.open()
        try:
            born = RecommendRequest(history=[1], features={"born": 1960})
            with pytest.raises(RowMistakes):
                await service.recommend(born)
            await service.add_events(events({"dwell": "odd", "other": [1]}))
            await service.versions.activate("shop")
            answers = [await service.recommend(one) for one in (born, RecommendRequest(user="u"))]
            assert [one["version"] for one in answers] == ["shop"] * 2
            with pytest.raises(RowMistakes):
                await service.add_events(events({"dwell": "odd"}))
            await service.put_user("u", UserRequest(features={"born": 1960}))
            await service.add_events(events({}, {"rating": 5}))
            await service.versions.activate("plain")
            answers = [await service.recommend(one) for one in (born, RecommendRequest(user="u"))]
            assert [one["version"] for one in answers] == ["plain"] * 2 and "not_given" not in answers[0]
            assert len((await service.history("u", 9))["events"]) == 2
        finally:
            await service.close()

    asyncio.run(swapped())


def test_stored_values_of_another_kind_are_missing(run: Run) -> None:
    model = ServedModel.open(run.path, ServeSettings.parse({"run": str(run.path)}), {})
    asked, odd = RecommendRequest(k=5), {"dwell": "long", "other": 1, "rating": 3}
    found = [
        model.read(asked, [(1, 5.0, given), (2, 6.0, None)], user)
        for given, user in ((odd, {"born": "old", "country": "is", "x": 1}), ({"rating": 3}, {"country": "is"}))
    ]
    first, second = model.answer(found[:1])[0], model.answer(found[1:])[0]
    assert (first.ids, first.scores) == (second.ids, second.scores)


def test_canaries_read_what_their_events_say(run: Run) -> None:
    """A canary is asked with its user's features and with its target's request, of which no event feature is read."""
    model = ServedModel.open(run.path, ServeSettings.parse({"run": str(run.path)}), {})
    events = ({"rating": 5, "device": "phone"}, {"rating": 1, "device": "desk"})
    asked = {"country": "is", "device": "phone", "rating": 2}
    canary = Canary((1, 2), (1e9, 1e9 + 60), 3, events, asked, 1e9 + 120)
    (answer,) = ask_all(model, [canary], 5, here)
    request = RecommendRequest(
        history=[{"item": 1, "time": 1e9, "features": events[0]}, {"item": 2, "time": 1e9 + 60, "features": events[1]}],
        k=5, features={"country": "is", "device": "phone"}, time=1e9 + 120,
    )  # fmt: skip
    found = model.answer([model.read(request, request_history(request) or [])])[0]
    assert list(answer.items) == [model.items.ids[one] for one in found.ids] and not answer.faults
