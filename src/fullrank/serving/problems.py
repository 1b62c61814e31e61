"""Problem details (RFC 9457): every error of the service as one JSON body, which shows nothing of the machine inside.

A `UserError` that is `public` tells its sentence under the status of its code. Any other is a 500
whose sentence the log alone has; anything unforeseen is one too, and its traceback goes to the log.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from fullrank.core.errors import UserError, did_you_mean, middle_cut
from fullrank.core.log import logger
from fullrank.core.spec import MEMBER

if TYPE_CHECKING:
    from starlette.responses import Response

log = logger(__name__)

CONTENT_TYPE = "application/problem+json"
TYPE = "urn:fullrank:problem:"
"""Before a code: the `type` of a problem, a name and no address."""
MOST_ERRORS = 20
"""Most mistakes of a body in one answer."""
MOST_DETAIL = 500
"""Characters of one of them."""
STATUS = {
    **dict.fromkeys(("invalid-json", "invalid-host", "invalid-address"), 400),
    **dict.fromkeys(("key-missing", "key-unknown"), 401),
    **dict.fromkeys(("wrong-origin", "scope-missing", "admin-off"), 403),
    "unknown-version": 404,
    "body-too-slow": 408,
    **dict.fromkeys(("version-refused", "version-changed", "version-not-whole", "no-canaries"), 409),
    **dict.fromkeys(("version-cannot-be-opened", "no-former-version", "nothing-watched"), 409),
    "body-too-large": 413,
    "wrong-host": 421,
    **dict.fromkeys(("overloaded", "too-many-open", "rate-exceeded"), 429),
    **dict.fromkeys(("no-version", "service-stopping", "store-unavailable", "deadline"), 503),
}
"""Code of a `UserError` -> status, where it is not 422."""
NAMED_IN_PATH = frozenset({"unknown-item", "unknown-user"})
"""Codes that are 404 where the address names the unknown thing, and 422 where a body (POST) does."""
DETAILS = {"store-unavailable": "the store of histories cannot be read or written at the moment; try again"}
"""Codes whose own sentence is not public -> the sentence in its place."""
COLUMN = "column"
"""Type of a mistake in one value of a row, as pydantic's mistakes have types."""
UNROUTED = ("not-found", "method-not-allowed")
"""Codes of a request that no route takes."""
_HIDDEN: dict[str, re.Pattern[str]] = {}
"""Paths of this process, and their patterns in a sentence (`hide_paths`)."""
NOT_VALID = "it is not valid"
INSIDE = "the service could not do this; its log tells why, under the request_id"
_PLACES = re.compile(
    r"""(?<=['"])~?/(?!v1/)[^'"]+"""  # '/in/quotes'
    r"""|(?<![\w./:<])~?/(?!v1/)(?:[^\s/'"`,;:()<>|]+/)+[^\s/'"`,;:()<>|]*"""  # /without/them
    r"""|(?<![\w])[A-Za-z]:[\\/][^\s'"]+"""
    r"""|\b(?!https?:)[a-z][a-z0-9+.-]*://[^\s'"]+|\bhttps?://[^\s'"/]*@[^\s'"]+"""
)


