"""Routes of what users do and what is known of them: events, features, histories, forgetting."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from fullrank.serving.messages import EventsRequest, Name, UserRequest
from fullrank.serving.routes import answer, read, service_of, takes


def add(app: FastAPI) -> None:
    app.post("/v1/events", openapi_extra=takes(EventsRequest), tags=["users"])(events)
    app.get("/v1/users/{user:id}/history", tags=["users"])(history)
    app.put("/v1/users/{user:id}", openapi_extra=takes(UserRequest), tags=["users"])(put_user)
    app.delete("/v1/users/{user:id}", tags=["users"])(delete_user)


async def events(request: Request) -> Response:
    """Store what users did. An event that is known already is counted and not stored again."""
    return answer(await service_of(request).add_events(await read(request, EventsRequest)))


async def put_user(request: Request, user: Name) -> Response:
    """Put what the ranker reads of a user, in place of what was put before."""
    return answer(await service_of(request).put_user(user, await read(request, UserRequest)))


async def history(
    request: Request, user: Name, limit: Annotated[int, Query(ge=1, le=1_000_000)] = 100
) -> Response:  # fmt: skip
    """A user's last events, oldest first."""
    return answer(await service_of(request).history(user, limit))


async def delete_user(request: Request, user: Name) -> Response:
    """Forget a user: events, features and logged answers."""
    return answer(await service_of(request).delete_user(user))
