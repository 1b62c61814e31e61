"""Laws parse thousands of specs: what is installed is looked up once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from fullrank import spec


@pytest.fixture(scope="session", autouse=True)
def _look_up_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "_points", cache(spec._points))
        patch.setattr(spec, "_declares", cache(spec._declares))
        yield
