"""HTTP protocol of the service: uvicorn's on httptools, with bounds on all that a connection may bring or hold up.

`Guard` bounds the body that an app reads. The parser would keep any number of bytes of a head or of
trailers, and any number of requests that wait behind one; what comes outside of a request, or
behind an answer that read no body, is asked for by no app. So bytes and seconds are counted here,
for whoever can connect. A connection that goes beyond them is ended without an answer.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 1 << 16
"""Bytes, about, of a request line with headers, of blank lines before it, of the extensions of a chunk, of trailers."""
MOST_BODY = 1 << 30
"""Bytes of a body, where nothing else is said."""
MOST_WAITING = 64
"""Requests of one connection that wait for the answer to the one before."""
HEAD_SECONDS = 20.0
"""Seconds within which a head has to come, once a connection is open or a request has begun."""
BODY_SECONDS = 20.0
"""Seconds within which the rest of a request has to come once its head is there."""
ANSWER_SECONDS = 60.0
"""Seconds within which a client has to take what was sent to it."""


class Stage(Enum):
    """The next part of a request that a connection brings."""

    REQUEST = "the first byte of a request"
    HEAD = "the rest of its head"
    BODY = "its body and trailers"


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A request may have `most_body` bytes, those that come after its answer included."""

    def __init__(self, *arguments: Any, most_body: int = MOST_BODY, **more: Any):
        super().__init__(*arguments, **more)
        # Guard answers whoever sends more, while an app reads; here bytes are counted
        # whether anyone reads or not
        self._most_body = most_body + MOST_HEAD
        self._stage = Stage.REQUEST
        self._steps = 0
        """Times that the parser advanced: a request began, its head was whole, some of its body came, it was whole."""
        self._since = 0
        """Bytes since the last step."""
        self._body = 0
        """Bytes of the body so far."""
        self._timer: asyncio.TimerHandle | None = None
        """When the head, or the body, has to be there."""
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._steps
        super().data_received(data)
        if self._steps != before:
            self._since = 0
        else:
            self._since += len(data)
            if self._since > MOST_HEAD:
                self._end()
        # blank lines before a request are no step, and a request has to follow them
        if self._timer is None and (self._stage is not Stage.REQUEST or self._steps == before):
            self._expect()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._step(Stage.HEAD)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage is Stage.HEAD:  # trailers are read by nobody
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._cancel()
        self._step(Stage.BODY)
        self._body = 0
        super().on_headers_complete()
        if len(self.pipeline) > MOST_WAITING:
            self._end()
            raise ConnectionAbortedError("requests that wait")  # the parser goes no further

    def on_body(self, body: bytes) -> None:
        self._step(Stage.BODY)
        self._body += len(body)
        if self._body > self._most_body:
            self._end()
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._cancel()
        self._step(Stage.REQUEST)
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(ANSWER_SECONDS, self._end)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _step(self, stage: Stage) -> None:
        self._stage = stage
        self._steps += 1

    def _expect(self) -> None:
        self._cancel()
        if not self.transport.is_closing():
            seconds = BODY_SECONDS if self._stage is Stage.BODY else HEAD_SECONDS
            self._timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # its app says so where it waits for a body, and what has to wait for an answer is not
            # late
            self._timer = self.loop.call_later(1.0, self._late)
        else:
            self._end()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._cancel()
        self.transport.abort()
