"""Routes of the service, a shell around it: those of a recommender, of a ranking model, and of every service.

Bodies are read by pydantic from the raw bytes and answers are written by orjson: FastAPI's own reading of bodies and
checking of answers cost as much again as a small model's answer. A route's `response_model` says the form of its answer
in the document, and checks nothing, since the route returns a `Response`.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import unquote

import orjson
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.convertors import Convertor, register_url_convertor

from fullrank.core.registry import Problem
from fullrank.serving.base import BaseService
from fullrank.serving.guard import ID, KEPT
from fullrank.serving.messages import (
    BatchRequest,
    Body,
    EventsRequest,
    ItemsRequest,
    JsonObject,
    Name,
    PredictRequest,
    RecommendRequest,
    SplitRequest,
    UserRequest,
)
from fullrank.serving.openapi import (
    REFERENCE,
    Alive,
    BatchAnswer,
    Card,
    EventsAnswer,
    ForgottenAnswer,
    Form,
    FoundItems,
    HistoryAnswer,
    ItemAnswer,
    PredictAnswer,
    Ready,
    RecommendAnswer,
    SimilarAnswer,
    TakenItems,
    UserAnswer,
    VersionsAnswer,
)
from fullrank.serving.problems import problem_of
from fullrank.serving.requests import check_most
from fullrank.serving.service import PredictService, Service

PAGE = Path(__file__).with_name("page.html")
K = Annotated[int, Query(ge=1, le=1_000_000)]
B = TypeVar("B", bound=Body)


async def recommend(request: Request) -> Response:
    """The k best items for a user or a history, best first."""
    body = await read(request, RecommendRequest)
    return answer(await service_of(request).recommend(body, request.state.request_id))


async def recommend_batch(request: Request) -> Response:
    """Lists for several users or histories; each is an answer or a problem of its own."""
    service, requests = service_of(request), (await read(request, BatchRequest)).requests
    check_most("requests", len(requests), service.settings.batch_most)

    async def answer_one(single: RecommendRequest) -> JsonObject:
        try:
            return await service.recommend(single)
        except Exception as error:
            return problem_of(error, request_id=request.state.request_id).body(request.state.request_id)

    return answer({"answers": await asyncio.gather(*map(answer_one, requests))})


async def events(request: Request) -> Response:
    """Store what users did. An event that is known already is counted and not stored again."""
    return answer(await service_of(request).add_events(await read(request, EventsRequest)))


async def put_user(request: Request, user: Name) -> Response:
    """Put what the model and its ranker read of a user, in place of what was put before."""
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


async def predict(request: Request) -> Response:
    """The click probability of each row."""
    service: PredictService = request.app.state.service
    return answer(await service.predict(await read(request, PredictRequest), request.state.request_id))


async def alive() -> Response:
    """Whether the process answers at all."""
    return answer({"status": "ok"})


async def ready(request: Request) -> Response:
    """Whether requests can be answered: model open, store reachable, queue not full."""
    body, status = await opened(request).readiness()
    return answer(body, status)


async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
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
    body, versions = await read(request, SplitRequest), opened(request).versions
    await versions.set_split(body.split)
    return answer(versions.describe())


class Page:
    """The page at `GET /` as it lies in the package, read once, and told which family of models it is about.

    It is one static file without build step or outside asset. It holds no secret and no data; what it shows it asks of
    the same service as any client does. Its policy (`policy`, its Content-Security-Policy) lets the browser run nothing
    but the script and the style of this very file (by their hashes) and speak to no other host. `etag` changes with the
    file.
    """

    def __init__(self, problem: Problem = "retrieval", file: Path = PAGE):
        self.body = file.read_bytes().replace(b'data-problem="retrieval"', f'data-problem="{problem}"'.encode(), 1)
        self.etag = f'"{sha256(self.body).hexdigest()[:16]}"'
        script, style = (
            " ".join(
                f"'sha256-{b64encode(sha256(code).digest()).decode()}'" for code in re.findall(tag, self.body, re.S)
            )
            for tag in (b"<script>(.*?)</script>", b"<style>(.*?)</style>")
        )
        self.policy = (
            f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )


def opened(request: Request) -> BaseService[Any]:
    """The service, whichever family it is of."""
    return request.app.state.service


def service_of(request: Request) -> Service:
    """The service of a recommender."""
    return request.app.state.service


async def read(request: Request, kind: type[B]) -> B:
    """The body as one of `messages`. Raises pydantic's `ValidationError`."""
    return kind.model_validate_json(await request.body())


