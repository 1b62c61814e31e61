"""The service as a process, or as several on one port: the app, and uvicorn around it.

The app is FastAPI with the service's routes, its middleware, and its life from start to shutdown.

Of several processes uvicorn's supervisor says when all of them answer and whether they could.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from fullrank import __version__
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, write_json
from fullrank.core.readers import read_json
from fullrank.core.registry import Problem
from fullrank.parallel.processes import end_with_parent
from fullrank.serving.base import BaseService, family_of
from fullrank.serving.guard import Guard
from fullrank.serving.keys import Access, Keys
from fullrank.serving.limits import HostRule, RateLimit, check_exposure
from fullrank.serving.openapi import PROBLEM, describe
from fullrank.serving.problems import hide_paths, install
from fullrank.serving.protocol import BoundedProtocol
from fullrank.serving.routes import Page, add_routes
from fullrank.serving.service import PredictService, Service
from fullrank.serving.settings import SERVED, ServeSettings
from fullrank.serving.telemetry import Telemetry, Tracing, metrics_folder

SWITCH = 2e-4
"""Seconds after which a Python thread lets another run: so long the event loop waits for the model thread at most."""
SERVICES: dict[Problem, type[BaseService[Any]]] = {"retrieval": Service, "ranking": PredictService}
"""Problem of the run that is served -> the service."""
ENVIRONMENT = "FULLRANK_SERVE"
"""Variable in which a process of several finds its settings, as JSON."""
FAILURE = "FULLRANK_SERVE_FAILURE"
"""Variable that names the file in which a process of several says why it did not start."""
DRAIN = 20
"""Seconds that open requests have to end once the service is told to stop."""
END_SECONDS = 25.0
"""Seconds until a process that was told to stop, and hangs, is ended."""


def build_app(settings: ServeSettings) -> FastAPI:
    """The app of one process."""
    settings = settings.absolute()
    hide_paths(settings.paths)
    problem = family_of(settings)
    telemetry, tracing = Telemetry(), Tracing.open()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        import torch

        torch.set_num_threads(settings.threads)
        sys.setswitchinterval(SWITCH)
        embedded = gc.get_freeze_count() > 0  # in a process that keeps its own from the collector
        try:
            app.state.service = service = SERVICES[problem](settings, telemetry, tracing)
            try:
                await service.open()
                if not embedded:
                    gc.collect()
                    gc.freeze()  # models and catalogues stay: a collection while requests wait must not walk them
                yield
            finally:
                if not embedded:
                    gc.unfreeze()  # what is left at exit would be told as a leak, of triton's bindings
                await service.close()
        except UserError as error:
            app.state.failure = error
            report_failure(error)
            raise

    app = FastAPI(
        title="fullrank",
        version=__version__,
        lifespan=life,
        summary=f"{SERVED[problem].capitalize()} from a trained model.",
        responses={"default": PROBLEM},
        separate_input_output_schemas=False,
        docs_url=None,  # it loads scripts of another host, as the next one
        redoc_url=None,
        redirect_slashes=False,  # to an address made of the Host header, before any key
        generate_unique_id_function=lambda route: route.name,
    )
    add_routes(app, problem)
    install(app)
    describe(app)
    app.state.page = page = Page(problem)
    keys = keys_of(settings)
    app.add_middleware(
        Guard,
        access=Access(keys, HostRule(settings.hosts) if keys is None else None),
        rate=None if settings.rate is None else RateLimit(settings.rate, settings.burst),
        body_most=settings.body_most,
        pages={"/": page.policy},
        telemetry=telemetry,
        access_log=settings.access_log,
        tracing=tracing,
    )
    return app


def from_environment() -> FastAPI:
    """The app of one process of several, started by uvicorn; the process ends with the one that started it."""
    end_with_parent(END_SECONDS)
    return build_app(ServeSettings.from_text(os.environ[ENVIRONMENT]))


def keys_of(settings: ServeSettings) -> Keys | None:
    """The keys of a service. Raises `UserError` where it has none, and would answer other machines."""
    keys = None if settings.keys is None else Keys(settings.keys)
    check_exposure(settings.host, keys)
    return keys


def run_server(settings: ServeSettings, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. Raises `UserError` where the service cannot start."""
    keys_of(settings)
    options = uvicorn_options(settings)
    if settings.workers > 1:
        os.environ[ENVIRONMENT] = settings.to_json()
        config = uvicorn.Config(
            "fullrank.serving.server:from_environment", factory=True, workers=settings.workers, **options
        )
    else:
        config = uvicorn.Config(build_app(settings), **options)
    listening = _listening_socket(config, settings)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    started = partial(
        say, f"serving {settings.run} at http://{shown}:{port} (page: /, API: /openapi.json); stop with Ctrl-C"
    )
    if settings.workers > 1:
        with metrics_folder(), failure_report() as failure:
            processes = Processes(config, listening, started)
            processes.run()
            if processes.failed:
                raise failure()
        return
    _Server(config, started).run(sockets=[listening])


