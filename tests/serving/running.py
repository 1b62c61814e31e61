"""A service on a free port, in a thread of the test's process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from fullrank.serving.client import Client
from fullrank.serving.server import build_app, uvicorn_options
from fullrank.serving.settings import ServeSettings


def items_of(answer: dict) -> list:
    """Ids of an answer's list."""
    return [shown["item"] for shown in answer["items"]]


def scores_of(answer: dict) -> list:
    return [shown["score"] for shown in answer["items"]]


@contextmanager
def running(**settings) -> Iterator:
    """A client of a service with these settings; the service ends behind the block."""
    given = ServeSettings.parse({"store": "memory:", "port": 0, **settings})
    with serving(build_app(given), **uvicorn_options(given)) as url:
        yield Client(url)


@contextmanager
def serving(app, **options) -> Iterator:
    """The address of an app that runs in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive() and time.monotonic() < end, "the service did not start"
        time.sleep(0.01)
    (socket,) = server.servers[0].sockets
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the service did not stop"


def until(holds: Callable, seconds: float = 5.0) -> bool:
    """Whether something holds before the time is over."""
    end = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(found)
