"""Changes of items by several processes at once, and what happens where one cannot be followed."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from fullrank.serving import base
from fullrank.serving import service as service_file
from fullrank.serving.messages import ItemsRequest, RecommendRequest
from fullrank.serving.model import ServedModel
from fullrank.serving.service import Service
from fullrank.serving.settings import ServeSettings
from refusals import refused
from serving.conftest import Shop


@pytest.fixture(autouse=True)
def unfollowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by itself at what others wrote."""
    monkeypatch.setattr(base, "POLL", 3600.0)


def with_services(shop: Shop, store: Path, count: int, work: Callable) -> None:
    async def main() -> None:
        settings = ServeSettings.parse({"run": str(shop.run.path), "store": str(store)})
        services = [Service(settings) for _ in range(count)]
        try:
            for one in services:
                await one.open()
            await work(*services)
        finally:
            for one in services:
                await one.close()

    asyncio.run(main())


def change(item: str, **said) -> ItemsRequest:
    return ItemsRequest.model_validate({"items": [{"id": item, **said}]})


def test_a_change_keeps_what_another_process_said(shop: Shop, tmp_path: Path) -> None:
    async def work(one: Service, other: Service) -> None:
        async def document() -> dict:
            return {found.key: found.body for found in await one.store.documents()}["i5"]

        await one.put_items(change("i5", retired=True))
        await other.put_items(change("i5", features={"price": 3.0}))
        assert await document() == {"id": "i5", "retired": True, "features": {"price": 3.0}}
        assert other.model.items.barred[other.model.number("i5")], "what was written elsewhere holds here too"
        # while the vectors of a change were made, another process changed the same item
        make, calls = ServedModel.changed, 0

        def slow(model: ServedModel, *given, **more):
            nonlocal calls
            calls += 1
            if calls == 1:
                asyncio.run_coroutine_threadsafe(other.put_items(change("i5", title="Rose oil")), loop).result(20)
            return make(model, *given, **more)

        loop = asyncio.get_running_loop()
        one.model.changed = slow.__get__(one.model)
        await one.put_items(change("i5", expires_at=9e9))
        wanted = {"title": "Rose oil", "expires_at": 9e9, "retired": True}
        assert await document() | wanted == await document() and one.model.title("i5") == "Rose oil"

    with_services(shop, tmp_path / "store.sqlite", 2, work)


def test_what_could_not_be_followed_is_tried_again(shop: Shop, tmp_path: Path) -> None:
    async def work(one: Service, other: Service) -> None:
        await one.put_items(change("i7", retired=True))
        make = other.model.changed

        def fail(*given, **more):
            raise MemoryError

        other.model.changed = fail
        with pytest.raises(MemoryError):
            await other._take_in()
        other.model.changed = make
        await other._take_in()
        assert other.model.items.barred[other.model.number("i7")]

    with_services(shop, tmp_path / "store.sqlite", 2, work)


def test_masks_and_cards(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(one: Service) -> None:
        monkeypatch.setattr(service_file, "MASKED_HERE", 1)  # as for a large catalogue
        asked = RecommendRequest(history=["i7"], k=9, filters={"in_stock": True})
        listed = [place["item"] for place in (await one.recommend(asked))["items"]]
        assert len(listed) == 9 and all(int(item[1:]) % 5 for item in listed)
        assert one.model.items.has_mask({"in_stock": True}) and not one.model.items.has_mask({"in_stock": False})
        with refused("unknown-column"):
            await one.recommend(RecommendRequest(history=["i7"], filters={"colour": "red"}))
        with monkeypatch.context() as broken:
            broken.setattr(service_file, "model_card", lambda *run, **how: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await one.card()
        assert (await one.card())["version"] == "first", "a card that failed is made again"

    with_services(shop, tmp_path / "store.sqlite", 1, work)
