"""Several processes on one port: uvicorn's supervisor, which says when all of them answer and whether they could."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection, parent_process
from pathlib import Path
from socket import socket
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from fullrank.core.errors import UserError
from fullrank.core.files import write_json
from fullrank.core.readers import read_json

END_SECONDS = 25.0
"""Seconds until a process that was told to stop, and hangs, is ended."""


def end_with_parent() -> None:
    """Stop this process once the one that started it is gone, killed or not: nobody else would, and it has the port.

    Open requests are answered as after SIGTERM.
    """
    parent = parent_process()
    assert parent is not None, "for processes that multiprocessing started"

    def watch() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(END_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="fullrank-parent", daemon=True).start()


class Processes(Multiprocess):
    """As many processes as `config` says; one that dies later is started again."""

    def __init__(self, config: uvicorn.Config, socket: socket, started: Callable[[], None]):
        super().__init__(config, sockets=[socket])
        self._say_started: Callable[[], None] | None = started

    def keep_subprocess_alive(self) -> None:
        """Called twice a second."""
        super().keep_subprocess_alive()
        if self._say_started is not None and not self.failed and all(one.is_ready() for one in self.processes):
            self._say_started()
            self._say_started = None

    @property
    def failed(self) -> bool:
        """Whether a process could not open the service; then all are stopped."""
        return any(one.exitcode == STARTUP_FAILURE for one in self.processes)


FILE = "FULLRANK_SERVE_FAILURE"
"""Variable that names the file in which a process of several says why it did not start."""


@contextmanager
def quiet_failure(app: Any) -> Iterator[None]:
    """Keep uvicorn from logging what `app.state.failure` says in one sentence."""

    def unsaid(_: logging.LogRecord) -> bool:
        return getattr(app.state, "failure", None) is None

    log = logging.getLogger("uvicorn.error")
    log.addFilter(unsaid)
    try:
        yield
    finally:
        log.removeFilter(unsaid)


@contextmanager
def told_failure() -> Iterator[Callable[[], UserError]]:
    """A place where processes that are started inside the block say why they did not open, and what reads it."""
    with tempfile.TemporaryDirectory(prefix="fullrank-serve-") as folder:
        file = Path(folder, "failure.json")

        def read() -> UserError:
            if not file.exists():
                return UserError("a process of the service did not start; the log says why", code="not-started")
            told = read_json(file)
            return UserError(told["sentence"], code=told["code"])

        os.environ[FILE] = str(file)
        try:
            yield read
        finally:
            del os.environ[FILE]


def tell_failure(error: UserError) -> None:
    """Leave to the parent why this process of several does not open; nothing where it has no parent."""
    if file := os.environ.get(FILE):
        logging.getLogger("uvicorn.error").addFilter(lambda _: False)  # this process ends now
        write_json(Path(file), {"sentence": str(error), "code": error.code})
