"""Routes of lists: recommend, and several at once."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request, Response

from fullrank.serving.messages import BatchRequest, RecommendRequest
from fullrank.serving.problems import problem_of
from fullrank.serving.requests import check_most
from fullrank.serving.routes import answer, read, service_of, takes


def add(app: FastAPI) -> None:
    app.post("/v1/recommend", openapi_extra=takes(RecommendRequest), tags=["lists"])(recommend)
    app.post("/v1/recommend:batch", openapi_extra=takes(BatchRequest), tags=["lists"])(recommend_batch)


async def recommend(request: Request) -> Response:
    """The k best items for a user or a history, best first."""
    asked = await read(request, RecommendRequest)
    return answer(await service_of(request).recommend(asked, request.state.request_id))


async def recommend_batch(request: Request) -> Response:
    """Lists for several users or histories; each is an answer or a problem of its own."""
    service, asked = service_of(request), await read(request, BatchRequest)
    check_most("requests", len(asked.requests), service.settings.batch_most)

    async def one(single: RecommendRequest) -> dict[str, Any]:
        try:
            return await service.recommend(single)
        except Exception as error:
            return problem_of(error, request_id=request.state.request_id).body(request.state.request_id)

    return answer({"answers": await asyncio.gather(*(one(single) for single in asked.requests))})
