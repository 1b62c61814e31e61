"""Tracing without the run-time type checker: what it asks of a size that is a symbol would fix the size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import pytest
import torch


@contextmanager
def unchecked() -> Iterator[None]:
    """Without checks of types and shapes."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session", autouse=True)
def traced_unchecked() -> Iterator[None]:
    whole = torch.export.export

    def export(*arguments: Any, **settings: Any) -> Any:
        with unchecked():
            return whole(*arguments, **settings)

    torch.export.export = export  # type: ignore[assignment]
    yield
    torch.export.export = whole


@pytest.fixture
def untyped() -> Iterator[None]:
    """For calls that the type checker would refuse before the library sees them."""
    with unchecked():
        yield
