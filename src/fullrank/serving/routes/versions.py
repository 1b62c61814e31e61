"""Routes of versions: which there are, which answers, and back to the one before (scope admin)."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from fullrank.serving.messages import SplitRequest
from fullrank.serving.routes import answer, opened, read, takes


def add(app: FastAPI) -> None:
    app.get("/v1/versions", tags=["versions"])(listed)
    app.post("/v1/versions/check", tags=["versions"])(check)
    app.post("/v1/versions/rollback", tags=["versions"])(rollback)
    app.put("/v1/versions/split", openapi_extra=takes(SplitRequest), tags=["versions"])(split)
    app.post("/v1/versions/{name}/activate", tags=["versions"])(activate)


async def listed(request: Request) -> Response:
    """The versions that are open or were refused, what their checks found, and who answers whom."""
    return answer(opened(request).versions.describe())


async def check(request: Request) -> Response:
    """Look for new versions now."""
    return answer(await opened(request).versions.check_now())


async def activate(request: Request, name: str) -> Response:
    """Let one version answer everybody. It is checked first where it has not been."""
    versions = opened(request).versions
    await versions.activate(name)
    return answer(versions.describe())


async def rollback(request: Request) -> Response:
    """Let those answer again that did before."""
    versions = opened(request).versions
    await versions.rollback()
    return answer(versions.describe())


async def split(request: Request) -> Response:
    """Divide users between versions, by shares that are scaled to 1."""
    asked, versions = await read(request, SplitRequest), opened(request).versions
    await versions.set_split(asked.split)
    return answer(versions.describe())
