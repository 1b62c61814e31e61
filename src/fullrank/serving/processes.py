"""Several processes on one port: uvicorn's supervisor, which says when all of them answer and whether they could."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection, parent_process
from socket import socket

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

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
