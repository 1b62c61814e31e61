"""Tracing: OpenTelemetry spans of a request, its wait, its batch and its store calls, where they go somewhere.

Nothing is imported and nothing costs unless the process has a tracer provider already (`opentelemetry-instrument`, or
the code that embeds the service), or the environment names an OTLP endpoint and the SDK with its exporter is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fullrank.core.log import logger

log = logger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
PACKAGE = "opentelemetry-exporter-otlp-proto-http"


class Tracing:
    """Spans, by the tracer of a provider. `Tracing.open` says whether there is one."""

    def __init__(self, provider: Any, *, own: bool = False):
        from opentelemetry import propagate, trace

        self._trace, self._propagate = trace, propagate
        self._provider = provider if own else None
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
        return cls(_exporting(), own=True)

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
