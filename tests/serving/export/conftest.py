"""Tracing without the run-time type checker: what it asks of a size that is a symbol would fix the size."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import pytest
import torch

from fullrank.serving.export import make
from fullrank.serving.export.graph import Graph, Traced, trace


@contextmanager
def unchecked() -> Iterator:
    """Without checks of types and shapes."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session", autouse=True)
def traced_unchecked() -> Iterator:
    whole = torch.export.export

    def export(*arguments, **settings):
        with unchecked():
            return whole(*arguments, **settings)

    torch.export.export = export
    yield
    torch.export.export = whole


@pytest.fixture
def traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All exports of a test are of one graph, which is traced for the first: a third of their time is tracing."""
    found: list[Traced] = []

    def trace_once(graph: Graph) -> Traced:
        found[:] = found or [trace(graph)]
        return found[0]

    monkeypatch.setattr(make, "trace", trace_once)


@pytest.fixture
def untyped() -> Iterator:
    """For calls that the type checker would refuse before the library sees them."""
    with unchecked():
        yield
