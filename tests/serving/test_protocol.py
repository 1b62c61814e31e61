"""What a connection sends for ever, or slowly for ever, ends that connection: nobody else's, and it fills no memory."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, product, repeat
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fullrank.serving import guard, protocol
from fullrank.serving.client import Client
from fullrank.serving.keys import add_key
from fullrank.serving.limits import LimitedBody
from serving.conftest import Shop
from serving.running import running

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
MUCH = 60_000

SENT = {
    "blank lines": (b"", b"\r\n"),
    "a method": (b"", b"A"),
    "an address": (b"GET /", b"a"),
    "a header": (HEAD + b"X: ", b"a"),
    "headers": (HEAD, b"X: a\r\n"),
    "a body": (POST + b"Content-Length: 100000000000000\r\n\r\n", b" "),
    "a body that nothing asked for": (HEAD + b"Content-Length: 100000000000000\r\n\r\n", b" "),
    "a chunk": (CHUNKED + b"ffffffffffff\r\n", b" "),
    "chunks": (CHUNKED, b"10\r\n" + b" " * 16 + b"\r\n"),
    "a length": (CHUNKED, b"0"),
    "an extension": (CHUNKED + b"1;", b"a"),
    "a trailer": (CHUNKED + b"0\r\nX: ", b"a"),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"X: a\r\n"),
    "blank lines behind an answer": (HEAD + b"\r\n", b"\r\n"),
    "another protocol": (HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"\x81\x7f"),
    "a tunnel": (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"a"),
}
"""What a connection begins with, and goes on with for ever."""


@pytest.fixture(scope="module")
def guarded(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """A service that asks for a key, which no test here has: its answer goes out before a body comes."""
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    add_key(keys, "shop")
    with running(run=str(shop.run.path), keys=str(keys)) as client:
        yield client


def connected(service: Client) -> socket.socket:
    address = urlsplit(service.url)
    return socket.create_connection((address.hostname, address.port), timeout=10)


def lasted(service: Client, parts: Iterator, pause: float, most: float) -> float:
    """Seconds until a connection is ended that sends these parts for ever, and reads what is answered."""
    begun = time.monotonic()
    with connected(service) as connection:
        gone = threading.Event()

        def read() -> None:
            with suppress(OSError):
                while connection.recv(1 << 16):
                    pass
            gone.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            while not gone.wait(pause) and time.monotonic() - begun < most:
                connection.sendall(next(parts))
        except OSError:
            gone.set()
        took = time.monotonic() - begun
        if not gone.is_set():
            connection.shutdown(socket.SHUT_RDWR)
        reader.join()
    return took


def memory() -> float:
    """MiB of this process, in which the service runs."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of patience in place of minutes."""
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(protocol, name, 0.5)
    monkeypatch.setattr(guard, "LimitedBody", lambda receive, most, _: LimitedBody(receive, most, 0.5))


def test_whatever_is_sent_for_ever_ends_and_fills_no_memory(service: Client, guarded: Client, quick: None) -> None:
    for (name, (first, more)), client in product(SENT.items(), (service, guarded)):
        at_first = memory()
        took = lasted(client, chain([first], repeat(more * (MUCH // len(more)))), 0, 30)
        assert took < 20, f"{name}: sent for ever, with keys: {client is guarded}"
        assert memory() - at_first < 50, f"{name}: MiB of memory, with keys: {client is guarded}"


def test_whatever_is_sent_slowly_for_ever_ends(service: Client, guarded: Client, quick: None) -> None:
    def took(case: tuple) -> float:
        (first, more), client = case
        return lasted(client, chain([first], repeat(more)), 0.1, 30)

    cases = list(product([*SENT.values(), (b"", b"")], (service, guarded)))
    with ThreadPoolExecutor(len(cases)) as threads:
        slow = [case for case, seconds in zip(cases, threads.map(took, cases), strict=True) if seconds > 20]
    assert not slow


def test_requests_of_one_connection_wait_in_bounded_number(service: Client) -> None:
    at_first = memory()
    lasted(service, repeat((HEAD + b"\r\n") * 2000), 0, 3)
    assert memory() - at_first < 50
    with connected(service) as connection:  # a few at once are answered in their order
        connection.sendall((HEAD + b"\r\n") * protocol.MOST_WAITING)
        received(connection, lambda found: found.count(b"200 OK") == protocol.MOST_WAITING)


def test_who_takes_no_answer_is_let_go(service: Client, quick: None) -> None:
    with connected(service) as connection, pytest.raises(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(200):
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
            time.sleep(0.05)


def test_a_kept_connection_has_as_long_for_each_request(service: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    with connected(service) as slow, connected(service) as silent, connected(service) as good:
        slow.sendall(HEAD)
        for _ in range(2):
            good.sendall(HEAD + b"\r\n")
            assert b"200 OK" in answer(good)
            time.sleep(0.5)
        good.sendall(POST + b"Content-Length: 15\r\n\r\n{")
        time.sleep(0.5)  # a body has a time of its own
        good.sendall(b'"history": []}')
        assert b"200 OK" in answer(good)
        good.sendall(CHUNKED + b'f\r\n{"history": []}\r\n0\r\nX-Sum: 1\r\n\r\n')
        assert b"200 OK" in answer(good), "trailers are no mistake"
        assert ended(slow) and ended(silent)
        good.sendall(HEAD)
        assert ended(good)


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def received(connection: socket.socket, whole: Callable) -> bytes:
    """What comes, in however many parts, until it is `whole`."""
    found = b""
    while not whole(found):
        part = connection.recv(1 << 16)
        assert part, f"ended after {found!r}"
        found += part
    return found


def answer(connection: socket.socket) -> bytes:
    """A whole answer: its head and as much as that says of body."""
    return received(connection, is_whole)


def is_whole(found: bytes) -> bool:
    head, blank, body = found.partition(b"\r\n\r\n")
    return bool(blank) and len(body) >= int(head.lower().partition(b"content-length:")[2].split()[0])
