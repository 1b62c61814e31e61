"""Routes of the service: a file for each family of models and one for what all have, a shell around the service.

A file has ``add(app)``. Bodies are read by pydantic from the raw bytes and answers are written by orjson: FastAPI's own
reading of bodies and its response models cost as much again as a small model's answer.
"""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import unquote

import orjson
from fastapi import Request, Response
from starlette.convertors import Convertor, register_url_convertor

from fullrank.serving.addresses import ID, KEPT
from fullrank.serving.base import BaseService
from fullrank.serving.messages import Body
from fullrank.serving.service import Service

B = TypeVar("B", bound=Body)


class IdConvertor(Convertor[str]):
    """`{user:id}` in the path of a route: an id, decoded."""

    regex = ID

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return value.translate(KEPT)


register_url_convertor("id", IdConvertor())


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
    """A body as JSON; what JSON has no form for (a decimal number of a column) is told as text."""
    return Response(orjson.dumps(body, default=str), status, media_type="application/json")


def takes(kind: type[Body]) -> dict[str, Any]:
    """What OpenAPI is told of a route whose body is read by `read`; `openapi.completed` adds the schema."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
