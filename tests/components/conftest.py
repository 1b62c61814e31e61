"""Laws parse thousands of specs: what is installed is looked up once for all of them."""

from collections.abc import Iterator
from functools import cache

import pytest

from fullrank.core import registry


@pytest.fixture(scope="module", autouse=True)
def _look_up_once() -> Iterator:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "points", cache(registry.points))
        yield