@dataclass(frozen=True, slots=True)
class ProblemDetails:
    """One error as the client gets it."""

    status: int
    code: str
    detail: str
    errors: tuple[dict[str, str], ...] = ()
    """Mistakes of a body or of parameters: where (`pointer`, or `parameter` and `in`), and the sentence (`detail`)."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, request_id: str | None) -> dict[str, Any]:
        """The members of the JSON object."""
        members = {
            "type": TYPE + self.code,
            "title": self.code.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "request_id": request_id,
        }
        return members | {"errors": list(self.errors)} if self.errors else members

    def response(self, request_id: str | None) -> Response:
        from starlette.responses import Response

        return Response(json.dumps(self.body(request_id)), self.status, dict(self.headers), CONTENT_TYPE)


def problem_of(error: BaseException, *, method: str = "POST", request_id: str | None = None) -> ProblemDetails:
    """The answer to a request (of this HTTP method) that ended in an exception; what no
    client may learn is logged."""
    if isinstance(error, UserError):
        return _of_user_error(error, method, request_id)
    if isinstance(error, ValidationError):
        return _of_validation(error.errors(include_url=False, include_input=False), error.title)
    if callable(errors := getattr(error, "errors", None)):  # FastAPI's RequestValidationError
        return _of_validation(errors())
    status, detail = getattr(error, "status_code", None), getattr(error, "detail", None)
    if isinstance(status, int):  # Starlette's HTTPException
        return _of_status(status, detail, getattr(error, "headers", None) or {})
    log.error(f"request {request_id} ended in a bug: {type(error).__name__}", exc_info=error)
    return ProblemDetails(500, "internal", INSIDE)


def install(app: Any) -> None:
    """Have a FastAPI app answer its own errors (no route, no method, a body that does not fit) in this form too.

    A `UserError` of a route goes on to `Guard`, which tells it, and counts it.
    """
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    async def tell(request: Request, error: Exception) -> Response:
        request_id = request.scope.get("state", {}).get("request_id")
        problem = problem_of(error, method=request.method, request_id=request_id)
        if problem.code in UNROUTED:
            allowed = ""
            if methods := ", ".join(sorted(allowed_methods(request.scope))):
                allowed, problem = f" (allowed: {methods})", replace(problem, headers={"Allow": methods})
            route = f"{request.method} at {middle_cut(request.url.path)}{allowed}"
            problem = replace(problem, detail=f"no {route}: /openapi.json lists all routes")
        return problem.response(request_id)

    for kind in (RequestValidationError, HTTPException):
        app.add_exception_handler(kind, tell)


def allowed_methods(scope: Mapping[str, Any]) -> set[str]:
    """The methods that routes of the app have at the path of a request."""
    routes = [route for route in scope["app"].router.routes if route.matches(scope)[0].value]
    return {method for route in routes for method in route.methods}


def hide_paths(paths: Iterable[str]) -> None:
    """Keep these absolute paths, and those below them, out of all answers, also where they hold spaces."""
    known = {*_HIDDEN, *(path for path in paths if len(path) > 1)}
    _HIDDEN.clear()  # longer ones first, of which shorter ones are the beginning
    _HIDDEN.update((path, re.compile(rf"{re.escape(path)}[^\s'\"]*")) for path in sorted(known, key=len, reverse=True))


def without_paths(text: str) -> str:
    """A sentence without paths of this machine and addresses of its stores."""
    for hidden in _HIDDEN.values():
        text = hidden.sub("...", text)
    return _PLACES.sub("...", text)


def _of_user_error(error: UserError, method: str, request_id: str | None) -> ProblemDetails:
    """The answer to a `UserError`: its own sentence where it may be told, else a 500
    or the sentence of `DETAILS`."""
    code = error.code
    headers: dict[str, str] = {}
    if not error.public and code not in DETAILS:
        log.error(f"request {request_id} was refused ({code}): {error}")
        return ProblemDetails(500, code, INSIDE)
    status = STATUS.get(code, 422)
    if code in NAMED_IN_PATH and method != "POST":
        status = 404
    if status in (429, 503):
        headers["Retry-After"] = str(max(1, math.ceil(getattr(error, "retry_after", 1))))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"  # what is left of the body is not read
    if code in DETAILS:
        log.warning(f"request {request_id}: {error}")
    return ProblemDetails(status, code, DETAILS.get(code) or without_paths(str(error)), headers=headers)


def _of_status(status: int, detail: Any, headers: Mapping[str, str]) -> ProblemDetails:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "error"
    code = re.sub(r"[^a-z]+", "-", phrase.lower()).strip("-")
    sentence = without_paths(middle_cut(detail, MOST_DETAIL)) if isinstance(detail, str) else phrase
    return ProblemDetails(status, code, sentence, headers=dict(headers))


def _of_validation(mistakes: Iterable[Mapping[str, Any]], model: str = "") -> ProblemDetails:
    """The answer to a body or to parameters that do not fit, with the mistakes by their places."""
    by_location: dict[tuple[str, str], list[str]] = {}
    unread = False
    for mistake in mistakes:
        unread = unread or mistake.get("type") == "json_invalid"
        where = _location(mistake.get("loc", ()), mistake.get("type"))
        sentences = by_location.setdefault(where, [])
        sentence = _sentence(mistake, model)
        if sentence not in sentences:
            sentences.append(sentence)
    # Of a union, the member that fits but for something inside it says more than "or a text, or a
    # number".
    inner = [name for source, name in by_location if source == "body"]
    for name in [name for name in inner if name != "#" and any(other.startswith(f"{name}/") for other in inner)]:
        del by_location["body", name]
    errors = tuple(
        ({"pointer": name} if source == "body" else {"parameter": name, "in": source}) | {"detail": "; or ".join(texts)}
        for (source, name), texts in list(by_location.items())[:MOST_ERRORS]
    )
    first = errors[0] if errors else {"pointer": "#", "detail": NOT_VALID}
    more = f" (and {len(by_location) - 1} more, see errors)" if len(by_location) > 1 else ""
    detail = f"{first.get('pointer') or first.get('parameter')}: {first['detail']}{more}"
    return ProblemDetails(400 if unread else 422, "invalid-json" if unread else "invalid-request", detail, errors)


def _location(loc: Iterable[Any], kind: str | None) -> tuple[str, str]:
    """(`body`, a JSON pointer), or (`query`, the parameter's name), of a mistake of this kind."""
    parts = [] if kind == "json_invalid" else list(loc)
    source = str(parts.pop(0)) if parts and parts[0] in ("body", "query", "path", "header", "cookie") else "body"
    if source != "body":
        return source, middle_cut(str(parts[0]) if parts else "", 100)
    exact = kind == COLUMN  # a column may have any name
    steps = [str(part) for part in parts if exact or not (isinstance(part, str) and _is_member(part))]
    return source, middle_cut("#" + "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in steps))


def _is_member(part: str) -> bool:
    """Whether a step of the way to a mistake is no step in the body, but pydantic's
    name of a member of a union."""
    return MEMBER.fullmatch(part) is not None or part == "bool" or part in _models()


@cache
def _models() -> dict[str, type[BaseModel]]:
    """All pydantic models by their names, which are those of the members of a union."""
    kinds, front = set[type](), [BaseModel]
    while front:
        for kind in front.pop().__subclasses__():
            if kind not in kinds:
                kinds.add(kind)
                front.append(kind)
    return {kind.__name__: kind for kind in kinds}


def _unknown(model: str, loc: Sequence[Any]) -> str:
    """The sentence for a key that a body does not have, with the keys that it has."""
    kind = _models().get(model)
    for part in loc[:-1]:
        if kind is not None and isinstance(part, str) and not _is_member(part):
            kind = _model_in(kind.model_fields[part].annotation) if part in kind.model_fields else None
    if kind is None:
        return "there is no such field"
    names = [field.alias or name for name, field in kind.model_fields.items()]
    return f"there is no such field{did_you_mean(loc[-1], names)} (allowed: {', '.join(names)})"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation names somewhere."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((kind for part in get_args(annotation) if (kind := _model_in(part)) is not None), None)


def _sentence(mistake: Mapping[str, Any], model: str) -> str:
    """The sentence of pydantic's mistake, or of a `UserError` of ours inside;
    never the value that was given."""
    inner = (mistake.get("ctx") or {}).get("error")
    if isinstance(inner, UserError):
        return without_paths(middle_cut(str(inner), MOST_DETAIL)) if inner.public else NOT_VALID
    if mistake.get("type") == "json_invalid":
        return f"the body is not JSON ({middle_cut(str(inner), MOST_DETAIL)})" if inner else "the body is not JSON"
    if mistake.get("type") == "extra_forbidden":
        return _unknown(model, mistake["loc"])
    text = str(mistake.get("msg", NOT_VALID)).removeprefix("Value error, ")
    return without_paths(middle_cut(text[:1].lower() + text[1:], MOST_DETAIL))
