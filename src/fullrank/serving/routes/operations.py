"""Routes of every service: alive, ready, metrics, the model's card, the page; and versions (scope admin)."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from fullrank.serving.messages import SplitRequest
from fullrank.serving.openapi import Alive, Card, Ready, VersionsAnswer
from fullrank.serving.page import Page
from fullrank.serving.routes import answer, opened, read, takes


def add(app: FastAPI) -> None:
    app.get("/v1/versions", response_model=VersionsAnswer, tags=["versions"])(listed)
    app.post("/v1/versions/check", response_model=VersionsAnswer, tags=["versions"])(check)
    app.post("/v1/versions/rollback", response_model=VersionsAnswer, tags=["versions"])(rollback)
    app.put("/v1/versions/split", response_model=VersionsAnswer, openapi_extra=takes(SplitRequest), tags=["versions"])(
        split
    )
    app.post("/v1/versions/{name}/activate", response_model=VersionsAnswer, tags=["versions"])(activate)
    app.get("/healthz", response_model=Alive, tags=["operations"])(alive)
    app.get("/readyz", response_model=Ready, tags=["operations"])(ready)
    app.head("/healthz", include_in_schema=False)(alive)  # as some balancers ask
    app.head("/readyz", include_in_schema=False)(ready)
    app.get("/metrics", response_class=PlainTextResponse, tags=["operations"])(metrics)
    app.get("/v1/model", response_model=Card, tags=["operations"])(model)
    app.get("/", include_in_schema=False)(page)


async def alive() -> Response:
    """Whether the process answers at all."""
    return answer({"status": "ok"})


async def ready(request: Request) -> Response:
    """Whether requests can be answered: model open, store reachable, queue not full."""
    body, status = await opened(request).readiness()
    return answer(body, status)


async def metrics(request: Request) -> Response:
    """What Prometheus reads."""
    text, kind = await opened(request).metrics()
    return Response(text, media_type=kind)


async def model(request: Request, version: str | None = None) -> Response:
    """The card of a version: sizes, what it can be asked, and its figures of collapse and fairness."""
    return answer(await opened(request).card(version))


async def page(request: Request) -> Response:
    """The page."""
    shown: Page = request.app.state.page
    return Response(shown.body, media_type="text/html; charset=utf-8", headers={"etag": shown.etag})


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
