"""Guard: the ASGI middleware that every request passes, in one layer since each layer costs on the hot path.

In this order: request id, host and origin, key and scope, rate, requests in flight, size of the
body; then the app; then the headers of the response, the metrics and the access log. An exception
becomes a problem (RFC 9457).

An id in an address is one part of a path, percent-encoded, so that every id that can be stored can
be named. A server is given a path decoded, in which the slash of `ann%2Fhistory` parts as
`ann/history` does. So `routed_path` keeps that slash apart, and routes declare an id as
`{user:id}` (`routes.py`). A plain slash inside an id is accepted too, unless what follows it is
the name of a route below the id.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from itertools import count
from secrets import token_hex
from typing import Any
from urllib.parse import unquote

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.serving.keys import Access, Key, scope_of
from fullrank.serving.limits import LimitedBody, RateLimit, caller_of, too_large
from fullrank.serving.problems import allowed_methods, problem_of
from fullrank.serving.telemetry import Telemetry, Tracing, log_access

log = logger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

UNLIMITED = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths without a rate, answered also when all others are shed."""
SAFE: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every response."""
NO_PAGE = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""Headers of every response that is not a page: answers are about users, and no cache keeps them."""
BODY_SECONDS = 20.0
"""Seconds within which a body has to come."""
IN_FLIGHT = 10_000
"""Most requests at once."""
CLIENT_GONE = 499
"""Status in metrics and log of a request whose client left before the answer."""
UNMATCHED = "unmatched"
"""Route in metrics and log of a request that none of the app's routes took, or that was refused before."""
BELOW = ("history", "similar")
"""Last parts of a path, behind an id, that are no part of it: names of routes."""
ID = rf"(?:[^/]+|.+/(?!(?:{'|'.join(BELOW)})$)[^/]+)"
"""Regular expression of an id in a routed path, to be unquoted."""
KEPT = {ord(sign): f"%{ord(sign):02X}" for sign in "%/\n"}
"""Signs that stay encoded there; "." of a regular expression takes no newline."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Guard:
    """ASGI middleware around the whole app. It puts `request_id` and `key` (a `Key` or None) into `request.state`.

    `pages` gives the Content-Security-Policy of paths that are pages (`routes.Page.policy`). A
    request takes at most `body_most` bytes within `BODY_SECONDS`; more than `IN_FLIGHT` at once are
    told to come back.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        access: Access,
        rate: RateLimit | None = None,
        body_most: int = 1 << 20,
        pages: Mapping[str, str] | None = None,
        telemetry: Telemetry | None = None,
        access_log: bool = False,
        tracing: Tracing | None = None,
    ):
        self.app, self.access, self.rate, self.body_most = app, access, rate, body_most
        self.telemetry, self.access_log, self.tracing = telemetry or Telemetry(), access_log, tracing
        self.running = 0
        """Requests between their start and the end of their response."""
        self._pages = {
            path: ((b"content-security-policy", policy.encode()), (b"cache-control", b"no-cache"))
            for path, policy in (pages or {}).items()
        }
        self._ids = count()
        self._prefix = token_hex(5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        sent_id = headers.get(b"x-request-id")
        if sent_id is not None and _REQUEST_ID.fullmatch(sent_id):
            request_id = sent_id.decode()
        else:
            request_id = f"{self._prefix}-{next(self._ids):x}"
        path, method = scope["path"], scope["method"]
        state = scope.setdefault("state", {})
        state["request_id"], state["key"] = request_id, None
        added = (*SAFE, *self._pages.get(path, NO_PAGE), (b"x-request-id", request_id.encode()))
        body: LimitedBody | None = None
        status, started = 0, False

        async def send_marked(message: Any) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        async def send_answer(message: Any) -> None:
            if started or body is None or body.error is None:  # else it is the app's answer to a body that was cut off
                await send_marked(message)

        async def refuse(error: BaseException) -> None:
            problem = problem_of(error, method=method, request_id=request_id)
            if problem.code in SHED:
                self.telemetry.shed(SHED[problem.code])
            elif problem.code == "store-unavailable":
                self.telemetry.store_errors.inc()
            await problem.response(request_id)(scope, receive, send_marked)

        self.running += 1
        try:
            state["key"] = self._admit(scope, method, headers)
            if b"content-length" in headers or b"transfer-encoding" in headers:
                body = self._body(headers, receive)
                receive = body
            if self.tracing is None:
                await self.app(scope, receive, send_answer)
            else:
                with self.tracing.request(scope, headers, request_id):
                    await self.app(scope, receive, send_answer)
            if body is not None and body.error is not None and not started:
                await refuse(body.error)
        except Exception as error:
            if type(error).__name__ == "ClientDisconnect":
                status = CLIENT_GONE
            elif started:
                log.error(f"request {request_id} broke off in the middle of its response", exc_info=error)
                raise
            else:
                await refuse(body.error if body is not None and body.error is not None else error)
        finally:
            self.running -= 1
            self._tell(scope, status or CLIENT_GONE, time.perf_counter() - begun)

    def _admit(self, scope: Scope, method: str, headers: dict[bytes, bytes]) -> Key | None:
        """Everything that is decided before the body: the key of the
        request. Raises `UserError`."""
        if self.access.hosts is not None:
            self.access.hosts.check(method, headers)
        if b"%" in (raw := scope.get("raw_path") or b""):
            scope["path"] = routed_path(raw)
        path, root = scope["path"], scope.get("root_path")
        if root:
            path = path.removeprefix(root)
        try:
            needed = scope_of(method, path)
            if needed == "admin" and method not in allowed_methods(scope):
                needed = None  # the app says that there is no such route, which no key would change
            key = self.access.check(headers.get(b"authorization"), needed)
        except UserError:
            self._count(scope, None)  # a caller who tries keys has a rate too
            raise
        if path in UNLIMITED:
            return key
        self._count(scope, key)
        if self.running > IN_FLIGHT:
            raise UserError(
                f"{IN_FLIGHT:,} requests are being answered; come back in a second", code="too-many-open", public=True
            )
        return key

    def _count(self, scope: Scope, key: Key | None) -> None:
        if self.rate is not None:
            client = scope.get("client")
            self.rate.check(f"key {key.name}" if key is not None else caller_of(client[0] if client else ""))

    def _body(self, headers: dict[bytes, bytes], receive: Receive) -> LimitedBody:
        length = headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length[:20]) > self.body_most:
            raise too_large(self.body_most)
        return LimitedBody(receive, self.body_most, BODY_SECONDS)

    def _tell(self, scope: Scope, status: int, spent: float) -> None:
        route = getattr(scope.get("route"), "path_format", UNMATCHED)
        self.telemetry.request(route, scope["method"], status, spent)
        if self.access_log:
            log_access(scope, route, status, spent)


SHED = {
    "overloaded": "queue",
    "deadline": "deadline",
    "too-many-open": "open",
    "rate-exceeded": "rate",
    "body-too-large": "body",
    "body-too-slow": "body",
}
"""Code -> reason under which the request counts as shed."""


def routed_path(raw: bytes) -> str:
    """The path by which a request is routed, made of the one that was sent.

    It is decoded but for percent signs, slashes and newlines inside its parts.

    Raises `UserError` for what is no UTF-8.
    """
    try:
        parts = [unquote(part, errors="strict") for part in raw.decode("ascii").split("/")]
    except UnicodeDecodeError:
        raise UserError(
            "the address is no UTF-8: percent-encode ids as encodeURIComponent does",
            code="invalid-address",
            public=True,
        ) from None
    return "/".join(part.translate(KEPT) for part in parts)
