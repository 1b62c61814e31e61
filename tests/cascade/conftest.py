"""The stores of a cascade, and a cascade on them."""

import pytest

from fullrank.cascade import Cascade
from tests.cascade.pieces import Both, made, stores


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return stores(tmp_path_factory.mktemp("cascade"))


@pytest.fixture
def cascade(both: Both) -> Cascade:
    return made(*both)
