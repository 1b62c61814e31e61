"""One folder of shared worlds for all processes of a run, and the counts of draws in each test's report."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attack.frame import SHARED, TALLY, parse_once


@pytest.fixture(scope="session", autouse=True)
def worlds(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """The folder that `shared` fills: one for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    home = (base if worker_id == "master" else base.parent) / "attack"
    home.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SHARED, str(home))
        parse_once(patch)
        yield


@pytest.fixture(autouse=True)
def tally(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """`PART/VERB/KIND` -> number of draws, as properties of the test in a report of JUnit's form."""
    TALLY.clear()
    yield
    for key, count in TALLY.items():
        record_property("/".join(key), count)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
