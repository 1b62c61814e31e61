"""Messages and progress: one logger tree, `fullrank`, shown on stderr once; a bar on a terminal, lines elsewhere."""

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from folders import python
from fullrank.core import log as messages
from fullrank.core.log import Reporter, clock, logger, quiet, reporting, shown_at, stages
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "QUIET_SECONDS", 0.0)


def test_lines(capsys: pytest.CaptureFixture, at_once: None) -> None:
    with reporting("read") as tick:
        tick(5, 10)
        tick(1234, 0)
    assert capsys.readouterr() == ("", "read: 5 of 10 (50%)\nread: 1,234\n")


def test_lines_are_seldom(capsys: pytest.CaptureFixture) -> None:
    with reporting("read") as tick:
        for done in range(1000):
            tick(done, 1000)
    assert capsys.readouterr() == ("", "")


def test_silence(capsys: pytest.CaptureFixture, at_once: None) -> None:
    with Reporter(False) as reporter, reporting("read", shown=False) as tick, stages(shown=False) as tell:
        reporter.say("x")
        reporter.at("a", 1, 2)
        tick(1, 2)
        tell("b")(1, 2)
    quiet("x")(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with Reporter() as reporter:
        reporter.at("a", 1, 4, "first [bold]")
        reporter.at("a", 2, 4)
        reporter.say("a line that stays")
        reporter.at("a", 4, 4)
    shown = screen.getvalue()
    assert "first [bold]" in shown and "100 %" in shown and shown.count("a line that stays") == 1
    with stages() as tell:
        tell("one")(1, 2)
        tell("two")(1, 2)
    assert "one" in screen.getvalue() and "two" in screen.getvalue()


def test_every_file_gets_a_line(capsys: pytest.CaptureFixture) -> None:
    with Reporter(sizes=True) as reporter:
        for done in (500, 1000):
            reporter.at("a.zip", done, 1000)
    assert capsys.readouterr().err == "a.zip: 1,000 of 1,000 bytes (100%)\n"


@pytest.mark.parametrize(("seconds", "text"), [(4.9, "0:04"), (245, "4:05"), (3723, "1:02:03")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.process
def test_core_is_light() -> None:
    """Importing core, or the package, loads neither rich nor polars nor torch."""
    code = """
import sys, fullrank, fullrank.core.files, fullrank.core.log, fullrank.core.log, fullrank.core.tables
assert not {"rich", "polars", "torch"} & set(sys.modules), sorted({"rich", "polars", "torch"} & set(sys.modules))
"""
    python(code)
