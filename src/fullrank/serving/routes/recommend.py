"""Routes of a recommender: lists; what users do and what is known of them; items."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response

from fullrank.serving.messages import BatchRequest, EventsRequest, ItemsRequest, Name, RecommendRequest, UserRequest
from fullrank.serving.problems import problem_of
from fullrank.serving.requests import check_most
from fullrank.serving.routes import answer, read, service_of, takes

K = Annotated[int, Query(ge=1, le=1_000_000)]


def add(app: FastAPI) -> None:
    app.post("/v1/recommend", openapi_extra=takes(RecommendRequest), tags=["lists"])(recommend)
    app.post("/v1/recommend:batch", openapi_extra=takes(BatchRequest), tags=["lists"])(recommend_batch)
    app.post("/v1/events", openapi_extra=takes(EventsRequest), tags=["users"])(events)
    app.get("/v1/users/{user:id}/history", tags=["users"])(history)
    app.put("/v1/users/{user:id}", openapi_extra=takes(UserRequest), tags=["users"])(put_user)
    app.delete("/v1/users/{user:id}", tags=["users"])(delete_user)
    app.get("/v1/items", tags=["items"])(search)
    app.post("/v1/items", openapi_extra=takes(ItemsRequest), tags=["items"])(put_items)
    app.get("/v1/items/{item:id}/similar", tags=["items"])(similar)
    app.get("/v1/items/{item:id}", tags=["items"])(item)


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


async def events(request: Request) -> Response:
    """Store what users did. An event that is known already is counted and not stored again."""
    return answer(await service_of(request).add_events(await read(request, EventsRequest)))


async def put_user(request: Request, user: Name) -> Response:
    """Put what the ranker reads of a user, in place of what was put before."""
    return answer(await service_of(request).put_user(user, await read(request, UserRequest)))


async def history(request: Request, user: Name, limit: K = 100) -> Response:
    """A user's last events, oldest first."""
    return answer(await service_of(request).history(user, limit))


async def delete_user(request: Request, user: Name) -> Response:
    """Forget a user: events, features and logged answers."""
    return answer(await service_of(request).delete_user(user))


async def search(
    request: Request, query: Annotated[str, Query(max_length=256)] = "", limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> Response:
    """Items by words of their title, or by id; without a query the most popular ones."""
    return answer(await service_of(request).search_items(query, limit))


async def item(request: Request, item: Name) -> Response:
    """One item: title, popularity, columns, and whether it is shown."""
    return answer(service_of(request).item(item))


async def similar(request: Request, item: Name, k: K = 10) -> Response:
    """The k items most like one."""
    return answer(await service_of(request).similar(item, k))


async def put_items(request: Request) -> Response:
    """Add items, or change, retire or expire known ones. They are recommendable when this answers."""
    return answer(await service_of(request).put_items(await read(request, ItemsRequest)))