def uvicorn_options(settings: ServeSettings) -> dict[str, Any]:
    """How uvicorn runs the app."""
    return {
        "host": settings.host,
        "port": settings.port,
        "loop": "uvloop",
        "ws": "none",
        "log_config": None,
        "http": partial(BoundedProtocol, most_body=settings.body_most),
        "access_log": False,
        "server_header": False,
        "proxy_headers": bool(settings.proxies),
        "forwarded_allow_ips": list(settings.proxies),
        "timeout_graceful_shutdown": DRAIN,
        "backlog": 2048,
        "timeout_keep_alive": 75,
    }


def check_service(settings: ServeSettings) -> JsonObject:
    """Open everything, answer one request, and close again; gives facts of what would be served."""
    keys_of(settings)

    async def once() -> JsonObject:
        service = SERVICES[family_of(settings)](settings)
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
        """Do not raise SIGTERM again after the shutdown: a process that was told to
        stop, and did, has ended well."""
        with super().capture_signals():
            yield
            self._captured_signals = [captured for captured in self._captured_signals if captured != signal.SIGTERM]

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


def _listening_socket(config: uvicorn.Config, settings: ServeSettings) -> socket.socket:
    """A socket that listens. Raises `UserError` where the address is
    taken or not this machine's."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); choose another --port, or 0 for a "
            "free one",
            code="address-in-use",
        ) from None
    listening.set_inheritable(True)
    return listening


class Processes(Multiprocess):
    """As many processes as `config` says; one that dies later is started again."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket, started: Callable[[], None]):
        super().__init__(config, sockets=[listening])
        self._say_started: Callable[[], None] | None = started

    def keep_subprocess_alive(self) -> None:
        """Called twice a second."""
        super().keep_subprocess_alive()
        if self._say_started is not None and not self.failed and all(process.is_ready() for process in self.processes):
            self._say_started()
            self._say_started = None

    @property
    def failed(self) -> bool:
        """Whether a process could not open the service; then all are stopped."""
        return any(process.exitcode == STARTUP_FAILURE for process in self.processes)


@contextmanager
def quiet_failure(app: Any) -> Iterator[None]:
    """Keep uvicorn from logging a failure that `app.state.failure` tells in one sentence."""

    def unsaid(_: logging.LogRecord) -> bool:
        return getattr(app.state, "failure", None) is None

    log = logging.getLogger("uvicorn.error")
    log.addFilter(unsaid)
    try:
        yield
    finally:
        log.removeFilter(unsaid)


@contextmanager
def failure_report() -> Iterator[Callable[[], UserError]]:
    """Have processes that are started inside the block leave the reason why they did not open;
    gives a function that reads it."""
    with tempfile.TemporaryDirectory(prefix="fullrank-serve-") as folder:
        file = Path(folder, "failure.json")

        def read() -> UserError:
            if not file.exists():
                return UserError("a process of the service did not start; the log says why", code="not-started")
            failure = read_json(file)
            return UserError(failure["sentence"], code=failure["code"])

        os.environ[FAILURE] = str(file)
        try:
            yield read
        finally:
            del os.environ[FAILURE]


def report_failure(error: UserError) -> None:
    """Leave to the parent why this process of several does not open; nothing where it has no parent."""
    if file := os.environ.get(FAILURE):
        logging.getLogger("uvicorn.error").addFilter(lambda _: False)  # this process ends now
        write_json(Path(file), {"sentence": str(error), "code": error.code})
