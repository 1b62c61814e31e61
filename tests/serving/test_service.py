"""The service over HTTP: lists as `recommend` gives them, events, filters, new items, users that are forgotten."""

import asyncio
import json
import time
from pathlib import Path

import pytest

import fullrank as fr
from fullrank.cli import main
from fullrank.serving.client import Client
from fullrank.serving.messages import Reasoning, RecommendRequest
from fullrank.serving.model import ServedModel
from fullrank.serving.service import Service
from fullrank.serving.settings import ServeSettings
from refusals import refused
from serving.conftest import HISTORY, SMALL, Shop
from serving.running import items_of, scores_of


def test_a_list_is_that_of_recommend(service: Client, shop: Shop) -> None:
    own = fr.load(shop.run).recommend([HISTORY], k=7, titles=True)
    answer = service.recommend(history=HISTORY, k=7, titles=True)
    assert items_of(answer) == own["item"].to_list()
    assert scores_of(answer) == pytest.approx(own["score"].to_list(), abs=1e-5)
    assert [one["title"] for one in answer["items"]] == own["title"].to_list()
    assert answer["version"] == "first" and answer["source"] == "model"


def test_several_at_once_are_those_of_one_by_one(service: Client, shop: Shop) -> None:
    requests = [{"history": shop.ids[n : n + n % 5], "k": 5 + n % 3} for n in range(20)]
    answers, alone = service.recommend_batch(requests), [service.recommend(**one) for one in requests]
    assert list(map(items_of, answers)) == list(map(items_of, alone))


def test_an_item_is_out_of_the_list_on_every_way(service: Client, shop: Shop) -> None:
    first = items_of(service.recommend(history=HISTORY, k=5))
    laws = [
        ({"exclude": first[:2]}, lambda item, columns: item not in first[:2]),
        ({"filters": {"in_stock": True}}, lambda _, columns: columns["in_stock"]),
        ({"filters": {"category": ["soap", "oil"]}}, lambda _, columns: columns["category"] in ("soap", "oil")),
        ({"filters": {"price": {"min": 3, "max": 9}}}, lambda _, columns: 3 <= columns["price"] <= 9),
        ({"allow": shop.ids[:9]}, lambda item, _: item in shop.ids[:9]),
    ]
    for more, law in laws:
        for history in (HISTORY, []):  # a model's list and the most popular items
            shown = items_of(service.recommend(history=history, k=9, **more))
            full = len(set(shop.ids[:9]) - set(history)) if "allow" in more else 9
            assert len(set(shown)) == full, "full while enough items remain"
            assert not set(shown) & set(history)
            assert all(law(item, service.call("GET", f"/v1/items/{item}")["columns"]) for item in shown), more


