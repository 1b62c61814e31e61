"""HTTP protocol of the service: uvicorn's on httptools, with bounds on the head of a request.

What comes behind the head is bounded by `Guard`, which is asked once a head is whole; httptools keeps any number of
bytes of a head, for any time, of whoever can connect.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 1 << 16
"""Bytes of the request line and headers, about: what came with the end of the body before it counts too."""
HEAD_SECONDS = 20.0
"""Seconds within which they have to come, once a connection is open or a request has begun."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. It is closed without an answer where a head is too long or too slow."""

    _in_head = True
    """Whether the head of a request is what comes next, or has begun."""
    _head = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head = True, 0
        super().on_message_complete()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and self._timer is not None:  # a request has begun, and is not whole
            self._head += len(data)
            if self._head > MOST_HEAD:
                self._drop()

    def _expect(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._drop)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self) -> None:
        self._cancel()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
