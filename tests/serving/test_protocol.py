"""Heads of requests that are too long or too slow end their connection, and nobody else's."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import pytest

from fullrank.serving import protocol
from fullrank.serving.client import Client

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


def connected(service: Client) -> socket.socket:
    address = urlsplit(service.url)
    assert address.hostname is not None and address.port is not None
    return socket.create_connection((address.hostname, address.port), timeout=10)


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def answer(connection: socket.socket) -> bytes:
    """A whole answer: its head and as much as that says of body, in however many parts they come."""
    found = b""
    while b"\r\n\r\n" not in found or len(found.split(b"\r\n\r\n", 1)[1]) < _length(found):
        part = connection.recv(4096)
        assert part, f"ended after {found!r}"
        found += part
    return found


def _length(found: bytes) -> int:
    return int(found.lower().split(b"content-length:")[1].split(b"\r\n")[0])


def test_heads_have_bounds(service: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(service) as long, pytest.raises(OSError):
        long.sendall(HEAD)
        for _ in range(100):
            long.sendall(b"X-More: " + b"a" * 60_000 + b"\r\n")
            time.sleep(0.01)
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    with connected(service) as slow, connected(service) as silent, connected(service) as good:
        slow.sendall(HEAD)
        for _ in range(2):  # a connection that is kept has as long for its next head
            good.sendall(HEAD + b"\r\n")
            assert b"200 OK" in answer(good)
            time.sleep(0.5)
        good.sendall(b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{")
        time.sleep(0.5)  # a body is none of its business
        good.sendall(b'"history": []}')
        assert b"200 OK" in answer(good)
        assert ended(slow) and ended(silent)
        good.sendall(HEAD)
        assert ended(good)
