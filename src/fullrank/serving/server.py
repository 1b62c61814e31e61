"""The server process: uvicorn around the app, alone or as several processes on one port."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from fullrank.core.errors import UserError
from fullrank.serving.app import ENVIRONMENT, SERVICES, build_app
from fullrank.serving.base import problem_of
from fullrank.serving.keys import Keys
from fullrank.serving.limits import check_exposure
from fullrank.serving.processes import Processes, quiet_failure, told_failure
from fullrank.serving.protocol import BoundedProtocol
from fullrank.serving.settings import ServeSettings
from fullrank.serving.telemetry import metrics_folder

DRAIN = 20
"""Seconds that open requests have to end once the service is told to stop."""


def run_server(settings: ServeSettings, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. Raises `UserError` where the service cannot start."""
    keys = None if settings.keys is None else Keys(settings.keys)
    check_exposure(settings.host, keys)
    options = uvicorn_options(settings)
    if settings.workers > 1:
        os.environ[ENVIRONMENT] = json.dumps(settings.dump())
        config = uvicorn.Config(
            "fullrank.serving.app:from_environment", factory=True, workers=settings.workers, **options
        )
    else:
        config = uvicorn.Config(build_app(settings), **options)
    socket = _bound(config, settings)
    host, port = socket.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    started = partial(
        say, f"serving {settings.run} at http://{shown}:{port} (page: /, API: /openapi.json); stop with Ctrl-C"
    )
    if settings.workers > 1:
        with metrics_folder(), told_failure() as failure:
            processes = Processes(config, socket, started)
            processes.run()
            if processes.failed:
                raise failure()
        return
    _Server(config, started).run(sockets=[socket])


def uvicorn_options(settings: ServeSettings) -> dict[str, Any]:
    """How uvicorn runs the app."""
    return {
        "host": settings.host, "port": settings.port, "loop": "uvloop", "ws": "none", "log_config": None,
        "http": partial(BoundedProtocol, most_body=settings.body_most), "access_log": False, "server_header": False,
        "proxy_headers": bool(settings.proxies), "forwarded_allow_ips": list(settings.proxies),
        "timeout_graceful_shutdown": DRAIN, "backlog": 2048, "timeout_keep_alive": 75,
    }  # fmt: skip


def check_service(settings: ServeSettings) -> dict[str, Any]:
    """Open everything, answer one request, and close again: what would be served."""
    check_exposure(settings.host, None if settings.keys is None else Keys(settings.keys))

    async def once() -> dict[str, Any]:
        service_type, _ = SERVICES[problem_of(settings)]
        service = service_type(settings)
        try:
            await service.open()
            return {**await service.check(), "address": f"http://{settings.host}:{settings.port}"}
        finally:
            await service.close()

    return asyncio.run(once())


class _Server(uvicorn.Server):
    """Says when it answers, and raises why it does not: uvicorn logs a traceback and leaves with a status alone."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]):
        super().__init__(config)
        self._say_started = started

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without raising SIGTERM again behind the shutdown: who was told to stop, and did, has ended well."""
        with super().capture_signals():
            yield
            self._captured_signals = [one for one in self._captured_signals if one != signal.SIGTERM]

    async def startup(self, sockets: Any = None) -> None:
        """Open the app and listen. Raises `UserError` where the app cannot be opened."""
        app: Any = self.config.app
        with quiet_failure(app):
            try:
                await super().startup(sockets)
            except SystemExit:
                raise getattr(app.state, "failure", None) or UserError(
                    "the service did not start; the log says why", code="not-started"
                ) from None
        if not self.should_exit:
            self._say_started()


def _bound(config: uvicorn.Config, settings: ServeSettings) -> Any:
    """A socket that listens. Raises `UserError` where the address is taken or not this machine's."""
    import socket

    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((settings.host, settings.port))
    except OSError as error:
        made.close()
        raise UserError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); choose another --port, or 0 for a "
            "free one",
            code="address-in-use",
        ) from None
    made.set_inheritable(True)
    return made
