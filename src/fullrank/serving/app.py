"""The application: FastAPI with the service's routes, its middleware, and its life from start to shutdown."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

from fastapi import FastAPI

from fullrank import __version__
from fullrank.core.errors import UserError
from fullrank.core.readers import read_json_text
from fullrank.core.registry import Problem
from fullrank.serving.base import BaseService, problem_of
from fullrank.serving.guard import Guard
from fullrank.serving.keys import Access, Keys
from fullrank.serving.limits import HostRule, RateLimit
from fullrank.serving.openapi import PROBLEM, describe
from fullrank.serving.page import Page
from fullrank.serving.predict_service import PredictService
from fullrank.serving.problems import hide_places, install
from fullrank.serving.processes import end_with_parent, tell_failure
from fullrank.serving.routes import operations, predict, recommend
from fullrank.serving.service import Service
from fullrank.serving.settings import SERVED, ServeSettings
from fullrank.serving.telemetry import AccessLog, Telemetry
from fullrank.serving.tracing import Tracing

SWITCH = 2e-4
"""Seconds after which a thread of Python lets another run: the event loop does not wait for the model thread longer."""
SERVICES: dict[Problem, tuple[type[BaseService[Any]], ModuleType]] = {
    "retrieval": (Service, recommend),
    "ranking": (PredictService, predict),
}
"""Problem of the run that is served -> the service, and the routes that it alone has."""
ENVIRONMENT = "FULLRANK_SERVE"
"""Variable in which a process of several finds its settings, as JSON."""


def build_app(settings: ServeSettings) -> FastAPI:
    """The app of one process."""
    settings = settings.absolute()
    hide_places(settings.places)
    problem = problem_of(settings)
    service_type, routes = SERVICES[problem]
    telemetry, tracing = Telemetry(), Tracing.open()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        import torch

        torch.set_num_threads(settings.threads)
        sys.setswitchinterval(SWITCH)
        embedded = gc.get_freeze_count() > 0  # in a process that keeps its own from the collector
        try:
            app.state.service = service = service_type(settings, telemetry, tracing)
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
            tell_failure(error)
            raise

    app = FastAPI(
        title="fullrank", version=__version__, lifespan=life,
        summary=f"{SERVED[problem].capitalize()} from a trained model.",
        responses={"default": PROBLEM}, separate_input_output_schemas=False,
        docs_url=None, redoc_url=None,  # both load scripts of another host
        redirect_slashes=False,  # to an address made of the Host header, before any key
        generate_unique_id_function=lambda route: route.name,
    )  # fmt: skip
    routes.add(app)
    operations.add(app)
    install(app)
    describe(app)
    app.state.page = page = Page(problem)
    keys = None if settings.keys is None else Keys(settings.keys)
    app.add_middleware(
        Guard,
        access=Access(keys, HostRule(settings.hosts) if keys is None else None),
        rate=None if settings.rate is None else RateLimit(settings.rate, settings.burst),
        body_most=settings.body_most,
        pages={"/": page.policy},
        telemetry=telemetry,
        access_log=AccessLog() if settings.access_log else None,
        tracing=tracing,
    )
    return app


def from_environment() -> FastAPI:
    """The app of one process of several, started by uvicorn; the process ends with the one that started it."""
    end_with_parent()
    return build_app(ServeSettings.parse(read_json_text(os.environ[ENVIRONMENT])))
