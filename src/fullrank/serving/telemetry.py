"""Telemetry: the service's metrics for Prometheus, of one process or of several, the access log, and tracing.

Several processes share a folder of mapped files (prometheus_client's multiprocess mode):
`metrics_folder` makes it before they start and takes it away behind them. Whichever process is
asked for `/metrics` adds up all of them.

Tracing is OpenTelemetry spans of a request, its wait, its batch and its store calls, where they go
somewhere. Nothing of it is imported and nothing costs unless the process has a tracer provider
already (`opentelemetry-instrument`, or the code that embeds the service), or the environment names
an OTLP endpoint and the SDK with its exporter is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank import __version__
from fullrank.core.files import scratch_folder
from fullrank.core.locks import lives
from fullrank.core.log import logger

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram


FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Variable by which prometheus_client, when it is imported, knows that several processes count together."""
SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets of durations: fine where a service should be."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LIVE = re.compile(r"gauge_live[a-z]*_(\d+)\.db")


@contextmanager
def metrics_folder() -> Iterator[None]:
    """Hold the folder in which several processes count; to be entered before they are started.

    The folder of a service that was killed goes with the next one (`scratch_folder`).
    """
    with scratch_folder() as folder:
        before = os.environ.get(FOLDER)
        os.environ[FOLDER] = str(folder)
        try:
            yield
        finally:
            del os.environ[FOLDER]
            os.environ.update({} if before is None else {FOLDER: before})


