"""Tracing without the run-time type checker: what it asks of a size that is a symbol would fix the size."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import pytest
import torch


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
def untyped() -> Iterator:
    """For calls that the type checker would refuse before the library sees them."""
    with unchecked():
        yield
