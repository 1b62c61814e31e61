"""10,000 requests while versions are swapped 20 times: every one is answered, by a version that there is."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest

from fullrank.serving.messages import RecommendRequest
from fullrank.serving.service import Service
from fullrank.serving.settings import ServeSettings
from serving.conftest import Shop

REQUESTS, SWAPS, CALLERS = 10_000, 20, 16


@pytest.mark.slow
def test_no_request_is_lost_in_a_swap(shop: Shop, tmp_path: Path) -> None:
    for name in ("may", "june", "july"):
        shutil.copytree(shop.run.path, tmp_path / "runs" / name)
    answered: Counter[str] = Counter()

    async def main() -> None:
        watched = {"watch": str(tmp_path / "runs"), "auto_activate": False, "log": str(tmp_path / "answers")}
        service = Service(ServeSettings(run=str(tmp_path / "runs" / "may"), store="memory:", **watched))  # type: ignore[arg-type]
        await service.open()
        left = iter(range(REQUESTS))

        async def ask() -> None:
            for n in left:
                request = {"user": f"u{n % 50}", "history": [shop.ids[n % 40], shop.ids[(n + 7) % 40]], "k": 5}
                answer = await service.recommend(RecommendRequest.model_validate(request))
                assert len(answer["items"]) == 5
                answered[answer["version"]] += 1

        callers = [asyncio.create_task(ask()) for _ in range(CALLERS)]
        for swap in range(SWAPS):
            while sum(answered.values()) < swap * REQUESTS / (SWAPS + 1):
                await asyncio.sleep(0.005)
            if swap % 4 == 3:
                await service.versions.rollback()
            else:
                await service.versions.activate(("june", "july", "may")[swap % 3])
        await asyncio.gather(*callers)
        await service.close()
        assert service.log is not None and service.log.written == REQUESTS and service.log.dropped == 0

    asyncio.run(main())
    assert sum(answered.values()) == REQUESTS and set(answered) == {"may", "june", "july"}
