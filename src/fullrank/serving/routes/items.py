"""Routes of items: search by title, one item, similar ones, adding and changing."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from fullrank.serving.messages import ItemsRequest, Name
from fullrank.serving.routes import answer, read, service_of, takes

K = Annotated[int, Query(ge=1, le=1_000_000)]


def add(app: FastAPI) -> None:
    app.get("/v1/items", tags=["items"])(search)
    app.post("/v1/items", openapi_extra=takes(ItemsRequest), tags=["items"])(put_items)
    app.get("/v1/items/{item:id}/similar", tags=["items"])(similar)
    app.get("/v1/items/{item:id}", tags=["items"])(item)


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