def test_a_least_score(service: Client, shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    own = fr.recommend(shop.run, [HISTORY], k=9)
    least, kept = (own["score"][4] + own["score"][5]) / 2, own["item"].to_list()[:5]
    assert fr.recommend(shop.run, [HISTORY], k=9, min_score=least)["item"].to_list() == kept
    assert items_of(service.recommend(history=HISTORY, k=9, min_score=least)) == kept
    for words in (["recommend", str(shop.run.path)], ["ask", service.url]):
        assert main([*words, "--history", ",".join(HISTORY), "--k", "9", f"--min-score={least}", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert items_of({"items": said.get("recommendations") or said["answers"][0]["items"]}) == kept


def test_events_change_the_answer_and_are_stored_once(service: Client) -> None:
    before = items_of(service.recommend(user="ann", k=5))
    assert service.recommend(user="ann", k=5)["source"] == "popular"
    told = [{"user": "ann", "item": item, "event_id": f"a{n}", "time": 100.0 + n} for n, item in enumerate(HISTORY)]
    assert service.add_events(told) == {"stored": 3, "duplicates": 0, "unknown_items": []}
    assert service.add_events(told[:2]) == {"stored": 0, "duplicates": 2, "unknown_items": []}
    after = service.recommend(user="ann", k=5)
    assert after["source"] == "model" and items_of(after) != before
    assert items_of(after) == items_of(service.recommend(history=HISTORY, k=5))
    assert [one["item"] for one in service.history("ann")["events"]] == HISTORY


def test_an_event_without_an_id_is_known_by_its_time(service: Client) -> None:
    event = {"user": 7, "item": "i3", "time": 5.0}
    assert service.add_events([event])["stored"] == 1
    assert service.add_events([event])["duplicates"] == 1
    assert service.add_events([{"user": 7, "item": "i3"}])["stored"] == 1, "without a time it is another one"
    assert len(service.history(7)["events"]) == 2, "a number and its text are one user"


def test_events_of_unknown_items_are_kept_and_told(service: Client) -> None:
    found = service.add_events([{"user": "bo", "item": "nowhere"}, {"user": "bo", "item": "i5"}])
    assert found["unknown_items"] == ["nowhere"] and found["stored"] == 2
    assert service.recommend(user="bo", k=3)["source"] == "model"


def test_a_new_item_is_recommended_at_once(service: Client) -> None:
    (made,) = service.put_items([{"id": "fresh", "title": "Rose soap number 900", "features": {"in_stock": True}}])[
        "items"
    ]
    assert made["new"] and made["from"] == "title" and made["neighbours"]
    found = items_of(service.recommend(history=made["neighbours"][:3], k=20))
    assert "fresh" in found
    assert "fresh" in items_of(service.call("GET", "/v1/items?query=900"))
    assert service.recommend(history=["fresh"], k=3)["source"] == "model", "it may be in a history"
    assert items_of(service.similar("fresh", 5))


def test_items_are_retired_expire_and_come_back(service: Client) -> None:
    history = ["i8", "i14"]
    first, second = items_of(service.recommend(history=history, k=2))
    service.put_items([{"id": first, "retired": True}, {"id": second, "expires_at": time.time() + 0.5}])
    found = items_of(service.recommend(history=history, k=200))
    assert first not in found and second in found
    time.sleep(0.6)
    assert second not in items_of(service.recommend(history=history, k=200))
    assert first not in items_of(service.similar(second, 200))
    assert first not in items_of(service.recommend(history=[], k=200))
    service.put_items([{"id": first, "retired": False}, {"id": second, "expires_at": None}])
    assert items_of(service.recommend(history=history, k=2)) == [first, second]


def test_columns_of_items_change(service: Client) -> None:
    first = items_of(service.recommend(history=["i9"], k=1, filters={"in_stock": True}))[0]
    service.put_items([{"id": first, "features": {"in_stock": False}}])
    assert items_of(service.recommend(history=["i9"], k=1, filters={"in_stock": True})) != [first]
    assert first in items_of(service.recommend(history=["i9"], k=200, filters={"in_stock": False}))
    service.put_items([{"id": first, "features": {"in_stock": True}}])


def test_a_user_is_forgotten(service: Client) -> None:
    service.add_events([{"user": "cy/1", "item": "i4"}])
    service.put_user("cy/1", {"age": 3})
    assert service.put_user("cy/1", {"age": 10**30})["features"] == {"age": 1e30}, "beyond 64 bits: no whole number"
    assert service.forget("cy/1") == {"user": "cy/1", "events": 1, "features": True, "answers": 0}
    assert service.history("cy/1")["events"] == []
    assert service.recommend(user="cy/1", k=2)["source"] == "popular"
    assert service.forget("cy/1")["events"] == 0


def test_explanations_name_events_of_the_history(service: Client) -> None:
    answer = service.recommend(history=HISTORY, k=4, explain=True)
    assert [one["item"] for one in answer["attention"]] == HISTORY
    assert all(len(one["shares"]) == 2 for one in answer["attention"])
    for one in answer["items"]:
        assert one["title"] and one["popularity"] in ("head", "middle", "tail")
        assert {event["item"] for event in one["because"]} <= set(HISTORY)


@pytest.mark.parametrize(
    "call, code",
    [
        (("POST", "/v1/recommend", {}), "no-history"),
        (("POST", "/v1/recommend", {"history": [], "k": 0}), "invalid-request"),
        (("POST", "/v1/recommend", {"history": [], "k": 5000}), "too-many"),
        (("POST", "/v1/recommend", {"history": ["i1"] * 1001}), "too-many"),
        (("POST", "/v1/recommend", {"history": ["i1"], "k": 101, "explain": True}), "too-many"),
        (("POST", "/v1/recommend", {"history": ["i1"], "filters": {"colour": "red"}}), "unknown-column"),
        (("POST", "/v1/recommend", {"history": ["i1"], "reasoning": {"steps": 1}}), "no-reasoner"),
        (("POST", "/v1/recommend", {"history": ["i1"], "ranker": True}), "no-ranker"),
        (("POST", "/v1/recommend", {"history": ["i1"], "version": "none"}), "unknown-version"),
        (("GET", "/v1/items/nowhere/similar"), "unknown-item"),
        (("GET", "/v1/items/nowhere"), "unknown-item"),
        (("POST", "/v1/events", {"events": []}), "invalid-request"),
    ],
)
def test_what_cannot_be_done_is_told(service: Client, call: tuple, code: str) -> None:
    with refused(code):
        service.call(*call)


def test_an_event_of_the_future_is_refused(service: Client) -> None:
    event = {"user": "ann", "item": "i3", "time": time.time() + 10 * 86_400}
    with refused("time-in-future"):
        service.add_events([event])


def test_operations(service: Client) -> None:
    assert service.call("GET", "/healthz") == {"status": "ok"}
    assert service.call("GET", "/readyz")["status"] == "ok"
    card = service.call("GET", "/v1/model")
    assert card["version"] == "first" and {"in_stock", "price", "category"} <= {one["name"] for one in card["columns"]}
    page = service._pool.request("GET", service.url + "/")
    assert page.status == 200 and b"<html" in page.data and "script-src" in page.headers["content-security-policy"]
    assert b"fullrank" in service._pool.request("GET", service.url + "/metrics").data
    assert service._pool.request("HEAD", service.url + "/readyz").status == 200, "balancers may ask for the head"


def test_one_request_does_not_reason_for_long(shop: Shop, tmp_path: Path) -> None:
    run = fr.train("plr", shop.store, tmp_path / "plr", set=SMALL)
    settings = ServeSettings.parse({"run": str(run.path), "steps_most": 3})
    model = ServedModel.open(run.path, settings, {})

    def asked(steps: int):
        return model.read(RecommendRequest(reasoning=Reasoning(steps=steps)), [("i1", None, None)])

    assert asked(3).budget.steps == 3
    with refused("too-many"):
        asked(4)


IDS = ["i7", "i13", "no such item", "i19"]


def test_a_history_without_times_is_answered_as_of_now_and_the_answer_says_so(shop: Shop, tmp_path: Path) -> None:
    """As `recommend` does, also of items that are not known; a history with some times is refused."""
    run = fr.train("hstu", shop.store, tmp_path / "run", set=[*SMALL, "model.encoder.layers=1"], progress=False)
    with pytest.warns(UserWarning, match="as of now, a day between events"):
        own = fr.recommend(run, [IDS], k=5)["item"].to_list()

    async def ask(service: Service, history: list) -> dict:
        return await service.recommend(RecommendRequest.model_validate({"history": history, "k": 5}))

    async def main() -> None:
        service = Service(ServeSettings.parse({"run": str(run.path), "store": str(tmp_path / "events.sqlite")}))
        await service.open()
        try:
            answer = await ask(service, IDS)
            assert items_of(answer) == own and answer["untimed"] is True
            timed = [{"item": item, "time": 86_400.0 * at} for at, item in enumerate(IDS)]
            assert "untimed" not in await ask(service, timed) and "untimed" not in await ask(service, [])
            with refused("missing-times", "'i19'"):
                await ask(service, [*timed[:3], "i19"])
        finally:
            await service.close()

    asyncio.run(main())