def answer(body: Any, status: int = 200) -> Response:
    """A body as JSON; a value that JSON has no form for (a decimal number of a column) becomes text."""
    return Response(orjson.dumps(body, default=str), status, media_type="application/json")


class IdConvertor(Convertor[str]):
    """`{user:id}` in the path of a route: an id, decoded."""

    regex = ID

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return value.translate(KEPT)


register_url_convertor("id", IdConvertor())


class Route(NamedTuple):
    """One route, as the document shows it too."""

    method: str
    path: str
    endpoint: Callable[..., Awaitable[Response]]
    form: type[Form]
    tag: str
    body: type[Body] | None = None
    """The form that `read` reads; `openapi.completed` adds its schema."""


ROUTES: dict[Problem, tuple[Route, ...]] = {
    "retrieval": (
        Route("POST", "/v1/recommend", recommend, RecommendAnswer, "lists", RecommendRequest),
        Route("POST", "/v1/recommend:batch", recommend_batch, BatchAnswer, "lists", BatchRequest),
        Route("POST", "/v1/events", events, EventsAnswer, "users", EventsRequest),
        Route("GET", "/v1/users/{user:id}/history", history, HistoryAnswer, "users"),
        Route("PUT", "/v1/users/{user:id}", put_user, UserAnswer, "users", UserRequest),
        Route("DELETE", "/v1/users/{user:id}", delete_user, ForgottenAnswer, "users"),
        Route("GET", "/v1/items", search, FoundItems, "items"),
        Route("POST", "/v1/items", put_items, TakenItems, "items", ItemsRequest),
        Route("GET", "/v1/items/{item:id}/similar", similar, SimilarAnswer, "items"),
        Route("GET", "/v1/items/{item:id}", item, ItemAnswer, "items"),
    ),
    "ranking": (Route("POST", "/v1/predict", predict, PredictAnswer, "probabilities", PredictRequest),),
}
"""Problem of the run -> routes of its service alone."""
COMMON = (
    Route("GET", "/v1/versions", listed, VersionsAnswer, "versions"),
    Route("POST", "/v1/versions/check", check, VersionsAnswer, "versions"),
    Route("POST", "/v1/versions/rollback", rollback, VersionsAnswer, "versions"),
    Route("PUT", "/v1/versions/split", split, VersionsAnswer, "versions", SplitRequest),
    Route("POST", "/v1/versions/{name}/activate", activate, VersionsAnswer, "versions"),
    Route("GET", "/healthz", alive, Alive, "operations"),
    Route("GET", "/readyz", ready, Ready, "operations"),
    Route("GET", "/v1/model", model, Card, "operations"),
)


def add_routes(app: FastAPI, problem: Problem) -> None:
    """The routes of a service of this family, and of every service."""
    for method, path, endpoint, form, tag, body in (*ROUTES[problem], *COMMON):
        extra = None
        if body is not None:
            schema = {"$ref": REFERENCE.format(model=body.__name__)}
            extra = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
        app.add_api_route(path, endpoint, methods=[method], response_model=form, tags=[tag], openapi_extra=extra)
    app.head("/healthz", include_in_schema=False)(alive)  # as some balancers ask
    app.head("/readyz", include_in_schema=False)(ready)
    app.get("/metrics", response_class=PlainTextResponse, tags=["operations"])(metrics)
    app.get("/", include_in_schema=False)(page)