class Telemetry:
    """The metrics of one process; every call takes a few microseconds and may be made from any thread."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._folder = os.environ.get(FOLDER)
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"fullrank_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str, many: Any = "livesum") -> Gauge:
            return Gauge(f"fullrank_{name}", text, labels, registry=registry, multiprocess_mode=many)

        def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(f"fullrank_{name}", text, labels, registry=registry, buckets=buckets)

        self._requests = counter("requests", "Requests by route, method and status.", "route", "method", "status")
        self._latency = histogram("request_seconds", "From the head of a request to the end of its response.", "route")
        self._shed = counter("shed", "Requests turned away, by reason.", "reason")
        self._batch = histogram("batch_size", "Requests of one forward pass.", buckets=SIZES)
        self._wait = histogram("queue_wait_seconds", "What the oldest request of a batch waited.")
        self._model = histogram("model_seconds", "Forward pass, search and ranker of one batch.")
        self.queue = gauge("queue_length", "Requests that wait for the model, or are in it.")
        self.store_errors = counter("store_errors", "Calls of the store of histories that failed.")
        self._events = counter("events", "Events received: stored, or known by their id.", "result")
        self.rows = counter("rows", "Rows of which click probabilities were given.")
        self._items = gauge("items", "Items of the catalogue, by state (live or retired).", "state", many="livemax")
        self._active = gauge("version_share", "Share of users that a version answers.", "version", many="livemax")
        self._swaps = counter("version_swaps", "Changes of the versions that answer, or of their shares.")
        # a Gauge, since Info does not count in several processes
        gauge("info", "1; the version of fullrank is a label.", "version", many="livemax").labels(__version__).set(1)
        self._by_request: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._shares: Mapping[str, float] = {}

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that has ended. `route` is the template (`/v1/items/{id}`): its values are too many."""
        metrics = self._by_request.get((route, method, status))
        if metrics is None:
            method = method if method in METHODS else "other"
            metrics = self._requests.labels(route, method, str(status)), self._latency.labels(route)
            if method != "other":
                self._by_request[route, method, status] = metrics
        metrics[0].inc()
        metrics[1].observe(seconds)

    def batch(self, size: int, waited: float, took: float) -> None:
        """Count a batch: its requests, seconds that its oldest waited, seconds that it
        took (`Batcher(observe=)`)."""
        self._batch.observe(size)
        self._wait.observe(waited)
        self._model.observe(took)

    def shed(self, reason: str) -> None:
        """Count a request that was turned away: queue, deadline, rate, open or body."""
        self._shed.labels(reason).inc()

    def events(self, stored: int, duplicates: int) -> None:
        """Count events that were received."""
        self._events.labels("stored").inc(stored)
        self._events.labels("duplicate").inc(duplicates)

    def items(self, live: int, retired: int) -> None:
        """Say how many items may be recommended, and how many may not."""
        self._items.labels("live").set(live)
        self._items.labels("retired").set(retired)

    def versions(self, shares: Mapping[str, float]) -> None:
        """Say which versions answer, and which share of users each."""
        if self._shares and self._shares != shares:
            self._swaps.inc()
        for name in self._shares.keys() - shares.keys():
            self._active.labels(name).set(0)  # a label cannot be taken back where several processes count
        for name, share in shares.items():
            self._active.labels(name).set(share)
        self._shares = dict(shares)

    def rendered(self) -> tuple[bytes, str]:
        """The text of `/metrics` and its content type. With several processes it reads
        files: call it on a thread."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._collected()), CONTENT_TYPE_LATEST

    def close(self) -> None:
        """Take this process out of the gauges that count living ones; its counters stay."""
        if self._folder is not None and os.path.isdir(self._folder):
            from prometheus_client.multiprocess import mark_process_dead

            mark_process_dead(os.getpid(), self._folder)

    def _collected(self) -> CollectorRegistry:
        """The metrics of this process, or of all that share the folder, without
        gauges of those that were killed."""
        if self._folder is None:
            return self.registry
        from prometheus_client import CollectorRegistry
        from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

        for file in Path(self._folder).iterdir():  # of processes that were killed
            match = _LIVE.fullmatch(file.name)
            if match is not None and not lives(int(match[1])):
                mark_process_dead(int(match[1]), self._folder)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, self._folder)
        return registry


ACCESS = logger("fullrank.serving.access")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})


def log_access(scope: MutableMapping[str, Any], route: str, status: int, seconds: float) -> None:
    """One line of JSON for a request, by the logger `fullrank.serving.access` at INFO.

    It holds the route's template, not the address that was asked for, which names users; and never
    a key, a header or a body. `key` is the name of the key.
    """
    state, client = scope["state"], scope.get("client")
    line = {
        "time": round(time.time(), 3),
        "request_id": state["request_id"],
        "method": scope["method"][:16],
        "route": route,
        "status": status,
        "ms": round(seconds * 1000, 2),
        "client": client[0] if client else None,
        "key": None if state["key"] is None else state["key"].name,
    }
    ACCESS.info(json.dumps(line))


log = logger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
PACKAGE = "opentelemetry-exporter-otlp-proto-http"


class Tracing:
    """Spans, by the tracer of a provider. `Tracing.open` says whether there is one."""

    def __init__(self, provider: Any, *, owned: bool = False):
        from opentelemetry import propagate, trace

        self._trace, self._propagate = trace, propagate
        self._provider = provider if owned else None
        self._tracer = provider.get_tracer("fullrank.serving")

    @classmethod
    def open(cls) -> Tracing | None:
        """Tracing where spans would go somewhere, else None."""
        if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or not _installed("opentelemetry"):
            return None
        from opentelemetry import trace

        provider = trace.get_tracer_provider()
        if not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return cls(provider)
        if not any(os.environ.get(name) for name in ENDPOINTS):
            return None
        if not _installed("opentelemetry.sdk") or not _installed(EXPORTER):
            log.warning(f"the environment names an OTLP endpoint, and no spans go there: pip install {PACKAGE}")
            return None
        return cls(_exporting(), owned=True)

    @contextmanager
    def request(
        self, scope: MutableMapping[str, Any], headers: Mapping[bytes, bytes], request_id: str
    ) -> Iterator[Any]:
        """The span of a request, below the caller's (`traceparent`); named by its route once that is known."""
        carrier = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in headers
        }
        with self._tracer.start_as_current_span(
            scope["method"], self._propagate.extract(carrier), kind=self._trace.SpanKind.SERVER
        ) as span:
            span.set_attribute("http.request.method", scope["method"])
            span.set_attribute("fullrank.request_id", request_id)
            try:
                yield span
            finally:
                route = getattr(scope.get("route"), "path_format", None)
                if route is not None:
                    span.update_name(f"{scope['method']} {route}")
                    span.set_attribute("http.route", route)

    def span(self, name: str, **attributes: Any) -> AbstractContextManager[Any]:
        """A span around a block, such as a call of the store."""
        return self._tracer.start_as_current_span(name, attributes=attributes)

    def close(self) -> None:
        """Send what waits, where the exporter is this service's own."""
        if self._provider is not None:
            self._provider.shutdown()


def _exporting() -> Any:
    """A new tracer provider that exports by OTLP, as the environment configures it."""
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME", "fullrank")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(importlib.import_module(EXPORTER).OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
