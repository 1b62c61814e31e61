"""One logger tree, `fullrank`: shown on stderr once, turned up and down by its level, the root logger left alone."""

import logging
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from folders import python
from fullrank.core.log import logger, shown_at
from fullrank.data.events.prepare import prepare

TOP = logging.getLogger("fullrank")
TIMES = [1_600_000_000, 1_600_000_001, 1_600_000_002]
EVENTS = pl.DataFrame({"user_id": [1, 1, 1], "item_id": [1, 2, 3], "timestamp": TIMES})


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = TOP.level
    yield
    TOP.setLevel(before)


def test_one_handler_for_all(capsys: pytest.CaptureFixture) -> None:
    for name in ("fullrank.data.x", "fullrank.data.y", "fullrank.data.x"):
        logger(name).info("hello")
    assert capsys.readouterr() == ("", "hello\n" * 3)
    assert [type(handler).__name__ for handler in TOP.handlers].count("_Stderr") == 1


def test_levels(capsys: pytest.CaptureFixture) -> None:
    log = logger("fullrank.data.x")
    log.debug("hidden")
    TOP.setLevel(logging.WARNING)
    log.info("hidden")
    log.warning("seen")
    TOP.setLevel(logging.DEBUG)
    log.debug("seen")
    assert capsys.readouterr().err == "seen\nseen\n"
    assert (shown_at(True), shown_at(False)) == (logging.INFO, logging.DEBUG)


def test_steps_of_prepare(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    prepare(EVENTS, tmp_path / "a")
    assert capsys.readouterr() == ("", "")
    prepare(EVENTS, tmp_path / "a", progress=True, overwrite=True)
    asked = capsys.readouterr().err
    TOP.setLevel(logging.DEBUG)
    prepare(EVENTS, tmp_path / "a", overwrite=True)
    assert capsys.readouterr().err == asked != ""
    TOP.setLevel(logging.WARNING)
    prepare(EVENTS, tmp_path / "a", progress=True, overwrite=True)
    assert capsys.readouterr().err == ""


def test_applications_get_the_records(caplog: pytest.LogCaptureFixture) -> None:
    logger("fullrank.data.x").info("hello")
    assert [(one.name, one.message) for one in caplog.records] == [("fullrank.data.x", "hello")]


@pytest.mark.process
@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ("", "hello\n"),
        ("logging.basicConfig(level=logging.INFO)", "INFO:fullrank.x:hello\n"),
        ("logging.basicConfig(level=logging.INFO, filename='/dev/null')", "hello\n"),
        ("logging.getLogger('fullrank').setLevel(logging.ERROR)", ""),
    ],
)
def test_nothing_is_shown_twice(before: str, shown: str) -> None:
    code = f"""
import logging
{before}
root = list(logging.getLogger().handlers), logging.getLogger().level
from fullrank.core.log import logger
logger("fullrank.x").info("hello")
assert root == (logging.getLogger().handlers, logging.getLogger().level)
"""
    done = python(code)
    assert (done.stdout, done.stderr) == ("", shown)
