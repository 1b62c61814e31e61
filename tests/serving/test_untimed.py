"""A service of a model that reads times, asked with a history that has none."""

import asyncio
from pathlib import Path

import pytest

import fullrank as fr
from fullrank.serving.messages import RecommendRequest
from fullrank.serving.service import Service
from fullrank.serving.settings import ServeSettings
from refusals import refused
from serving.conftest import SMALL, Shop
from serving.running import items_of

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
