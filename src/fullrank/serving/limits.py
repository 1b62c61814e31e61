"""Limits of requests: where the service listens, by which name it is called, how fast, and how much.

`Guard` (`serving/guard.py`) asks them in their order for every request.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any

from fullrank.core.errors import UserError, brief

MOST_BUCKETS = 10_000
"""Callers whose rate is remembered; beyond that, those that were quiet longest are forgotten."""
MOST_ADDRESS = 64
"""Characters of a caller's name that are kept, where a proxy gives one that is no address."""

Receive = Callable[[], Awaitable[Any]]


def check_exposure(host: str, keys: object | None) -> None:
    """Raise `UserError` where the service would answer other machines (it listens on `host`) without keys."""
    if keys is None and not is_loopback(host):
        raise UserError(
            f"listening on {host!r} lets other machines in, and without keys anybody may read and write: make a key "
            "(`fullrank keys add FILE --name NAME`) and give --keys FILE, or listen on 127.0.0.1",
            code="exposed-without-keys",
        )


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, is this machine's alone."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_network(text: str) -> bool:
    """Whether a text is an IP address, or a network in CIDR notation."""
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


class HostRule:
    """Names by which the service may be called where it asks for no key, so that no web page can speak to it.

    A page of another site may point its own name at 127.0.0.1 (DNS rebinding): the Host header
    tells. It may also post without reading the answer: Origin and Sec-Fetch-Site tell.
    """

    def __init__(self, names: Iterable[str] = ()):
        self.names = frozenset({"localhost", *(name.lower().rstrip(".") for name in names)})

    def check(self, method: str, headers: dict[bytes, bytes]) -> None:
        """Raise `UserError` for the headers of a request that is not meant for this service."""
        host = headers.get(b"host")
        if not host:
            raise UserError("the request has no Host header; HTTP asks for one", code="invalid-host", public=True)
        name = _name_of(host)
        if not self._allows(name):
            raise UserError(
                f"this service is not called {brief(name)}: without keys it answers to localhost, and to names given "
                "by --set hosts=[NAME]",
                code="wrong-host",
                public=True,
            )
        if method in ("GET", "HEAD"):
            return
        origin = headers.get(b"origin")
        if (origin is not None and not self._allows(_name_of(origin.partition(b"://")[2]))) or (
            headers.get(b"sec-fetch-site") == b"cross-site"
        ):
            raise UserError("a web page of another site may not call this service", code="wrong-origin", public=True)

    def _allows(self, name: str) -> bool:
        return name in self.names or is_loopback(name)


def _name_of(host: bytes) -> str:
    """A Host header, or the part of an Origin behind its scheme, without the port."""
    text = host[:300].decode("latin-1").lower()
    return text.partition("]")[0].lstrip("[") if text.startswith("[") else text.partition(":")[0].rstrip(".")


class RateLimit:
    """A token bucket for each caller: `rate` requests a second, and up to `burst` of them at once.

    Its memory is bounded. Each process counts for itself, so a caller may have up to `rate` of
    every one.
    """

    def __init__(self, rate: float, burst: int, most: int = MOST_BUCKETS, clock: Callable[[], float] = time.monotonic):
        self.rate, self.burst, self.most = rate, float(max(1, burst)), most
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Count a request: 0 where it may go on, else the seconds until one more may."""
        now = self._clock()
        bucket = self._buckets.get(name)
        if bucket is None:
            tokens = self.burst
            if len(self._buckets) >= self.most:
                self._buckets.popitem(last=False)
        else:
            tokens = min(self.burst, bucket[0] + (now - bucket[1]) * self.rate)
            self._buckets.move_to_end(name)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self.rate
        self._buckets[name] = (tokens - 1 if tokens >= 1 else tokens, now)
        return wait

    def check(self, name: str) -> None:
        """Count a request. Raises `TooFast` where it has to wait."""
        wait = self.take(name)
        if wait > 0:
            raise TooFast(self.rate, wait)


class TooFast(UserError):
    """More requests than the rate of one caller; `retry_after` is in seconds."""

    def __init__(self, rate: float, wait: float):
        super().__init__(
            f"at most {rate:g} requests a second; come back in {wait:.1f} s", code="rate-exceeded", public=True
        )
        self.retry_after = wait


@lru_cache(maxsize=4096)
def caller_of(address: str) -> str:
    """The caller that an address counts for: an IPv6 address for its /64, which one customer has to itself."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:MOST_ADDRESS]
    if ip.version == 6 and ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ip if ip.version == 4 else ip_network((ip, 64), strict=False))


class LimitedBody:
    """`receive` of a request that stops once its body has too many bytes, by whatever framing, or comes too slowly.

    `error` then says which. The framework turns what is raised here into another error,
    so `Guard` reads `error`.
    """

    __slots__ = ("error", "_receive", "_left", "_most", "_until", "_seconds", "_over")

    def __init__(self, receive: Receive, most: int, seconds: float):
        self.error: UserError | None = None
        self._receive, self._left, self._most, self._seconds = receive, most, most, seconds
        self._until = asyncio.get_running_loop().time() + seconds
        self._over = False

    async def __call__(self) -> Any:
        if self._over:  # waits for the client to leave
            return await self._receive()
        if self.error is not None:
            raise self.error
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            self.error = UserError(
                f"the body did not come within {self._seconds:g} seconds", code="body-too-slow", public=True
            )
            raise self.error from None
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            self._over = not message.get("more_body", False)
            if self._left < 0:
                self._over, self.error = False, too_large(self._most)
                raise self.error
        return message


def too_large(most: int) -> UserError:
    """The error for a body of too many bytes."""
    return UserError(f"a body may have {most:,} bytes at most; send less at once", code="body-too-large", public=True)
