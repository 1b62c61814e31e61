"""Metrics of one process and of several, the access log, and spans where they go somewhere."""

import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fullrank.serving.guard import Guard
from fullrank.serving.keys import Access, Keys, add_key
from fullrank.serving.limits import RateLimit
from fullrank.serving.telemetry import ENDPOINTS, FOLDER, Telemetry, Tracing, metrics_folder

pytest.importorskip("prometheus_client")


def values(text: bytes) -> dict:
    rows = [line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#")]
    return {name.replace('"', "'"): float(value) for name, _, value in rows}


def test_what_is_told_is_rendered() -> None:
    told = Telemetry()
    told.request("/v1/items/{id}", "GET", 200, 0.003)
    told.request("/v1/items/{id}", "GET", 404, 0.2)
    told.request("unmatched", "BREW", 405, 0.001)
    told.batch(7, 0.001, 0.004)
    told.shed("queue")
    told.store_errors.inc()
    told.events(3, 1)
    told.queue.set(5)
    told.items(10, 2)
    told.versions({"a": 0.9, "b": 0.1})
    told.versions({"b": 1.0})
    text, kind = told.rendered()
    found = values(text)
    assert kind.startswith("text/plain")
    for name, value in {
        "requests_total{method='GET',route='/v1/items/{id}',status='200'}": 1,
        "requests_total{method='other',route='unmatched',status='405'}": 1,
        "request_seconds_bucket{le='0.005',route='/v1/items/{id}'}": 1,
        "request_seconds_count{route='/v1/items/{id}'}": 2,
        "batch_size_bucket{le='4.0'}": 0, "batch_size_bucket{le='8.0'}": 1, "queue_wait_seconds_sum": 0.001,
        "model_seconds_sum": 0.004, "shed_total{reason='queue'}": 1, "store_errors_total": 1,
        "events_total{result='stored'}": 3, "events_total{result='duplicate'}": 1, "queue_length": 5,
        "items{state='live'}": 10, "items{state='retired'}": 2, "version_share{version='a'}": 0,
        "version_share{version='b'}": 1, "version_swaps_total": 1,
    }.items():  # fmt: skip
        assert found[f"fullrank_{name}"] == value, name


WORKER = """
import sys
from fullrank.serving.telemetry import Telemetry
told = Telemetry()
told.request("/v1/recommend", "POST", 200, 0.003)
told.queue.set(5)
told.items(7, 1)
if sys.argv[1] == "closes":
    told.close()
sys.stdout.write(told.rendered()[0].decode())
"""


@pytest.mark.process
def test_several_processes_count_together_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv(FOLDER, raising=False)
    with metrics_folder():
        assert os.listdir(os.environ[FOLDER]) == []
        for way in ("ends", "closes", "ends"):  # the first and the last end without a word, like one that was killed
            words = [sys.executable, "-c", WORKER, way]
            done = subprocess.run(words, capture_output=True, check=True, env=os.environ | {"PYTHONPATH": "src"})
    found = values(done.stdout)
    assert found["fullrank_requests_total{method='POST',route='/v1/recommend',status='200'}"] == 3
    assert found["fullrank_request_seconds_count{route='/v1/recommend'}"] == 3
    assert found["fullrank_queue_length"] == 5 and found["fullrank_items{state='live'}"] == 7
    assert FOLDER not in os.environ and not list(tmp_path.rglob("*"))


def scope(path: str, **given) -> dict:
    return {"type": "http", "method": "GET", "path": path, "headers": [], "client": ("1.2.3.4", 5)} | given


class Route:
    path_format = "/v1/users/{id}/history"


async def answering(scope, receive, send) -> None:
    scope["route"] = Route
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"secret answer"})


def drive(guard: Guard, **given) -> None:
    """One request, without an event loop: nothing in it waits."""

    async def nothing(*_): ...

    try:
        guard(scope("/v1/users/secret-user/history", **given), nothing, nothing).send(None)
    except StopIteration:
        return
    raise AssertionError("it waited for something")


def test_the_access_log_names_no_key_no_user_and_no_body(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key, _ = add_key(tmp_path / "k.json", "shop", ["read"])
    guard = Guard(answering, access=Access(Keys(tmp_path / "k.json")), access_log=True)
    headers = [(b"authorization", f"Bearer {key}".encode()), (b"x-request-id", b"r-1"), (b"cookie", b"secret")]
    with caplog.at_level(logging.INFO):
        drive(guard, headers=headers, query_string=b"token=secret")
        drive(guard)
    first, second = (json.loads(record.message) for record in caplog.records)
    assert first | {"time": 0, "ms": 0} == {
        "time": 0, "request_id": "r-1", "method": "GET", "route": Route.path_format, "status": 200, "ms": 0,
        "client": "1.2.3.4", "key": "shop",
    }  # fmt: skip
    assert (second["status"], second["key"], second["route"]) == (401, None, "unmatched")
    assert "secret" not in caplog.text and key not in caplog.text


def test_what_a_request_costs() -> None:
    """Far above what was measured (docs/guide/serving_operations.md): this machine may be busy."""
    told, times = Telemetry(), 2000
    begun = time.perf_counter()
    for _ in range(times):
        told.request("/v1/recommend", "POST", 200, 0.003)
    counted = time.perf_counter() - begun
    guard = Guard(answering, access=Access(None), telemetry=told, rate=RateLimit(1e6, 10**6))
    begun = time.perf_counter()
    for _ in range(times):
        drive(guard)
    assert counted / times < 100e-6 and (time.perf_counter() - begun) / times < 500e-6


def test_no_spans_where_they_go_nowhere(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert Tracing.open() is None and not caplog.records
    monkeypatch.setenv(ENDPOINTS[0], "http://localhost:4318/v1/traces")
    monkeypatch.setattr("fullrank.serving.telemetry._installed", lambda name: "exporter" not in name)
    assert Tracing.open() is None and "pip install" in caplog.text
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    caplog.clear()
    assert Tracing.open() is None and not caplog.records
    monkeypatch.setattr("fullrank.serving.telemetry._installed", lambda name: False)
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    assert Tracing.open() is None and not caplog.records


def test_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, kept = sdk.TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    tracing = Tracing.open()
    assert tracing is not None

    async def app(scope, receive, send) -> None:
        with tracing.span("store history", events=3):
            pass
        await answering(scope, receive, send)

    guard = Guard(app, access=Access(None), tracing=tracing)
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    drive(guard, headers=[(b"traceparent", f"00-{trace_id}-b7ad6b7169203331-01".encode())])
    spans = {span.name: span for span in kept.get_finished_spans()}
    request = spans[f"GET {Route.path_format}"]
    assert set(spans) == {"store history", f"GET {Route.path_format}"}
    assert request.attributes is not None and request.attributes["http.route"] == Route.path_format
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {trace_id}
    assert spans["store history"].parent.span_id == request.context.span_id
    assert not re.search("secret", str([dict(span.attributes or {}) for span in spans.values()]))
