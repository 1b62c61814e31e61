"""Routes of operations: alive, ready, metrics, the model's card, the page."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from fullrank.serving.page import Page
from fullrank.serving.routes import answer, opened


def add(app: FastAPI) -> None:
    app.get("/healthz", tags=["operations"])(alive)
    app.get("/readyz", tags=["operations"])(ready)
    app.head("/healthz", include_in_schema=False)(alive)  # as some balancers ask
    app.head("/readyz", include_in_schema=False)(ready)
    app.get("/metrics", tags=["operations"])(metrics)
    app.get("/v1/model", tags=["operations"])(model)
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
    return Response(shown.body, media_type="text/html; charset=utf-8", headers={"etag": shown.headers["ETag"]})
